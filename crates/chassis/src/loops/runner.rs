//! The life of one loop: wait for the lease, tick, sleep until there is a reason for the next tick.

use std::{future::Future, sync::Arc, time::Duration};

use muster_telemetry::{Counter, Gauge, Panicked, caught, count, set};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Budget, Counts, Leadership, Loop, entry::Entry};

/// How often a loop without a lease asks again, in case a change was missed.
const STANDBY_LOOK: Duration = Duration::from_secs(1);
/// How often a running tick's lease is checked, in case a change was missed.
const LEASE_LOOK: Duration = Duration::from_millis(250);
/// The first pause after a failed tick; doubles up to the interval. Hints wait for the pause, so that a loop that fails
/// at once cannot spin.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// How long giving up the lease may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// How a tick ended.
enum Outcome {
    Done(Counts),
    Overrun(Counts),
    CutOff,
    Failed(anyhow::Error),
    Panicked,
    LeaseLost,
}

impl Outcome {
    const fn name(&self) -> &'static str {
        match self {
            Outcome::Done(_) => "ok",
            Outcome::Overrun(_) | Outcome::CutOff => "overrun",
            Outcome::Failed(_) => "error",
            Outcome::Panicked => "panic",
            Outcome::LeaseLost => "lease_lost",
        }
    }
}

