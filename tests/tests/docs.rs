//! Keeps the docs up to date: links lead somewhere, named files and variables exist, the pages of settings and loops
//! match what the services print, and every metric and every error code is explained. (`muster-codegen --check`
//! checks the page of metrics.)

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use muster_testkit::bin;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut all = Vec::new();
    files(folder, &mut all)?;
    found.extend(all.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")));
    Ok(())
}

/// Every file below a folder, except for build output.
fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files(&path, found)?;
        } else if path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// Every file that belongs to the map of the code, by its path from the root.
fn sources() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in ["bench", "crates", "deploy", "docs", "lua", "proto", "sdk", "services", "tests", "tools"] {
        let folder = root().join(folder);
        if folder.exists() {
            files(&folder, &mut found)?;
        }
    }
    // Files beside the folders: compose files, settings of tools.
    found.extend(fs::read_dir(root())?.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()));
    let from_root = |path: &PathBuf| Some(path.strip_prefix(root()).ok()?.to_str()?.to_owned());
    Ok(found.iter().filter_map(from_root).collect())
}

/// The pages that describe the present: without decision records and the changelog.
fn living_pages() -> Result<Vec<(String, String)>> {
    let mut all = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    pages(&root().join("docs"), &mut all)?;
    all.retain(|page| !page.components().any(|part| part.as_os_str() == "adr"));
    all.iter().map(|page| Ok((page.display().to_string(), fs::read_to_string(page)?))).collect()
}

/// The terms between backticks, without those that contain spaces.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').filter(|term| !term.is_empty() && !term.contains(char::is_whitespace))
}

/// Expands `a/{b,c}.rs` into two files.
fn spelled_out(term: &str) -> Vec<String> {
    let parts = term.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (names, tail))) = parts else { return vec![term.to_owned()] };
    names.split(',').map(|name| format!("{head}{name}{tail}")).collect()
}

/// Targets of `[text](target)` that name a file of this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).filter(|target| {
        !target.contains("://") && !target.starts_with('#') && !target.contains(' ') && !target.is_empty()
    })
}

#[test]
fn every_link_between_pages_leads_somewhere() -> Result<()> {
    let mut all = vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CHANGELOG.md")];
    pages(&root().join("docs"), &mut all)?;
    let mut checked = 0;
    for page in &all {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        for target in links(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let place = page.parent().context("no folder")?.join(file);
            ensure!(place.exists(), "{}: nothing at {target}", page.display());
            checked += 1;
        }
    }
    ensure!(checked > 30, "only {checked} links were found");
    Ok(())
}

#[test]
fn every_file_that_a_page_names_is_there() -> Result<()> {
    let sources = sources()?;
    let is_source = |term: &&str| {
        let end = Path::new(term).extension().and_then(|end| end.to_str()).unwrap_or_default();
        let known = ["rs", "lua", "proto", "toml", "py", "sh"].contains(&end);
        // Pages also name YAML files of other programs; those of this repository are under deploy and at the root.
        let deployed =
            ["yml", "yaml"].contains(&end) && (term.starts_with("deploy/") || term.starts_with("docker-compose"));
        (known || deployed) && !term.contains(['<', '*', '…', '|', '$'])
    };
    let mut checked = 0;
    for (page, text) in living_pages()? {
        for file in terms(&text).filter(is_source).flat_map(spelled_out) {
            // A sentence may name a file by the end of its path.
            let there = sources.iter().any(|source| *source == file || source.ends_with(&format!("/{file}")));
            ensure!(there, "{page}: there is no {file}");
            checked += 1;
        }
    }
    ensure!(checked > 100, "only {checked} files were found");
    Ok(())
}

#[test]
fn every_variable_that_a_page_names_is_read_by_somebody() -> Result<()> {
    let mut code = fs::read_to_string(root().join("docs/reference/settings.md"))?;
    // Services and tools read variables; so do compose files, the example of their settings, and scripts.
    let reads = |file: &&String| {
        let end = Path::new(file).extension().and_then(|end| end.to_str()).unwrap_or_default();
        let deployed = file.starts_with("deploy/") || !file.contains('/');
        match end {
            "rs" => !file.starts_with("tests/"),
            "sh" | "py" => !file.starts_with("tests/"),
            "yml" | "yaml" | "conf" => deployed,
            _ => file.as_str() == ".env.example" || file.as_str() == "Makefile",
        }
    };
    for file in sources()?.iter().filter(reads) {
        code.push_str(&fs::read_to_string(root().join(file))?);
    }
    let known: BTreeSet<&str> = code.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).collect();
    let mut checked = 0;
    for (page, text) in living_pages()? {
        for name in text.split(|c: char| !(c.is_ascii_uppercase() || c == '_')) {
            let ours = ["MUSTER_", "REDIS_", "NATS_", "API_", "AUDIT_"].iter().any(|prefix| name.starts_with(prefix));
            let read = known.contains(name) || known.contains(name.trim_end_matches("_FILE"));
            ensure!(!ours || read || name.ends_with('_'), "{page}: nobody reads {name}");
            checked += usize::from(ours);
        }
    }
    ensure!(checked > 50, "only {checked} variables were found");
    Ok(())
}

#[test]
fn the_worker_shown_in_the_readme_is_the_one_that_compiles() -> Result<()> {
    let example = fs::read_to_string(root().join("sdk/rust/examples/echo_worker.rs"))?;
    let code = example.split_once("\n\n").context("no module doc")?.1.trim();
    let readme = fs::read_to_string(root().join("README.md"))?;
    ensure!(readme.contains(code), "README.md shows another worker than sdk/rust/examples/echo_worker.rs");
    Ok(())
}

#[test]
fn the_pages_of_settings_and_loops_are_what_the_services_say() -> Result<()> {
    for (file, flag) in [("settings.md", "--print-reference"), ("loops.md", "--print-loops")] {
        let page = fs::read_to_string(root().join("docs/reference").join(file))?;
        for service in ["muster-gateway", "muster-scheduler", "muster-workflow"] {
            let said = Command::new(bin(service)).arg(flag).output()?;
            ensure!(said.status.success(), "{service} does not know {flag}");
            let table = String::from_utf8(said.stdout)?;
            ensure!(page.contains(table.trim()), "docs/reference/{file} is stale for {service}: run `make docs`");
        }
    }
    Ok(())
}

#[test]
fn every_metric_is_explained() -> Result<()> {
    let source = fs::read_to_string(root().join("crates/telemetry/src/metrics/catalogue.rs"))?;
    let page = fs::read_to_string(root().join("docs/operate.md"))?;
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let names: BTreeSet<&str> = code.split('"').filter(|word| word.starts_with("muster_")).collect();
    ensure!(names.len() > 10, "the catalogue could not be read");
    for name in names {
        ensure!(page.contains(&format!("`{name}")), "docs/operate.md does not explain {name}");
    }
    Ok(())
}

#[test]
fn the_index_of_errors_lists_every_page() -> Result<()> {
    let index = fs::read_to_string(root().join("docs/errors/README.md"))?;
    let mut all = Vec::new();
    pages(&root().join("docs/errors"), &mut all)?;
    for page in all {
        let name = page.file_name().context("no name")?.to_string_lossy().into_owned();
        ensure!(name == "README.md" || index.contains(&format!("({name})")), "docs/errors/README.md misses {name}");
    }
    Ok(())
}
