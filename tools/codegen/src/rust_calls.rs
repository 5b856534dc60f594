//! The typed Rust call of every script: a struct with a field per argument, and a reply with a
//! field per returned value.

use std::fmt::Write;

use crate::script::{Field, Kind, Packed, Part, Script};

fn pascal(name: &str) -> String {
    name.split('_').fold(String::new(), |out, part| {
        let mut chars = part.chars();
        out + &chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default() + chars.as_str()
    })
}

/// The type of a field of the call, or of the reply, of this name.
fn rust_type(call: &str, field: &Field) -> String {
    match field.kind {
        Kind::U64 => "u64".into(),
        Kind::I64 => "i64".into(),
        Kind::Bytes | Kind::Optional => "Vec<u8>".into(),
        Kind::List => "Vec<Vec<u8>>".into(),
        Kind::Packed => format!("{call}{}", pascal(&field.name)),
    }
}

fn field(out: &mut String, name: &str, doc: &str, rust_type: &str) {
    let doc = if doc.is_empty() { name.replace('_', " ") } else { doc.to_owned() };
    let _ = writeln!(out, "        /// {doc}\n        pub(crate) {name}: {rust_type},");
}

fn fields(out: &mut String, call: &str, fields: &[Field]) {
    for f in fields {
        field(out, &f.name, &f.doc, &rust_type(call, f));
    }
}

/// A struct with a field per packed value, and its bytes in the order in which the script unpacks them.
fn packed(out: &mut String, s: &Script, arg: &Field) {
    let name = rust_type(&pascal(&s.verb), arg);
    let _ = writeln!(out, "\n    /// `{}` of `{}/{}`.\n    pub(crate) struct {name} {{", arg.name, s.noun, s.verb);
    for packed in &arg.parts {
        field(out, &packed.name, &packed.doc, packed.part.rust_type());
    }
    let _ = writeln!(out, "    }}\n\n    impl {name} {{\n        fn to_bytes(&self) -> Vec<u8> {{");
    out.push_str("            let parts: &[&[u8]] = &[\n");
    for Packed { name, part, .. } in &arg.parts {
        let bytes = if matches!(part, Part::Bytes8) { "" } else { ".to_be_bytes()" };
        let _ = writeln!(out, "                &self.{name}{bytes},");
    }
    out.push_str("            ];\n");
    out.push_str("            parts.concat()\n        }\n    }\n");
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
    fields(out, &name, &s.args);
    let _ =
        writeln!(out, "    }}\n\n    /// What `{}/{}` answers.\n    pub(crate) struct {name}Reply {{", s.noun, s.verb);
    fields(out, &name, &s.rets);
    let _ = writeln!(out, "    }}\n\n    impl Script for {name} {{\n        type Reply = {name}Reply;\n");
    out.push_str("        fn into_command(self) -> Command {\n");
    let (optional, given): (Vec<_>, Vec<_>) = s.args.iter().partition(|a| a.kind == Kind::Optional);
    let arg = |a: &&Field| match a.kind {
        Kind::List => format!("\n                .arg(&self.{})", a.name),
        Kind::Packed => format!("\n                .arg(self.{}.to_bytes())", a.name),
        _ => format!("\n                .arg(self.{})", a.name),
    };
    let mut args: String = given.iter().map(arg).collect();
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
                Kind::Bytes | Kind::Optional | Kind::Packed => "bytes",
                Kind::List => "list",
            };
            format!("{}: reply.{read}()?", r.name)
        })
        .collect();
    let _ = writeln!(out, "            Ok({name}Reply {{ {} }})\n        }}\n    }}", values.join(", "));
    for arg in s.args.iter().filter(|arg| arg.kind == Kind::Packed) {
        packed(out, s, arg);
    }
}
