//! How long acts took before a fault, during it and after it, and how long they may take.

use std::time::{Duration, Instant};

use muster_store::LEADER_TTL;
use muster_testkit::until;
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
/// How much later the test may learn of what has to happen within [`SETTLED`].
const GRACE: Duration = Duration::from_secs(6);
/// How often a fault is tried. A machine that stands still for a second or two makes acts late now and then; what waits
/// for the sick scheduler is late each time.
pub const TRIES: usize = 3;
/// No act takes longer than normal by more than this.
const LATE: Duration = Duration::from_secs(3);
/// The same where only a leader acts and the sick replica leads: its lock may have to run out first.
const LED: Duration = LEADER_TTL.saturating_add(Duration::from_secs(2));
/// Fewer acts say nothing.
const FEWEST: usize = 4;

/// One act: when it began, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// What it was.
    pub act: Act,
    /// When it began.
    pub at: Instant,
    /// How long it took, without the time in which the machine held up the test.
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
        let reasons = fault.reasons();
        let before = sick.times_stood_down(reasons).await;
        let began = Instant::now();
        sick.falls(fault).await;
        if !reasons.is_empty() {
            let stands_down = async || sick.stands_down().await.then_some(());
            until(SETTLED + GRACE, &format!("it to stand down: {fault:?}"), stands_down).await;
            eprintln!("{fault:?}: it stood down after {:.1?}", began.elapsed());
            let now = sick.times_stood_down(reasons).await;
            assert!(now > before, "{fault:?}: stood down for {reasons:?} {before} times before, {now} times now");
        }
        sleep_until((began + lasts).into()).await;
        let ended = Instant::now();
        sick.recovers(fault).await;
        let is_ready = async || sick.is_ready().await.then_some(());
        until(SETTLED + GRACE, &format!("it to be ready after {fault:?}"), is_ready).await;
        eprintln!("{fault:?}: it was ready {:.1?} after the end", ended.elapsed());
        sleep_until((ended + AFTER).into()).await;
        spans.push(Span { name: format!("{fault:?}"), began, ended });
    }
    spans
}

/// The acts of some kinds around some faults.
#[derive(Clone, Copy)]
struct Measured<'a> {
    all: &'a [Took],
    spans: &'a [Span],
}

impl Measured<'_> {
    /// When acts of this kind may first be under way in the `nth` fault; none after the last fault.
    fn begins(self, nth: usize, act: Act) -> Option<Instant> {
        self.spans.get(nth).map(|span| span.began - act.under_way())
    }

    /// How long the acts of a kind took that began in this time, the slowest last.
    fn within(self, act: Act, from: Option<Instant>, to: Option<Instant>) -> Vec<Duration> {
        let fits = |t: &&Took| t.act == act && from.is_none_or(|from| t.at >= from) && to.is_none_or(|to| t.at < to);
        let mut took: Vec<Duration> = self.all.iter().filter(fits).map(|t| t.took).collect();
        took.sort_unstable();
        took
    }

    /// The p99 of a kind before the first fault.
    fn normal(self, act: Act) -> Duration {
        p99(&self.within(act, None, self.begins(0, act)), 1)
    }

    /// The slowest act of a kind of those that were under way when the `nth` fault began, or began before the next.
    fn slowest(self, nth: usize, act: Act) -> Duration {
        self.within(act, self.begins(nth, act), self.begins(nth + 1, act)).pop().unwrap_or_default()
    }

    /// By how much acts of these kinds took longer than normal for their kind: the p99 of all of them together, because
    /// a kind alone has too few in so short a time.
    fn longer(self, acts: &[Act], from: Instant, to: impl Fn(Act) -> Option<Instant>) -> Duration {
        let longer = |act: &Act| {
            let normal = self.normal(*act);
            let took = self.within(*act, Some(from), to(*act));
            took.into_iter().map(move |took| took.saturating_sub(normal)).collect::<Vec<_>>()
        };
        let mut all: Vec<Duration> = acts.iter().flat_map(longer).collect();
        all.sort_unstable();
        p99(&all, 2)
    }
}

/// The p99 of sorted times. It is never one of so many `worst` of them: with fewer than two hundred, one hiccup of the
/// machine would decide. Those are judged as the slowest.
fn p99(took: &[Duration], worst: usize) -> Duration {
    assert!(took.len() >= FEWEST, "{} acts are too few to judge by", took.len());
    took[((took.len() * 99).div_ceil(100) - 1).min(took.len() - 1 - worst)]
}

/// The slowest act of a kind around the `nth` fault.
pub fn slowest(all: &[Took], spans: &[Span], nth: usize, act: Act) -> Duration {
    Measured { all, spans }.slowest(nth, act)
}

/// Prints how long acts took around each fault. Returns what took too long, with the number of its fault. `leads`: the
/// sick replica led the loops when it fell sick.
pub fn too_long(all: &[Took], spans: &[Span], leads: bool) -> Vec<(usize, String)> {
    let measured = Measured { all, spans };
    let mut late = Vec::new();
    let mut says = |nth: usize, said: String, fine: bool| {
        eprintln!("{said}");
        if !fine {
            late.push((nth, said));
        }
    };
    let (led, others): (Vec<Act>, Vec<Act>) = ACTS.into_iter().partition(|act| leads && act.is_led());
    for (nth, span) in spans.iter().enumerate() {
        for (acts, bound, settled) in [(&others, LATE, SETTLED), (&led, LED, LED)] {
            for act in acts.iter().copied() {
                let (normal, slowest) = (measured.normal(act), measured.slowest(nth, act));
                let said = format!("{}, {act:?}: normal p99 {normal:.0?}, slowest {slowest:.0?}", span.name);
                says(nth, said, slowest <= normal + bound);
            }
            if acts.is_empty() {
                continue;
            }
            let sick = measured.longer(acts, span.began + settled, |_| Some(span.ended));
            let well = measured.longer(acts, span.ended + SETTLED, |act| measured.begins(nth + 1, act));
            let said = format!("{}: p99 above normal {sick:.0?} while sick, {well:.0?} afterwards", span.name);
            says(nth, said, sick <= HARDLY && well <= HARDLY);
        }
    }
    late
}
