//! How many offers of one subject may stand on the bus: pure arithmetic, no clock and no I/O.
//!
//! Knows: the limit, what stands on the stream as far as this replica can tell, how many jobs
//! wait in Redis, how fast offers are started. Promises: the limit stays between the free slots
//! of live workers (8 to 64 of them) and 8,192; offers that grew old before their start narrow it,
//! a subject that ran dry while jobs waited widens it, and one of which nothing was started for a
//! while begins anew: whoever made it wide has left. Leaves to others: measuring (`survey`),
//! publishing and holding (`dispatch`, `backlog`).

use std::time::{Duration, Instant};

use muster_bus::MOST_OFFERS;
use muster_domain::Time;

use crate::crew::Crew;

/// The limit that a subject begins with.
pub(crate) const FIRST_LIMIT: u64 = 32;
/// The limit never falls below so many, however few slots are free.
pub(crate) const LEAST_FLOOR: u64 = 8;
/// So many free slots count towards the floor.
pub(crate) const MOST_FLOOR: u64 = 64;
/// The limit never grows beyond.
pub(crate) const CEILING: u64 = 8_192;
/// An offer should be started within about this time.
pub(crate) const TARGET: Duration = Duration::from_millis(200);
/// After so long without a start nobody knows how fast the next ones will be.
const FORGET: Duration = Duration::from_secs(10);
/// From so many starts a second on, offers share messages.
const HOT_STARTS: u64 = 200;
/// So many share one then, and as many more as are started within [`SHARED_FOR`].
const LEAST_SHARED: usize = 8;
const MOST_SHARED: usize = MOST_OFFERS as usize;
/// Nobody's offer waits longer than this for those that share its message.
const SHARED_FOR: Duration = Duration::from_millis(25);
/// A wait of this long is short: well below the first look at a pending job.
const SHORT_WAIT: Duration = Duration::from_secs(15);
/// Starts are counted over this span to tell whether a subject is hot, or until there were so many that it is.
const METER: Duration = Duration::from_millis(500);
const ENOUGH: u64 = HOT_STARTS * METER.as_millis() as u64 / 1_000;
/// Starts come by the hundred in one answer: no span is shorter.
const LEAST_SPAN: Duration = Duration::from_millis(20);

/// One replica's window onto one subject.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u64,
    floor: u64,
    /// Offers that stand on the stream; an estimate between two counts, so it may dip below zero.
    standing: i64,
    /// Places taken by offers that are on their way to the stream.
    under_way: u64,
    /// Jobs that have an entry in Redis, those that were claimed included.
    waiting: i64,
    /// Entries that this replica has claimed and not yet removed.
    claimed: u64,
    /// The window has been full since the limit last changed: only then does running dry mean
    /// that it was too narrow.
    was_full: bool,
    /// Offers made before this say nothing about the present limit.
    judged_from: Time,
    /// How many offers a message of this subject carries on average.
    per_message: f64,
    /// How many slots a worker has, on average.
    slots_each: u64,
    /// What this replica itself did, ever: a count that takes a while is corrected by it.
    own: Own,
    meter: Meter,
    /// When offers last left the stream, as long as that says something about the limit.
    moved: Option<Instant>,
}

/// Running totals of what this replica did on a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    published: u64,
    consumed: u64,
    queued: u64,
    dequeued: u64,
}

#[derive(Debug)]
struct Meter {
    since: Option<Instant>,
    count: u64,
    /// Starts a second over the last span.
    rate: f64,
}

impl Window {
    /// A window onto a subject that nobody has counted yet.
    pub(crate) fn new() -> Window {
        Window {
            limit: FIRST_LIMIT,
            floor: LEAST_FLOOR,
            standing: 0,
            under_way: 0,
            waiting: 0,
            claimed: 0,
            was_full: false,
            judged_from: Time::NONE,
            per_message: 1.0,
            slots_each: 0,
            own: Own::default(),
            meter: Meter { since: None, count: 0, rate: 0.0 },
            moved: None,
        }
    }

    /// How many offers it takes in all.
    #[cfg(test)]
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// How many stand on the stream or are on their way.
    pub(crate) fn outstanding(&self) -> u64 {
        u64::try_from(self.standing).unwrap_or(0) + self.under_way
    }

    /// How many more it takes. Where offers share messages it takes whole ones: a part of one waits for its rest,
    /// which is room again within milliseconds as long as enough stand there to be started.
    pub(crate) fn room(&self) -> u64 {
        let (room, whole) = (self.width().saturating_sub(self.outstanding()), self.per_message() as u64);
        if room < whole && self.outstanding() >= 2 * whole { 0 } else { room }
    }

    /// How many it takes in all at this rate: a wide limit is for who starts by the hundreds a second, as long as that
    /// lasts. Whoever comes after a crew has left would go onto the bus one a message, for nobody.
    fn width(&self) -> u64 {
        if self.is_hot() { self.limit } else { self.limit.min(MOST_FLOOR) }
    }

    /// How many jobs wait in Redis, as far as this replica knows, less those it is releasing.
    pub(crate) fn waiting(&self) -> u64 {
        u64::try_from(self.waiting).unwrap_or(0).saturating_sub(self.claimed)
    }

