//! How long acts took before a fault, during it and after it, and how long they may take.

use std::time::{Duration, Instant};

use muster_store::LEADER_TTL;
use tokio::time::{sleep, sleep_until};

use super::{
    Fault, Sick,
    acts::{ACTS, Act},
};

/// How long the load runs before the first fault.
pub const BEFORE: Duration = Duration::from_secs(8);
/// How long it runs after each fault.
pub const AFTER: Duration = Duration::from_secs(12);
/// How long a fault lasts.
pub const DURING: Duration = Duration::from_secs(10);
/// The same for a fault of the replica that leads: its locks run out meanwhile.
pub const DURING_LED: Duration = LED.saturating_add(Duration::from_secs(4));
/// Once the fault has lasted, or is over, for so long, acts take hardly longer than normal.
const SETTLED: Duration = Duration::from_secs(5);
const HARDLY: Duration = Duration::from_millis(500);
/// No act takes longer than normal by more than this.
const LATE: Duration = Duration::from_secs(3);
/// The same where only a leader acts and the sick replica leads: its lock may have to run out first.
const LED: Duration = LEADER_TTL.saturating_add(Duration::from_secs(2));
/// Fewer acts of a kind say nothing.
const FEWEST: usize = 4;

/// One act: when it began, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// What it was.
    pub act: Act,
    /// When it began.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}

/// When a fault began and ended.
#[derive(Clone, Debug)]
pub struct Span {
    /// Printed with the times.
    pub name: String,
    /// The begin of the fault.
    pub began: Instant,
    /// The end of the fault.
    pub ended: Instant,
}

/// Has the scheduler fall sick and recover, once for each fault, with time before the first one and after each. Where
/// a fault makes it stand down, its admin port must say so while the fault lasts. After each fault it must be ready
/// again within the time that acts have to become normal.
pub async fn fall_and_recover(sick: &Sick, faults: &[Fault], lasts: Duration) -> Vec<Span> {
    sleep(BEFORE).await;
    let mut spans = Vec::new();
    for fault in faults.iter().copied() {
        let stood_down = match fault.reason() {
            Some(reason) => Some((reason, sick.times_stood_down(reason).await)),
            None => None,
        };
        let began = Instant::now();
        sick.falls(fault).await;
        sleep_until((began + SETTLED).into()).await;
        if let Some((reason, before)) = stood_down {
            sick.has_stood_down(reason, before).await;
        }
        sleep_until((began + lasts).into()).await;
        let ended = Instant::now();
        sick.recovers(fault).await;
        sleep_until((ended + SETTLED).into()).await;
        assert!(sick.is_ready().await, "{fault:?}: ready {SETTLED:?} after its end");
        sleep_until((ended + AFTER).into()).await;
        spans.push(Span { name: format!("{fault:?}"), began, ended });
    }
    spans
}

/// How long the acts of one kind took around one fault.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// p99 before the first fault.
    pub normal: Duration,
    /// The slowest act of those that were under way when the fault began, or began later.
    pub slowest: Duration,
    /// p99 once the fault has lasted for a while.
    pub sick: Duration,
    /// p99 once it has been over for a while.
    pub well: Duration,
}

impl Times {
    /// The times of an act around the `nth` fault, which counts as settled after `settled`.
    pub fn of(all: &[Took], spans: &[Span], nth: usize, act: Act, settled: Duration) -> Times {
        let (span, lead) = (&spans[nth], act.under_way());
        let begins = |n: usize| spans.get(n).map(|span| span.began - lead);
        let within = |from: Option<Instant>, to: Option<Instant>| {
            let fits =
                |t: &&Took| t.act == act && from.is_none_or(|from| t.at >= from) && to.is_none_or(|to| t.at < to);
            let mut took: Vec<Duration> = all.iter().filter(fits).map(|t| t.took).collect();
            took.sort_unstable();
            assert!(took.len() >= FEWEST, "{}, {act:?}: {} acts are too few to judge by", span.name, took.len());
            took
        };
        let (began, ended) = (span.began + settled, span.ended + SETTLED);
        Times {
            normal: p99(&within(None, begins(0))),
            slowest: within(begins(nth), begins(nth + 1)).pop().unwrap_or_default(),
            sick: p99(&within(Some(began), Some(span.ended))),
            well: p99(&within(Some(ended), begins(nth + 1))),
        }
    }
}

/// The p99 of sorted times. It is never the single worst of them: of fewer than a hundred that would be the p99, and
/// one hiccup of the machine would decide. The worst is judged as the slowest.
fn p99(took: &[Duration]) -> Duration {
    took[((took.len() * 99).div_ceil(100) - 1).min(took.len() - 2)]
}

/// Prints how long each kind of act took around each fault, and fails if one took too long. `leads`: the sick replica
/// led the loops when it fell sick.
pub fn judge(all: &[Took], spans: &[Span], leads: bool) {
    let mut late = Vec::new();
    for (nth, span) in spans.iter().enumerate() {
        for act in ACTS {
            let (bound, settled) = if leads && act.is_led() { (LED, LED) } else { (LATE, SETTLED) };
            let times = Times::of(all, spans, nth, act, settled);
            let Times { normal, slowest, sick, well } = times;
            let said = format!(
                "{}, {act:?}: normal p99 {normal:.0?}, slowest {slowest:.0?}, while sick {sick:.0?}, afterwards {well:.0?}",
                span.name
            );
            eprintln!("{said}");
            let fine = slowest <= normal + bound && sick <= normal + HARDLY && well <= normal + HARDLY;
            if !fine {
                late.push(said);
            }
        }
    }
    assert!(late.is_empty(), "these took too long:\n{}", late.join("\n"));
}
