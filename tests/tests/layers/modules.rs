//! The modules of each crate: no import cycle, neither between files nor between a crate's top-level modules.
//!
//! An edge is a path from `crate::` or `super::` in a file to another module of the same crate. Edges between a
//! module and its own ancestor or descendant do not count, nor does code under `#[cfg(test)]`. A name that a crate's
//! root re-exports counts as a path to the module that declares it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// Each module with the modules that it names. The root has the empty name.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Folders whose children are crates.
const PARENTS: &[&str] = &["crates", "services", "sdk", "tools"];

#[test]
fn no_crate_has_an_import_cycle_between_its_modules() -> io::Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let (mut seen, mut found) = (0, String::new());
    for parent in PARENTS {
        for entry in fs::read_dir(root.join(parent))? {
            let src = entry?.path().join("src");
            if !["lib.rs", "main.rs"].iter().any(|name| src.join(name).is_file()) {
                continue;
            }
            seen += 1;
            let graph = graph(&sources(&src)?);
            for (what, graph) in [("files", &graph), ("top-level modules", &folded(&graph))] {
                for cycle in cycles(graph) {
                    let told = told(graph, &cycle);
                    found += &format!("\n{}: a cycle between {what} of {}\n{told}", src.display(), cycle.len());
                }
            }
        }
    }
    assert!(seen >= 14, "{seen} crates were found: is PARENTS still right?");
    assert!(found.is_empty(), "{found}");
    Ok(())
}

/// Every module with its text, except for tests. `main.rs` counts only if there is no `lib.rs`.
fn sources(src: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let top = if src.join("lib.rs").is_file() { "lib.rs" } else { "main.rs" };
    files.insert(String::new(), bare(&fs::read_to_string(src.join(top))?));
    walk(src, "", &mut files)?;
    // A file that its parent declares under `#[cfg(test)]` is not in the parent's text.
    let declared = |name: &str| {
        let (parent, own) = name.rsplit_once("::").unwrap_or(("", name));
        let said = format!("mod {own};");
        files.get(parent).is_none_or(|text| text.contains(&said))
    };
    let kept: BTreeSet<String> = files.keys().filter(|name| name.is_empty() || declared(name)).cloned().collect();
    files.retain(|name, _| kept.contains(name));
    Ok(files)
}