    /// Whether anything stands, moves or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding() == 0 && self.waiting <= 0
    }

    /// Whether starts come by the hundreds a second, so that offers share messages.
    pub(crate) fn is_hot(&self) -> bool {
        self.meter.rate >= HOT_STARTS as f64
    }

    /// How many offers may share a message: one, unless they are started by the hundreds a second, and never more
    /// than half of what a worker takes at once, or it would keep from others what it cannot begin.
    pub(crate) fn per_message(&self) -> usize {
        if !self.is_hot() {
            return 1;
        }
        let soon = (self.meter.rate * SHARED_FOR.as_secs_f64()) as usize;
        let fits = if self.slots_each == 0 { LEAST_SHARED } else { (self.slots_each / 2) as usize };
        soon.clamp(LEAST_SHARED, MOST_SHARED).min(fits).max(1)
    }

    /// How long a newcomer waits, where the backlog moves so fast that it is for seconds only. Counts the starts
    /// that this replica sees, so with several replicas it is on the safe side.
    pub(crate) fn short_wait(&self) -> Option<Duration> {
        let seconds = self.waiting() as f64 / self.meter.rate.max(1.0);
        (self.is_hot() && seconds <= SHORT_WAIT.as_secs_f64()).then(|| Duration::from_secs_f64(seconds))
    }

    /// Takes up to `n` places. What was taken is given back by [`Window::published`] or
    /// [`Window::give_back`].
    pub(crate) fn take(&mut self, n: u64) -> u64 {
        let (room, whole) = (self.room(), self.per_message() as u64);
        // As many as fill their messages, if there are more.
        let granted = if n > room && room > whole { room - room % whole } else { n.min(room) };
        self.under_way += granted;
        self.was_full |= self.room() == 0;
        granted
    }

    /// Places whose offers now stand on the stream, in so many messages.
    pub(crate) fn published(&mut self, offers: u64, messages: u64) {
        self.under_way = self.under_way.saturating_sub(offers);
        self.standing = self.standing.max(0) + signed(offers);
        self.own.published += offers;
        if messages > 0 {
            // Recent messages count more than old ones.
            self.per_message += (offers as f64 / messages as f64 - self.per_message) / 8.0;
        }
    }

    /// Places whose offers were not made after all.
    pub(crate) fn give_back(&mut self, n: u64) {
        self.under_way = self.under_way.saturating_sub(n);
    }

    /// Jobs went into the backlog.
    pub(crate) fn queued(&mut self, n: u64) {
        self.waiting = self.waiting.max(0) + signed(n);
        self.own.queued += n;
    }

    /// Jobs left the backlog.
    pub(crate) fn dequeued(&mut self, n: u64) {
        self.waiting = (self.waiting - signed(n)).max(0);
        self.own.dequeued += n;
    }

    /// Entries were claimed. `kept`, where there were no more to claim: how many more this replica keeps, put there
    /// meanwhile.
    pub(crate) fn claimed(&mut self, n: u64, kept: Option<u64>) {
        self.claimed += n;
        if let Some(kept) = kept {
            self.waiting = signed(self.claimed + kept);
        }
    }

    /// A claim is over, whatever became of its entries.
    pub(crate) fn unclaimed(&mut self, n: u64) {
        self.claimed = self.claimed.saturating_sub(n);
    }

    /// Offers left the stream: started, or found to be gone.
    pub(crate) fn consumed(&mut self, n: u64, now: Instant) {
        self.standing -= signed(n);
        self.own.consumed += n;
        self.meter.add(n, now);
        self.moved = Some(now);
        let dry = self.standing <= signed(self.limit / 8);
        if dry && self.was_full && self.waiting() > 0 {
            self.limit = (self.limit * 2).min(CEILING);
            self.was_full = false;
        }
    }

    /// An offer that was made at `dispatched_at` was started at `started_at`, both in Redis time.
    pub(crate) fn aged(&mut self, dispatched_at: Time, started_at: Time) {
        if dispatched_at < self.judged_from {
            return;
        }
        let age = started_at.since(dispatched_at);
        if age > TARGET && self.limit > self.floor {
            let share = (TARGET.as_secs_f64() / age.as_secs_f64()).max(0.5);
            self.limit = ((self.limit as f64 * share) as u64).max(self.floor);
            self.was_full = false;
            // Those that were made under the old limit will be old too; they must not narrow it twice.
            self.judged_from = started_at;
        }
    }

    /// Who takes its offers.
    pub(crate) fn served_by(&mut self, crew: Crew) {
        self.floor = crew.free.clamp(LEAST_FLOOR, MOST_FLOOR);
        self.limit = self.limit.max(self.floor);
        self.slots_each = crew.slots.checked_div(crew.workers).unwrap_or(0);
    }

    /// What this replica has done so far: taken before a count is asked for, given back with it.
    pub(crate) fn mark(&self) -> Own {
        self.own
    }

    /// So many messages stand on the subject, counted some time after `mark`.
    pub(crate) fn counted(&mut self, mark: Own, messages: u64) {
        let offers = (messages as f64 * self.per_message).round() as u64;
        let since = signed(self.own.published - mark.published) - signed(self.own.consumed - mark.consumed);
        self.standing = (signed(offers) + since).max(0);
    }

    /// So many jobs wait in Redis, counted some time after `mark`.
    pub(crate) fn measured(&mut self, mark: Own, waiting: u64) {
        let since = signed(self.own.queued - mark.queued) - signed(self.own.dequeued - mark.dequeued);
        self.waiting = (signed(waiting) + since).max(0);
    }

    /// Called now and then, so that a subject that fell quiet stops being hot, and then wide.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.meter.add(0, now);
        if self.moved.take_if(|at| now.saturating_duration_since(*at) >= FORGET).is_some() {
            self.limit = self.limit.min(FIRST_LIMIT.max(self.floor));
        }
    }
}

impl Meter {
    fn add(&mut self, n: u64, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.count += n;
        let span = now.saturating_duration_since(since);
        // A worker asks now this replica and now another: what is known of a whole span is not given up for less.
        let first = self.rate < HOT_STARTS as f64 && self.count >= ENOUGH && span >= LEAST_SPAN;
        if span >= METER || first {
            self.rate = self.count as f64 / span.as_secs_f64();
            self.count = 0;
            self.since = Some(now);
        }
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
