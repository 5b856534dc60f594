//! The headers of `lua/`: what a caller of a script must know, parsed so that the call can be generated.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::constants;

/// A type that a header may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    U64,
    I64,
    Bytes,
    /// An argument that is left out if it and all following ones are empty; the script reads `ARGV[n] or ''`.
    Optional,
    /// The rest of the arguments, or a nested array of the reply.
    List,
    /// Several values in one argument, since every argument costs; named by the `@pack` lines below it.
    Packed,
}

/// A value inside of a packed argument.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    U8,
    U16,
    U32,
    U64,
    I64,
    Bytes8,
}

impl Part {
    /// The format that `struct.unpack` reads, after a `>`.
    fn letter(self) -> &'static str {
        match self {
            Part::U8 => "B",
            Part::U16 => "I2",
            Part::U32 => "I4",
            Part::U64 => "I8",
            Part::I64 => "i8",
            Part::Bytes8 => "c8",
        }
    }

    /// The Rust type.
    pub(crate) fn rust_type(self) -> &'static str {
        match self {
            Part::U8 => "u8",
            Part::U16 => "u16",
            Part::U32 => "u32",
            Part::U64 => "u64",
            Part::I64 => "i64",
            Part::Bytes8 => "[u8; 8]",
        }
    }
}

/// A named value inside of a packed argument.
pub(crate) struct Packed {
    pub(crate) name: String,
    pub(crate) part: Part,
    pub(crate) doc: String,
}

/// A named value.
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) doc: String,
    /// The values in the argument, if it is packed.
    pub(crate) parts: Vec<Packed>,
}

/// One script, ready to be embedded.
pub(crate) struct Script {
    /// Its folder: the object that it acts on.
    pub(crate) noun: String,
    /// Its file: the action.
    pub(crate) verb: String,
    pub(crate) doc: Vec<String>,
    pub(crate) key: String,
    pub(crate) args: Vec<Field>,
    pub(crate) rets: Vec<Field>,
    /// With includes expanded, constants replaced and comments removed.
    pub(crate) body: String,
}

/// Every script below `lua`, in order. Files without `@key` are includes.
pub(crate) fn read_all(lua: &Path, table: &str) -> Result<Vec<Script>> {
    let mut files = BTreeMap::new();
    for dir in fs::read_dir(lua)?.collect::<Result<Vec<_>, _>>()? {
        for file in fs::read_dir(dir.path())?.collect::<Result<Vec<_>, _>>()? {
            let path: PathBuf = file.path();
            let name = path.strip_prefix(lua)?.with_extension("").to_string_lossy().into_owned();
            files.insert(name, fs::read_to_string(&path)?);
        }
    }
    files.insert("job/table".into(), table.to_owned());
    let scripts = files.iter().filter(|(_, text)| text.lines().any(|l| l.starts_with("-- @key ")));
    scripts.map(|(name, text)| parse(name, text, &files).with_context(|| format!("lua/{name}.lua"))).collect()
}

