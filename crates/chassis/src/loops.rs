//! Periodic loops: how each is safe with n replicas, and what it last did.
//!
//! This module decides when a loop ticks (at start, by timer, by hint, when its next work is due) and whether it may
//! (its [`Leadership`]). Two ticks of a loop never run at once in this process. A panic or an overrun is recorded, and
//! the loop continues. A leader's tick cannot run without a lease, and is cut off when the lease is lost. A stop lets
//! the running tick end and then gives up the lease. A loop that is registered and not started fails readiness. The
//! store has the lease protocol; the loops must make writes that stay correct when a paused leader wakes up.

mod declared;
mod entry;
mod registry;
mod runner;
mod waker;

use std::{future::Future, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use declared::{Declared, interval, reference, with_loops};
pub use registry::{Registry, Slot};
pub use waker::Waker;

/// One periodic task of a service.
pub trait Loop: Send + 'static {
    /// The loop's name in metrics, `/loops` and hints.
    const NAME: &'static str;
    /// The loop's name in the setting of its interval, `MUSTER_LOOP_<WORD>_INTERVAL`.
    const SETTING: &'static str = Self::NAME;
    /// The default of that setting: how often the loop ticks when nothing wakes it.
    const EVERY: &'static str = "5s";
    /// How the loop is safe when every replica has one.
    const SAFE: Safety;
    /// How long a tick should take at most. A longer tick is recorded as an overrun; a tick that takes twice as long is
    /// cut off.
    const BUDGET: Duration = Duration::from_secs(10);
    /// What a tick must hold: the store's lease for leaders, `()` for all other loops.
    type Lease: Clone + Send + Sync + 'static;

    /// One pass. Repeating a pass must be harmless: this is also how the loop recovers.
    fn run_once(&mut self, lease: &Self::Lease, budget: Budget) -> impl Future<Output = anyhow::Result<Counts>> + Send;

    /// Called when this replica no longer leads, or stops: withdraws what only a leader may show.
    fn stands_down(&mut self) {}
}

/// How a loop is safe with n replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// One replica at a time, by a lease.
    Leader {
        /// The lock's name.
        lock: &'static str,
        /// Why the loop stays correct when two replicas believe for a moment that they lead.
        why: &'static str,
        /// What it costs when two replicas lead for a moment.
        duplicate_costs: &'static str,
    },
    /// Every replica runs the loop; a script claims each item.
    Claim {
        /// Why that is safe.
        why: &'static str,
        /// What it costs when two replicas have the same item.
        duplicate_costs: &'static str,
    },
    /// Every replica runs the loop; repeating is harmless.
    Idempotent {
        /// Why repeating is harmless.
        why: &'static str,
        /// What the repetition costs.
        duplicate_costs: &'static str,
    },
}

impl Safety {
    /// The name of the class.
    pub const fn class(self) -> &'static str {
        match self {
            Safety::Leader { .. } => "leader",
            Safety::Claim { .. } => "claim",
            Safety::Idempotent { .. } => "idempotent",
        }
    }

    /// The name of the leader's lock.
    pub const fn lock(self) -> Option<&'static str> {
        match self {
            Safety::Leader { lock, .. } => Some(lock),
            Safety::Claim { .. } | Safety::Idempotent { .. } => None,
        }
    }

    /// Why any number of replicas may run the loop.
    pub const fn why(self) -> &'static str {
        match self {
            Safety::Leader { why, .. } | Safety::Claim { why, .. } | Safety::Idempotent { why, .. } => why,
        }
    }

    /// What it costs when two replicas do the same work.
    pub const fn duplicate_costs(self) -> &'static str {
        match self {
            Safety::Leader { duplicate_costs, .. }
            | Safety::Claim { duplicate_costs, .. }
            | Safety::Idempotent { duplicate_costs, .. } => duplicate_costs,
        }
    }

    /// Whether ticks need a lease.
    pub const fn needs_lease(self) -> bool {
        matches!(self, Safety::Leader { .. })
    }
}

/// Decides whether this replica may tick. Implemented over Redis for leaders, by [`Everyone`] for all other loops.
pub trait Leadership: Send + Sync + 'static {
    /// The proof of leadership that work functions take.
    type Lease: Clone + Send + Sync + 'static;

    /// Whether the loop ticks at once when the lease changes and is still held: for a lease that has parts.
    const TICKS_ON_CHANGE: bool = false;

    /// The lease, while it is held and can still be trusted. Called often: it should be cheap.
    fn lease(&self) -> impl Future<Output = Option<Self::Lease>> + Send;

    /// Returns when the lease may have been won or lost since the call. A missed change costs a second.
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// The holder of the lease, this replica or another, as far as this replica knows. `/loops` shows it, so this call
    /// must not wait.
    fn holder(&self) -> Option<Holder>;

    /// Gives up the lease, so that a successor need not wait for it to expire. May be called without a held lease.
    fn release(&self) -> impl Future<Output = ()> + Send;
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The replica's name.
    pub instance: String,
    /// Grows with every new holder.
    pub fence: u64,
    /// When the lease was granted, in RFC 3339, by the clock of the store that granted it.
    pub since: String,
}

/// Every replica may tick: for claiming and idempotent loops.
pub struct Everyone;

impl Leadership for Everyone {
    type Lease = ();

    async fn lease(&self) -> Option<()> {
        Some(())
    }

    async fn changed(&self) {
        std::future::pending().await
    }

    fn holder(&self) -> Option<Holder> {
        None
    }

    async fn release(&self) {}
}

/// How long a tick may run. A pass checks it between items.
#[derive(Clone)]
pub struct Budget {
    until: Instant,
    stop: CancellationToken,
}

impl Budget {
    /// A budget that ends `span` from now; for calling a loop's pass directly.
    pub fn of(span: Duration) -> Budget {
        Budget { until: Instant::now() + span, stop: CancellationToken::new() }
    }

    /// Whether the time is up or the process is stopping: finish the current item and return.
    pub fn spent(&self) -> bool {
        self.stop.is_cancelled() || Instant::now() >= self.until
    }

    /// The time that is left.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// What a pass did, and when the next pass is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// What was counted, and how many; shown by `/loops`.
    pub items: Vec<(&'static str, u64)>,
    /// When there will be work again, if that is known and sooner than the interval. Zero means at once: the budget ran
    /// out before the work did.
    pub next_due: Option<Duration>,
}

impl Counts {
    /// Nothing done, nothing due.
    pub fn none() -> Counts {
        Counts::default()
    }

    /// Adds to a count. Adding zero makes the count appear in `/loops`.
    pub fn add(&mut self, what: &'static str, n: u64) {
        match self.items.iter_mut().find(|(name, _)| *name == what) {
            Some((_, total)) => *total += n,
            None => self.items.push((what, n)),
        }
    }

    /// Notes that there is work in `span`; the shortest span counts.
    pub fn due_in(&mut self, span: Duration) {
        self.next_due = Some(self.next_due.map_or(span, |due| due.min(span)));
    }
}
