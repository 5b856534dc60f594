//! Which values an expression may look up.

use std::collections::BTreeSet;

/// The paths that an expression reads: a name, then fields, as far as they are known before it runs. Reading a path
/// includes everything below it. No path of the set is below another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads(BTreeSet<Vec<String>>);

impl Reads {
    /// The paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &[String]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The first parts of the paths, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|path| path.first()).map(String::as_str).collect::<BTreeSet<_>>().into_iter()
    }

    /// Whether nothing is read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the value at `path`, something below it, or something that holds it is read.
    pub fn touches(&self, path: &[&str]) -> bool {
        self.0.iter().any(|read| read.iter().zip(path).all(|(a, b)| a == b))
    }
}