fn parse(name: &str, text: &str, files: &BTreeMap<String, String>) -> Result<Script> {
    let (noun, verb) = name.split_once('/').context("scripts live in lua/<noun>/<verb>.lua")?;
    let mut script = Script {
        noun: noun.into(),
        verb: verb.into(),
        doc: vec![],
        key: String::new(),
        args: vec![],
        rets: vec![],
        body: String::new(),
    };
    for line in text.lines().take_while(|l| l.starts_with("--")) {
        let line = line.trim_start_matches("--").trim();
        match line.split_once(' ') {
            Some(("@key", rest)) => {
                ensure!(script.key.is_empty(), "a script takes exactly one key");
                script.key = rest.split_whitespace().next().context("@key needs a name")?.into();
            }
            Some(("@arg", rest)) => script.args.push(field(rest)?),
            Some(("@pack", rest)) => {
                let holder = script.args.last_mut().filter(|arg| arg.kind == Kind::Packed);
                holder.context("@pack belongs below a packed argument")?.parts.push(packed(rest)?);
            }
            Some(("@ret", rest)) => script.rets.push(field(rest)?),
            Some(("@include", rest)) => script.body.push_str(&code(files.get(rest).context("no such include")?)),
            _ if line.starts_with('@') => bail!("unknown header line: {line}"),
            _ => script.doc.push(line.strip_prefix(&format!("{name}: ")).unwrap_or(line).into()),
        }
    }
    for arg in script.args.iter().filter(|arg| arg.kind == Kind::Packed) {
        ensure!(!arg.parts.is_empty(), "nothing is packed into {}", arg.name);
        let letters: String = arg.parts.iter().map(|packed| packed.part.letter()).collect();
        script.body.push_str(&format!("local {} = '>{letters}'\n", arg.name.to_uppercase()));
    }
    script.body.push_str(&code(&with_includes(text, files)?));
    script.body = constants::in_place(&script.body);
    let lists = script.args.iter().filter(|a| a.kind == Kind::List).count();
    ensure!(
        lists == 0 || (lists == 1 && script.args.last().is_some_and(|a| a.kind == Kind::List)),
        "a list comes last"
    );
    let optional = |f: &Field| f.kind == Kind::Optional;
    ensure!(script.args.iter().skip_while(|a| !optional(a)).all(optional), "what may be left out comes last");
    ensure!(!script.rets.iter().any(optional), "a reply is never left out");
    ensure!(!script.rets.iter().any(|r| r.kind == Kind::Packed), "only arguments are packed by name");
    ensure!(!script.rets.is_empty(), "a script says what it returns");
    ensure!(script.body.contains("KEYS[1]"), "the key is not used");
    ensure!(!script.body.contains("KEYS[2]"), "every script takes exactly one key");
    let computed =
        script.body.lines().find(|l| l.contains("redis.call(") && !l.contains("KEYS[1]") && !l.contains("'TIME'"));
    ensure!(computed.is_none(), "touches something else than its key: {computed:?}");
    Ok(script)
}

/// Parses `name: type  what it is`.
fn named(text: &str) -> Result<(String, &str, String)> {
    let (name, rest) = text.split_once(':').context("expected `name: type`")?;
    let (kind, doc) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
    Ok((name.trim().into(), kind, doc.trim().into()))
}

fn packed(text: &str) -> Result<Packed> {
    let (name, part, doc) = named(text)?;
    let part = match part {
        "u8" => Part::U8,
        "u16" => Part::U16,
        "u32" => Part::U32,
        "u64" => Part::U64,
        "i64" => Part::I64,
        "bytes8" => Part::Bytes8,
        other => bail!("nothing of type {other} can be packed"),
    };
    Ok(Packed { name, part, doc })
}

fn field(text: &str) -> Result<Field> {
    let (name, kind, doc) = named(text)?;
    let kind = match kind {
        "u64" => Kind::U64,
        "i64" => Kind::I64,
        "bytes" => Kind::Bytes,
        "bytes?" => Kind::Optional,
        "list<bytes>" => Kind::List,
        "packed" => Kind::Packed,
        other => bail!("unknown type {other}"),
    };
    Ok(Field { name, kind, doc, parts: vec![] })
}

/// The text without its header, with each include expanded in place: code that only some calls need is executed only
/// by them.
fn with_includes(text: &str, files: &BTreeMap<String, String>) -> Result<String> {
    let mut out = String::new();
    for line in text.lines().skip_while(|l| l.starts_with("--")) {
        match line.trim_start().strip_prefix("-- @include ") {
            Some(name) => out.push_str(files.get(name).context("no such include")?),
            None => out.push_str(&format!("{line}\n")),
        }
    }
    Ok(out)
}

fn code(text: &str) -> String {
    let lines = text.lines().filter(|l| !l.trim_start().starts_with("--") && !l.trim().is_empty());
    lines.fold(String::new(), |out, line| out + line + "\n")
}
