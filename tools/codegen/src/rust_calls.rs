//! The typed Rust call of every script: a struct with a field per argument, and a reply with a
//! field per returned value.

use std::fmt::Write;

use crate::script::{Field, Kind, Script};

fn pascal(name: &str) -> String {
    name.split('_').fold(String::new(), |out, part| {
        let mut chars = part.chars();
        out + &chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default() + chars.as_str()
    })
}

fn rust_type(kind: Kind) -> &'static str {
    match kind {
        Kind::U64 => "u64",
        Kind::I64 => "i64",
        Kind::Bytes | Kind::Optional => "Vec<u8>",
        Kind::List => "Vec<Vec<u8>>",
    }
}

fn fields(out: &mut String, fields: &[Field], indent: &str) {
    for f in fields {
        let doc = if f.doc.is_empty() { f.name.replace('_', " ") } else { f.doc.clone() };
        let _ = writeln!(out, "{indent}/// {doc}\n{indent}pub(crate) {}: {},", f.name, rust_type(f.kind));
    }
}

pub(crate) fn render(scripts: &[Script]) -> String {
    let mut out = String::from(
        "//! The typed call of every script in `lua/`.\n\
         //!\n\
         //! @generated from the headers in `lua/` by muster-codegen. Do not edit.\n\n",
    );
    let mut nouns: Vec<&str> = scripts.iter().map(|s| s.noun.as_str()).collect();
    nouns.dedup();
    out.push_str("/// Every script, for loading and for the tests that go over all of them.\n");
    out.push_str("pub(crate) const ALL: &[&crate::router::ScriptSource] = &[\n");
    for s in scripts {
        let _ = writeln!(out, "    &{}::{},", s.noun, s.verb.to_uppercase());
    }
    out.push_str("];\n");
    for noun in nouns {
        let _ = write!(
            out,
            "\n/// Scripts on a {noun}.\npub(crate) mod {noun} {{\n    \
             use crate::{{\n        StoreError,\n        keys::Key,\n        router::{{Command, ScriptSource}},\n        \
             script::{{Replied, Script}},\n    }};\n"
        );
        for s in scripts.iter().filter(|s| s.noun == noun) {
            call(&mut out, s);
        }
        out.push_str("}\n");
    }
    out
}

fn call(out: &mut String, s: &Script) {
    let (name, source) = (pascal(&s.verb), s.verb.to_uppercase());
    let _ = writeln!(out, "\n    /// The source of `{}/{}`.", s.noun, s.verb);
    let _ = writeln!(
        out,
        "    pub(crate) static {source}: ScriptSource = ScriptSource::new(\n        \"{}/{}\",\n        r#\"{}\"#,\n    );\n",
        s.noun, s.verb, s.body
    );
    for line in &s.doc {
        let _ = writeln!(out, "    /// {line}");
    }
    let _ = writeln!(out, "    pub(crate) struct {name} {{\n        /// {}\n        pub(crate) key: Key,", s.key);
    fields(out, &s.args, "        ");
    let _ =
        writeln!(out, "    }}\n\n    /// What `{}/{}` answers.\n    pub(crate) struct {name}Reply {{", s.noun, s.verb);
    fields(out, &s.rets, "        ");
    let _ = writeln!(out, "    }}\n\n    impl Script for {name} {{\n        type Reply = {name}Reply;\n");
    out.push_str("        fn into_command(self) -> Command {\n");
    let (optional, given): (Vec<_>, Vec<_>) = s.args.iter().partition(|a| a.kind == Kind::Optional);
    let mut args: String = given
        .iter()
        .map(|a| format!("\n                .arg({}self.{})", if a.kind == Kind::List { "&" } else { "" }, a.name))
        .collect();
    if !optional.is_empty() {
        let names: Vec<String> = optional.iter().map(|a| format!("self.{}", a.name)).collect();
        let _ = write!(args, "\n                .optional(&[{}])", names.join(", "));
    }
    let _ = writeln!(out, "            Command::script(&{source}, self.key.as_bytes()){args}\n        }}\n");
    out.push_str("        fn decode(reply: redis::Value) -> Result<Self::Reply, StoreError> {\n");
    let _ = writeln!(out, "            let mut reply = Replied::new(reply, {})?;", s.rets.len());
    let values: Vec<String> = s
        .rets
        .iter()
        .map(|r| {
            let read = match r.kind {
                Kind::U64 => "u64",
                Kind::I64 => "i64",
                Kind::Bytes | Kind::Optional => "bytes",
                Kind::List => "list",
            };
            format!("{}: reply.{read}()?", r.name)
        })
        .collect();
    let _ = writeln!(out, "            Ok({name}Reply {{ {} }})\n        }}\n    }}", values.join(", "));
}
