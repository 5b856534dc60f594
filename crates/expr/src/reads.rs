//! Which values an expression may look up.

use std::collections::BTreeSet;

use crate::tree::{Kind, Node};

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

    /// These reads and others.
    pub fn extend(&mut self, other: &Reads) {
        for path in &other.0 {
            self.add(path.clone());
        }
    }

    /// What a tree reads.
    pub(crate) fn of(node: &Node) -> Reads {
        let mut reads = Reads::default();
        reads.node(node);
        reads
    }

    fn node(&mut self, node: &Node) {
        let path = match &node.kind {
            Kind::Has { of, name } => of.path().map(|path| [path, vec![name]].concat()),
            _ => node.path(),
        };
        match path {
            Some(path) => self.add(path.into_iter().map(str::to_owned).collect()),
            // The variable of a macro stands for elements of what the macro goes through, which is read as a whole.
            None if matches!(node.kind, Kind::Local { .. }) => {}
            None => node.parts().into_iter().for_each(|part| self.node(part)),
        }
    }

    fn add(&mut self, path: Vec<String>) {
        if (1..=path.len()).any(|n| self.0.contains(&path[..n])) {
            return;
        }
        self.0.retain(|known| !known.starts_with(&path));
        self.0.insert(path);
    }
}