pub(super) async fn run<L: Loop>(
    mut body: L,
    leadership: Arc<impl Leadership<Lease = L::Lease>>,
    entry: Arc<Entry>,
    stop: CancellationToken,
) {
    let mut failures = 0;
    show_leader::<L>(false);
    while let Some(lease) = wait_for_lease(&mut body, &*leadership, &entry, &stop).await {
        entry.waker.begin();
        entry.tick_begins();
        let began = Instant::now();
        let outcome = tick(&mut body, &lease, &*leadership, &stop).await;
        failures = match &outcome {
            Outcome::Done(_) | Outcome::Overrun(_) | Outcome::LeaseLost => 0,
            Outcome::CutOff | Outcome::Failed(_) | Outcome::Panicked => failures + 1,
        };
        let due = record::<L>(&entry, outcome, began.elapsed());
        sleep::<L, _>(&*leadership, &entry, &stop, due, failures).await;
    }
    if tokio::time::timeout(RELEASE_LIMIT, leadership.release()).await.is_err() {
        warn!(event = "release_late", r#loop = L::NAME, "the lease was not released in time; it will expire");
    }
    if entry.holds(false) {
        body.stands_down();
    }
    show_leader::<L>(false);
}

/// The lease, once held; `None` when the process stops.
async fn wait_for_lease<L: Loop>(
    body: &mut L,
    leadership: &impl Leadership<Lease = L::Lease>,
    entry: &Entry,
    stop: &CancellationToken,
) -> Option<L::Lease> {
    while !stop.is_cancelled() {
        if let Some(lease) = leadership.lease().await {
            if entry.holds(true) && L::SAFE.needs_lease() {
                info!(event = "leader", r#loop = L::NAME, "leading");
                show_leader::<L>(true);
            }
            return Some(lease);
        }
        stands_by(body, entry);
        tokio::select! {
            () = stop.cancelled() => {}
            () = leadership.changed() => {}
            () = tokio::time::sleep(STANDBY_LOOK) => {}
        }
    }
    None
}

fn stands_by<L: Loop>(body: &mut L, entry: &Entry) {
    if entry.holds(false) {
        body.stands_down();
        info!(event = "standby", r#loop = L::NAME, "no longer leading");
        show_leader::<L>(false);
    }
}

/// One pass, guarded against panics, overruns and a lost lease.
async fn tick<L: Loop>(
    body: &mut L,
    lease: &L::Lease,
    leadership: &impl Leadership<Lease = L::Lease>,
    stop: &CancellationToken,
) -> Outcome {
    let began = Instant::now();
    let budget = Budget { until: began + L::BUDGET, stop: stop.clone() };
    tokio::select! {
        biased;
        ended = caught(L::NAME, async { body.run_once(lease, budget).await }) => match ended {
            Ok(Ok(counts)) if began.elapsed() > L::BUDGET => Outcome::Overrun(counts),
            Ok(Ok(counts)) => Outcome::Done(counts),
            Ok(Err(fault)) => Outcome::Failed(fault),
            Err(Panicked) => Outcome::Panicked,
        },
        () = lease_lost::<L>(leadership) => Outcome::LeaseLost,
        () = tokio::time::sleep_until(began + 2 * L::BUDGET) => Outcome::CutOff,
    }
}

/// Returns when a leader no longer leads; never returns for other loops.
async fn lease_lost<L: Loop>(leadership: &impl Leadership<Lease = L::Lease>) {
    if !L::SAFE.needs_lease() {
        return std::future::pending().await;
    }
    loop {
        tokio::select! {
            () = leadership.changed() => {}
            () = tokio::time::sleep(LEASE_LOOK) => {}
        }
        if leadership.lease().await.is_none() {
            return;
        }
    }
}

/// Records the outcome in metrics, log and `/loops`; returns when the loop's own next work is due.
fn record<L: Loop>(entry: &Entry, outcome: Outcome, took: Duration) -> Option<Duration> {
    let name = outcome.name();
    count(Counter::LoopTicks, &[("loop", L::NAME), ("outcome", name)], 1);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let (counts, error) = match outcome {
        Outcome::Done(counts) => {
            debug!(event = "loop_tick", r#loop = L::NAME, took_ms, counts = ?counts.items, "tick");
            (counts, None)
        }
        Outcome::Overrun(counts) => {
            warn!(event = "loop_overrun", r#loop = L::NAME, took_ms, "a tick took longer than its budget");
            (counts, None)
        }
        Outcome::CutOff => {
            warn!(event = "loop_cut_off", r#loop = L::NAME, took_ms, "a tick took twice its budget and was cancelled");
            (Counts::none(), Some("cancelled at twice its budget".to_owned()))
        }
        Outcome::Failed(fault) => {
            let detail = format!("{fault:#}");
            warn!(event = "loop_failed", r#loop = L::NAME, took_ms, detail, "a tick failed");
            (Counts::none(), Some(detail))
        }
        Outcome::Panicked => (Counts::none(), Some("panicked; see the log".to_owned())),
        Outcome::LeaseLost => {
            warn!(event = "loop_lease_lost", r#loop = L::NAME, took_ms, "a tick was cancelled: the lease is lost");
            (Counts::none(), Some("cancelled: the lease is lost".to_owned()))
        }
    };
    let due = counts.next_due;
    entry.tick_ended(name, took, counts, error);
    due
}

/// Sleeps until the interval, due work or a hint; wakes early when the lease is lost.
async fn sleep<L: Loop, P: Leadership<Lease = L::Lease>>(
    leadership: &P,
    entry: &Entry,
    stop: &CancellationToken,
    due: Option<Duration>,
    failures: u32,
) {
    let interval = jittered(entry.interval);
    if failures > 0 {
        let pause = FAILURE_PAUSE.saturating_mul(1 << failures.min(16)).min(interval);
        // If this replica no longer leads, show that at once instead of resting as a leader.
        let rested = async {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = lost(leadership) => {}
            }
        };
        unless_stopped(stop, rested).await;
    }
    let latest = Instant::now() + due.map_or(interval, |due| due.min(interval));
    entry.next_tick(latest);
    let reason = async {
        tokio::select! {
            () = entry.waker.due(latest) => {}
            () = lost(leadership) => {}
        }
    };
    unless_stopped(stop, reason).await;
    // A loop that is always due must not starve its thread.
    tokio::task::yield_now().await;
}

/// Returns when this replica is without the lease: already, or after a change. Check first: a tick that was cut off has
/// consumed the change, and there may be no other. Also returns when the parts of a lease have changed.
async fn lost<S: Leadership>(leadership: &S) {
    while leadership.lease().await.is_some() {
        leadership.changed().await;
        if S::TICKS_ON_CHANGE {
            return;
        }
    }
}

async fn unless_stopped(stop: &CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// The interval plus or minus a tenth, so that replicas do not tick in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

fn show_leader<L: Loop>(leads: bool) {
    if L::SAFE.needs_lease() {
        set(Gauge::Leader, &[("loop", L::NAME)], f64::from(u8::from(leads)));
    }
}
