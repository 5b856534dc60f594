//! What is left of the bounds of an evaluation.

use crate::{EvalError, Limits};

type Done = Result<(), EvalError>;

/// The nodes that may still be evaluated, and the largest result.
#[derive(Debug)]
pub(crate) struct Budget {
    nodes: u64,
    left: u64,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Budget {
        Budget { nodes: limits.nodes, left: limits.nodes, bytes: limits.result_bytes }
    }

    /// Takes nodes from the budget.
    pub(crate) fn take(&mut self, nodes: usize) -> Done {
        match self.left.checked_sub(nodes as u64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(EvalError::Budget(self.nodes))
            }
        }
    }

    /// Takes what it costs to walk through text once.
    pub(crate) fn take_text(&mut self, bytes: usize) -> Done {
        self.take(bytes / 64)
    }

    /// Refuses what is larger than a result may be.
    pub(crate) fn fits(&self, bytes: usize) -> Done {
        if bytes > self.bytes { Err(EvalError::TooLarge(self.bytes)) } else { Ok(()) }
    }

    /// The largest result, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
