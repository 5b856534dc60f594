//! JSON values as arguments: as text, from a file, or from standard input. A value is sent exactly as it was written.

use std::io::Read;

use anyhow::Context;
use serde_json::value::RawValue;

use crate::outcome::Failure;

/// Reads the value of an option from where the argument says, and checks that it is JSON.
pub(super) fn value(option: &str, given: &str) -> anyhow::Result<Box<RawValue>> {
    let text = match given.strip_prefix('@') {
        _ if given == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).with_context(|| format!("cannot read the {option}"))?;
            text
        }
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?,
        None => given.to_owned(),
    };
    RawValue::from_string(text.trim().to_owned()).map_err(|error| {
        Failure::usage(format!("the {option} is not JSON: {error}"))
            .hint(format!("a plain string needs its own quotes: --{option} '\"text\"'"))
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_files_and_must_be_json() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.json");
        std::fs::write(&file, "[1, 2]\n").unwrap();
        assert_eq!(value("payload", &format!("@{}", file.display())).unwrap().get(), "[1, 2]");
        assert!(value("input", "hello").unwrap_err().to_string().contains("the input is not JSON"));
        assert!(value("payload", "").is_err());
    }
}