fn walk(folder: &Path, at: &str, files: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = if at.is_empty() { stem.clone() } else { format!("{at}::{stem}") };
        if path.is_dir() {
            walk(&path, &name, files)?;
        } else if path.extension().is_some_and(|ext| ext == "rs")
            && !(at.is_empty() && ["lib", "main"].contains(&&*stem))
        {
            files.insert(name, bare(&fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The code without comments, literals and test-only items.
fn bare(text: &str) -> String {
    without_tests(&without_literals(text))
}

fn without_literals(text: &str) -> String {
    let (chars, mut out, mut n) = (text.chars().collect::<Vec<_>>(), String::new(), 0);
    let starts = |n: usize, with: &str| with.chars().enumerate().all(|(k, c)| chars.get(n + k) == Some(&c));
    while n < chars.len() {
        let hashes = chars[n..].iter().skip(1).take_while(|c| **c == '#').count();
        if starts(n, "//") {
            while n < chars.len() && chars[n] != '\n' {
                n += 1;
            }
        } else if starts(n, "/*") {
            while n < chars.len() && !starts(n, "*/") {
                n += 1;
            }
            n += 2;
        } else if chars[n] == 'r' && chars.get(n + 1 + hashes) == Some(&'"') {
            let end = format!("\"{}", "#".repeat(hashes));
            n += hashes + 2;
            while n < chars.len() && !starts(n, &end) {
                n += 1;
            }
            n += end.len();
        } else if chars[n] == '"' {
            n += 1;
            while n < chars.len() && chars[n] != '"' {
                n += if chars[n] == '\\' { 2 } else { 1 };
            }
            n += 1;
        } else if chars[n] == '\'' && (chars.get(n + 1) == Some(&'\\') || chars.get(n + 2) == Some(&'\'')) {
            // A character literal, not a lifetime.
            n += if chars[n + 1] == '\\' { 3 } else { 2 };
            while n < chars.len() && chars[n] != '\'' {
                n += 1;
            }
            n += 1;
        } else {
            out.push(chars[n]);
            n += 1;
        }
    }
    out
}

fn without_tests(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("#[cfg(test)]") {
        out += &rest[..at];
        let item = &rest[at..];
        let end = item
            .find(['{', ';'])
            .map_or(item.len(), |n| if item[n..].starts_with('{') { closing(item, n) } else { n + 1 });
        rest = &item[end..];
    }
    out + rest
}

/// The position after the brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (n, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return open + n + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn graph(files: &BTreeMap<String, String>) -> Graph {
    let mut graph: Graph = files.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
    let exported = exported(files);
    for (name, text) in files {
        let to = |path: &Vec<String>| match path.first().and_then(|first| exported.get(first)) {
            Some(module) => module.clone(),
            None => module_of(path, files),
        };
        let edges: BTreeSet<String> = paths(name, text).iter().map(to).filter(|to| !related(name, to)).collect();
        graph.insert(name.clone(), edges);
    }
    graph
}

/// The names that the root takes from its modules, each with the module that it comes from.
fn exported(files: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let text = files.get("").map(String::as_str).unwrap_or_default();
    let (tokens, mut names) = (tokens(text), BTreeMap::new());
    for n in (0..tokens.len()).filter(|n| tokens[*n] == "use") {
        let start = if tokens.get(n + 1) == Some(&"crate") { n + 3 } else { n + 1 };
        let mut found = Vec::new();
        let end = tree(&tokens, start, Vec::new(), &mut found);
        // The name after `as`, which a path does not carry.
        let renamed = (tokens.get(end.wrapping_sub(2)) == Some(&"as") && found.len() == 1).then(|| tokens[end - 1]);
        for path in found {
            let module = module_of(&path, files);
            let Some(name) = renamed.map(str::to_owned).or_else(|| path.last().cloned()) else { continue };
            // A module is found by its own path; a name from another crate leads to no module.
            if !module.is_empty() && !files.contains_key(&name) {
                names.insert(name, module);
            }
        }
    }
    names
}

/// Whether both are the same module, or one is inside the other.
fn related(a: &str, b: &str) -> bool {
    let within = |a: &str, b: &str| b.is_empty() || a == b || a.starts_with(&format!("{b}::"));
    within(a, b) || within(b, a)
}

/// The innermost module that a path leads through.
fn module_of(path: &[String], files: &BTreeMap<String, String>) -> String {
    (1..=path.len()).rev().map(|n| path[..n].join("::")).find(|name| files.contains_key(name)).unwrap_or_default()
}

/// All paths from the crate's root that a file names.
fn paths(file: &str, text: &str) -> Vec<Vec<String>> {
    let (tokens, mut found) = (tokens(text), Vec::new());
    // The inline modules around a token, each with the depth of its braces.
    let (mut inline, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
    let is = |n: usize, token: &str| tokens.get(n).is_some_and(|t| *t == token);
    for n in 0..tokens.len() {
        match tokens[n] {
            "{" => {
                depth += 1;
                if n >= 2 && is(n - 2, "mod") {
                    inline.push((tokens[n - 1].to_owned(), depth));
                }
            }
            "}" => {
                inline.retain(|(_, at)| *at != depth);
                depth = depth.saturating_sub(1);
            }
            word @ ("crate" | "super") if is(n + 1, "::") && !(n > 0 && ["$", "::", "in"].contains(&tokens[n - 1])) => {
                let mut at: Vec<String> = Vec::new();
                let mut next = n + 2;
                if word == "super" {
                    at.extend(file.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
                    at.extend(inline.iter().map(|(name, _)| name.clone()));
                    at.pop();
                    while is(next, "super") && is(next + 1, "::") {
                        at.pop();
                        next += 2;
                    }
                }
                tree(&tokens, next, at, &mut found);
            }
            _ => {}
        }
    }
    found
}

/// Reads one path, or all paths of a group. Returns where it ends.
fn tree(tokens: &[&str], mut n: usize, mut at: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        match tokens.get(n) {
            Some(&"{") => {
                n += 1;
                while n < tokens.len() && tokens[n] != "}" {
                    n = if tokens[n] == "," { n + 1 } else { tree(tokens, n, at.clone(), found).max(n + 1) };
                }
                return n + 1;
            }
            // A macro is at the root, wherever it was defined.
            Some(_) if tokens.get(n + 1) == Some(&"!") => return n + 2,
            Some(word) if word.starts_with(|c: char| c.is_alphabetic() || c == '_') && *word != "as" => {
                if *word != "self" {
                    at.push((*word).to_owned());
                }
                n += 1;
            }
            _ => break,
        }
        if tokens.get(n) != Some(&"::") {
            break;
        }
        n += 1;
    }
    found.push(at);
    if tokens.get(n) == Some(&"as") { n + 2 } else { n }
}

fn tokens(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let len = match first {
            _ if word > 0 => word,
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        let (token, behind) = rest.split_at(len);
        if !token.trim().is_empty() {
            found.push(token);
        }
        rest = behind;
    }
    found
}

/// The same graph, with each top-level module as one node.
fn folded(graph: &Graph) -> Graph {
    let top = |name: &str| name.split("::").next().unwrap_or_default().to_owned();
    let mut folded = Graph::new();
    for (from, edges) in graph {
        let edges = edges.iter().map(|to| top(to)).filter(|to| *to != top(from));
        folded.entry(top(from)).or_default().extend(edges);
    }
    folded
}

/// Groups of modules that reach each other.
fn cycles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reached(graph, from))).collect();
    let mut cycles: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reach {
        if to.contains(from) && !cycles.iter().any(|cycle| cycle.contains(*from)) {
            let back = |other: &&&str| reach.get(**other).is_some_and(|reached| reached.contains(from));
            cycles.push(to.iter().filter(back).map(|name| (*name).to_owned()).collect());
        }
    }
    cycles
}

fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(edges) = next.pop().and_then(|name| graph.get(name)) {
        for to in edges {
            if seen.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    seen
}

/// The edges within a cycle, one line each.
fn told(graph: &Graph, cycle: &BTreeSet<String>) -> String {
    let edges = |from: &String| {
        let to: Vec<&str> = graph[from].intersection(cycle).map(String::as_str).collect();
        format!("  {from} -> {}\n", to.join(", "))
    };
    cycle.iter().map(edges).collect()
}

fn made_up(files: &[(&str, &str)]) -> Graph {
    let files = files.iter().map(|(name, text)| ((*name).to_owned(), bare(text))).collect();
    graph(&files)
}

#[test]
fn a_cycle_is_found_and_its_edges_are_named() {
    let graph = made_up(&[
        ("", "mod a; mod b; mod c; mod d;"),
        ("a", "use crate::{b::{self, B}, d};"),
        ("b", "fn f() { super::c::make(crate::d::D) }"),
        ("b::inner", "use super::super::d::D;"),
        ("c", "mod words { use super::super::a::A; }"),
        ("d", "pub struct D;"),
    ]);
    let found = cycles(&graph);
    assert_eq!(found.len(), 1);
    assert_eq!(told(&graph, &found[0]), "  a -> b\n  b -> c\n  c -> a\n");
}

#[test]
fn a_name_that_the_root_exports_leads_to_the_module_that_declares_it() {
    let graph = made_up(&[
        (
            "",
            "mod a; mod b; mod c; pub use a::{A, inner::Deep}; pub(crate) use crate::b::B as Other; pub use serde::C;",
        ),
        ("a", "mod inner; use crate::Other;"),
        ("a::inner", "pub struct Deep;"),
        ("b", "use super::Deep; use crate::{A, C};"),
        ("c", "use crate::A;"),
    ]);
    assert_eq!(graph["a"], ["b".to_owned()].into());
    assert_eq!(graph["b"], ["a".to_owned(), "a::inner".to_owned()].into());
    assert_eq!(graph["c"], ["a".to_owned()].into());
    assert_eq!(told(&graph, &cycles(&graph)[0]), "  a -> b\n  b -> a\n");
}

#[test]
fn a_cycle_between_folders_is_found_though_no_two_files_have_one() {
    let graph = made_up(&[
        ("a", "mod one; mod two;"),
        ("a::one", "use crate::b::B;"),
        ("a::two", "pub struct Two;"),
        ("b", "use crate::a::two::Two;"),
    ]);
    assert!(cycles(&graph).is_empty());
    assert_eq!(cycles(&folded(&graph)), [["a", "b"].map(str::to_owned).into()]);
}

#[test]
fn ancestors_tests_comments_texts_and_macros_make_no_edge() {
    let graph = made_up(&[
        ("a", "use crate::b::B; // crate::a\n/* crate::c */ crate::c! { x } const S: &str = \"crate::c\";"),
        (
            "b",
            "mod inner; fn c() -> char { '\"' } #[cfg(test)]\nmod tests { use crate::a::A; } pub(in crate::a) fn f() {}",
        ),
        ("b::inner", "use super::Thing; use crate::b::Other; #[cfg(test)] use crate::a::A;"),
        ("c", "const RAW: &str = r#\"crate::a \"quoted\" crate::a\"#; use crate::a::A;"),
    ]);
    assert_eq!(graph["a"], ["b".to_owned()].into());
    assert!(graph["b"].is_empty() && graph["b::inner"].is_empty());
    assert_eq!(graph["c"], ["a".to_owned()].into());
    assert!(cycles(&graph).is_empty() && cycles(&folded(&graph)).is_empty());
}
