//! Whether a worker works or is on its way out.

use tokio::time::Instant;

/// Where a worker is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not on its way out.
    Working,
    /// What runs may finish, until this moment.
    Draining { until: Instant },
    /// Handlers were told to stop; at this moment their attempts are released all the same.
    Leaving { until: Instant },
    /// Nothing runs that counts; waits for `settled`, until this moment.
    Settling { until: Instant },
}
