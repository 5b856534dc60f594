//! Periodic loops: how each is safe with n replicas, and what it last did.
//!
//! Knows: when a loop ticks (at start, by timer, by hint, when its next work is due) and
//! whether it may (its [`Leadership`]). Promises: never two ticks of a loop at once in this
//! process; a panic or an overrun is recorded and the loop lives on; a tick of a leader
//! cannot be run without a lease, and is cut off when the lease is lost; a stop lets the
//! running tick end and then gives the lease up; a loop that was registered and not started
//! fails readiness. Leaves to others: the lease protocol, and writes that stay right when a
//! paused leader wakes up.

mod declared;
mod registry;
mod runner;
mod waker;

use std::{future::Future, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use declared::{Declared, reference};
pub use registry::{Registry, Slot};
pub use waker::Waker;

/// One periodic job of a service.
pub trait Loop: Send + 'static {
    /// Its name in metrics, `/loops`, hints and settings.
    const NAME: &'static str;
    /// How it is safe when every replica has one.
    const SAFE: Safety;
    /// How long a tick should take at most. One past it is recorded as an overrun, one past
    /// twice that is cut off.
    const BUDGET: Duration = Duration::from_secs(10);
    /// What a tick must hold: the store's lease for leaders, `()` for all others.
    type Lease: Clone + Send + Sync + 'static;

    /// One pass. Repeating it must be harmless: it is also how the loop recovers.
    fn run_once(&mut self, lease: &Self::Lease, budget: Budget) -> impl Future<Output = anyhow::Result<Counts>> + Send;

    /// This replica no longer leads, or stops: what only a leader may show is taken back here.
    fn stands_down(&mut self) {}
}

/// How a loop is safe with n replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// One replica at a time, by a lease.
    Leader {
        /// The lock's name.
        lock: &'static str,
        /// Why it stays right when two believe to lead for a moment.
        why: &'static str,
        /// What that costs.
        duplicate_costs: &'static str,
    },
    /// Every replica, each item claimed by a script.
    Claim {
        /// Why that is safe.
        why: &'static str,
        /// What it costs when two have the same item.
        duplicate_costs: &'static str,
    },
    /// Every replica, harmless when repeated.
    Idempotent {
        /// Why that is harmless.
        why: &'static str,
        /// What the repetition costs.
        duplicate_costs: &'static str,
    },
}

impl Safety {
    /// The class in one word.
    pub const fn class(self) -> &'static str {
        match self {
            Safety::Leader { .. } => "leader",
            Safety::Claim { .. } => "claim",
            Safety::Idempotent { .. } => "idempotent",
        }
    }

    /// The leader's lock.
    pub const fn lock(self) -> Option<&'static str> {
        match self {
            Safety::Leader { lock, .. } => Some(lock),
            Safety::Claim { .. } | Safety::Idempotent { .. } => None,
        }
    }

    /// Why any number of replicas may have it.
    pub const fn why(self) -> &'static str {
        match self {
            Safety::Leader { why, .. } | Safety::Claim { why, .. } | Safety::Idempotent { why, .. } => why,
        }
    }

    /// What it costs when two replicas do the same.
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

/// Who may tick. Implemented over Redis for leaders, by [`Everyone`] for all others.
pub trait Leadership: Send + Sync + 'static {
    /// The proof that work functions take.
    type Lease: Clone + Send + Sync + 'static;

    /// The lease, while it is held and still to be trusted. Asked often: it should be cheap.
    fn lease(&self) -> impl Future<Output = Option<Self::Lease>> + Send;

    /// Returns when the lease may have been won or lost since the call. A miss costs a second.
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// Who holds the lease, this replica or another, as far as is known here; shown by `/loops`, so it
    /// must not wait for anybody.
    fn holder(&self) -> Option<Holder>;

    /// Gives the lease up, so that a successor need not wait for it to expire. May be called
    /// when nothing is held.
    fn release(&self) -> impl Future<Output = ()> + Send;
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The replica's name.
    pub instance: String,
    /// Grows with every new holder.
    pub fence: u64,
    /// Since when, in RFC 3339, by the clock of whoever granted it.
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

/// How long a tick may go on. Ask between items.
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

    /// Time is up, or the process is stopping: finish the item at hand and return.
    pub fn spent(&self) -> bool {
        self.stop.is_cancelled() || Instant::now() >= self.until
    }

    /// What is left of the time.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// What a pass did, and when the next is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How much of what; shown by `/loops`.
    pub items: Vec<(&'static str, u64)>,
    /// When there will be work again, if that is known and sooner than the interval. Zero
    /// means at once: the budget ran out before the work did.
    pub next_due: Option<Duration>,
}

impl Counts {
    /// Nothing done, nothing due.
    pub fn none() -> Counts {
        Counts::default()
    }

    /// Adds to a count, zero included, so that it is shown.
    pub fn add(&mut self, what: &'static str, n: u64) {
        match self.items.iter_mut().find(|(name, _)| *name == what) {
            Some((_, total)) => *total += n,
            None => self.items.push((what, n)),
        }
    }

    /// Notes that there is work in `span`; the soonest counts.
    pub fn due_in(&mut self, span: Duration) {
        self.next_due = Some(self.next_due.map_or(span, |due| due.min(span)));
    }
}
