//! What is read, what is refused and where, and what that costs at worst.

mod bombs;
mod examples;
mod faults;
mod random;
mod values;

use super::{Definition, DefinitionFault, Format, read};

/// The order of the documentation, with every kind of statement about a run.
const ORDER: &str = include_str!("tests/order.yaml");
/// Every field of the format at least once.
const EVERYTHING: &str = include_str!("tests/everything.yaml");

fn yaml(text: &str) -> Result<Definition, Vec<DefinitionFault>> {
    read(text.as_bytes(), Format::Yaml)
}

fn told(faults: &[DefinitionFault]) -> String {
    faults.iter().map(|f| format!("{f} [{} {}]\n", f.code, f.pointer)).collect()
}
