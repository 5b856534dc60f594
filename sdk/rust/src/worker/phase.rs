//! Whether a worker works or is on its way out.

use tokio::time::Instant;

/// The phase of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The worker takes work.
    Working,
    /// The worker takes no more work; its handlers may finish until this moment.
    Draining { until: Instant },
    /// Handlers were asked to stop; at this moment their attempts are released even if they still run.
    Leaving { until: Instant },
    /// No handler runs whose outcome counts; the worker waits for `settled` until this moment.
    Settling { until: Instant },
}
