//! The memory that all request bodies in flight may hold together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use muster_domain::ProblemCode;

use crate::problem::Problem;

/// The most bytes that all requests in flight may hold together.
const MOST_HELD: usize = 256 * 1024 * 1024;

/// The number of bytes held, shared by all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

/// The bytes that one request holds. Dropping it returns them to the budget.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    /// Reserves bytes for one request.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Held, Problem> {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let held = Held { budget: self.clone(), bytes };
        if before.saturating_add(bytes) > MOST_HELD {
            return Err(Problem::new(ProblemCode::Overloaded, "too many large requests are in flight"));
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_requests_hold_is_bounded_and_given_back() {
        let budget = Budget::default();
        let held = budget.hold(MOST_HELD - 10).unwrap();
        assert_eq!(budget.hold(11).unwrap_err().code, ProblemCode::Overloaded);
        assert!(budget.hold(10).is_ok());
        drop(held);
        assert!(budget.hold(MOST_HELD).is_ok());
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }
}
