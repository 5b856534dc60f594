//! Addresses inside a run: which step, in which item, attempt and iteration.
//!
//! A step that stands inside a for-each, a loop or a scope that is retried exists more than once. Its [`Place`] is the
//! step and one number for each of those around it, from the outside in: the item of a for-each, the attempt of a
//! scope with retries (1 is the first), the iteration of a loop (0 is the first). A step with a for-each of its own has
//! two kinds of places: the step as a whole, and one more number for each item.

/// The address of a step, an item or an iteration's step. Numbers of steps are those of the [`Plan`](super::Plan).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The number of the step.
    pub(crate) node: usize,
    /// Items, attempts and iterations, from the outside in.
    pub(crate) at: Vec<u32>,
}

impl Place {
    /// The place of a step.
    pub(crate) fn new(node: usize, at: &[u32]) -> Place {
        Place { node, at: at.to_vec() }
    }

    /// The place with one more number.
    pub(crate) fn with(&self, number: u32) -> Place {
        let mut at = Vec::with_capacity(self.at.len() + 1);
        at.extend_from_slice(&self.at);
        at.push(number);
        Place { node: self.node, at }
    }
}

/// The address of a scope: a graph of steps in one item, attempt and iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Inside {
    /// The number of the scope.
    pub(crate) scope: usize,
    /// Items, attempts and iterations, from the outside in.
    pub(crate) at: Vec<u32>,
}
