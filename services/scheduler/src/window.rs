//! How many offers of one subject may be on the bus: pure arithmetic, without a clock or I/O.
//!
//! Knows: the limit, this replica's estimate of the offers on the stream, how many jobs wait in Redis, how fast offers
//! are started. Promises: the limit stays between the number of free slots of live workers (8 to 64 of them) and 8,192.
//! Offers that were old when they started narrow it. A subject that ran dry while jobs waited widens it. If nothing was
//! started for a while, the limit is reset: the workers that made it wide have left. Leaves to others: measuring
//! (`survey`), publishing and holding (`dispatch`, `backlog`).

use std::time::{Duration, Instant};

use muster_bus::MOST_OFFERS;
use muster_domain::Time;

use crate::crew::Crew;

/// The first limit of a subject.
pub(crate) const FIRST_LIMIT: u64 = 32;
/// The least floor of the limit, however few slots are free.
pub(crate) const LEAST_FLOOR: u64 = 8;
/// The largest floor, however many slots are free.
pub(crate) const MOST_FLOOR: u64 = 64;
/// The largest limit.
pub(crate) const CEILING: u64 = 8_192;
/// An offer should be started within about this time.
pub(crate) const TARGET: Duration = Duration::from_millis(200);
/// After this long without a start, the rate of the next starts is unknown.
const FORGET: Duration = Duration::from_secs(10);
/// From this many starts a second on, a subject is hot and offers share messages.
const HOT_STARTS: u64 = 200;
/// Least number of offers that share a message on a hot subject; up to as many as start within [`SHARED_FOR`].
const LEAST_SHARED: usize = 8;
const MOST_SHARED: usize = MOST_OFFERS as usize;
/// An offer waits at most about this long for the others in its message.
const SHARED_FOR: Duration = Duration::from_millis(25);
/// A wait up to this is short: well below the first check of a pending job.
const SHORT_WAIT: Duration = Duration::from_secs(15);
/// Starts are counted over this span, or until there are `ENOUGH` of them, to detect a hot subject.
const METER: Duration = Duration::from_millis(500);
const ENOUGH: u64 = HOT_STARTS * METER.as_millis() as u64 / 1_000;
/// The shortest span: one answer may contain a hundred starts.
const LEAST_SPAN: Duration = Duration::from_millis(20);

/// One replica's window of one subject.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u64,
    floor: u64,
    /// Offers on the stream; an estimate between two counts, so it may fall below zero.
    standing: i64,
    /// Places taken by offers that are not on the stream yet.
    under_way: u64,
    /// Jobs that have an entry in Redis, including claimed ones.
    waiting: i64,
    /// Entries that this replica has claimed and not yet removed.
    claimed: u64,
    /// Whether the window was full since the limit last changed: only then does running dry mean that it was too
    /// narrow.
    was_full: bool,
    /// Offers made before this time do not count for the present limit.
    judged_from: Time,
    /// Average number of offers in a message of this subject.
    per_message: f64,
    /// Average number of slots of a worker.
    slots_each: u64,
    /// Totals of this replica's own actions, to correct a count that takes a while.
    own: Own,
    meter: Meter,
    /// When offers last left the stream; none once that is too long ago.
    moved: Option<Instant>,
}

/// Running totals of this replica's actions on a subject.
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
    /// The window of a subject that was not counted yet.
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

    /// How many offers are on the stream or on their way.
    pub(crate) fn outstanding(&self) -> u64 {
        u64::try_from(self.standing).unwrap_or(0) + self.under_way
    }

    /// How many more offers it takes. Where offers share messages, only whole messages: a partial one waits for the
    /// rest, for which there is room within milliseconds while enough offers are on the stream.
    pub(crate) fn room(&self) -> u64 {
        let (room, whole) = (self.width().saturating_sub(self.outstanding()), self.per_message() as u64);
        if room < whole && self.outstanding() >= 2 * whole { 0 } else { room }
    }

    /// How many offers it takes in all at the present rate: the whole limit only while hundreds start each second.
    /// After the workers have left, new jobs would otherwise fill the bus, one per message, without a worker.
    fn width(&self) -> u64 {
        if self.is_hot() { self.limit } else { self.limit.min(MOST_FLOOR) }
    }

    /// How many jobs wait in Redis, by this replica's knowledge, without those it is releasing.
    pub(crate) fn waiting(&self) -> u64 {
        u64::try_from(self.waiting).unwrap_or(0).saturating_sub(self.claimed)
    }

    /// Whether there is no offer and no waiting job.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding() == 0 && self.waiting <= 0
    }

    /// Whether hundreds of jobs start each second, so that offers share messages.
    pub(crate) fn is_hot(&self) -> bool {
        self.meter.rate >= HOT_STARTS as f64
    }

    /// How many offers may share a message: one, unless the subject is hot. Never more than half of what a worker takes
    /// at once, because otherwise a worker would hold back offers that it cannot start.
    pub(crate) fn per_message(&self) -> usize {
        if !self.is_hot() {
            return 1;
        }
        let soon = (self.meter.rate * SHARED_FOR.as_secs_f64()) as usize;
        let fits = if self.slots_each == 0 { LEAST_SHARED } else { (self.slots_each / 2) as usize };
        soon.clamp(LEAST_SHARED, MOST_SHARED).min(fits).max(1)
    }

    /// How long a new job waits, if the subject is hot and the wait is short. Counts only the starts that this replica
    /// sees, so with several replicas the estimate is too long rather than too short.
    pub(crate) fn short_wait(&self) -> Option<Duration> {
        let seconds = self.waiting() as f64 / self.meter.rate.max(1.0);
        (self.is_hot() && seconds <= SHORT_WAIT.as_secs_f64()).then(|| Duration::from_secs_f64(seconds))
    }

    /// Takes up to `n` places. [`Window::published`] or [`Window::give_back`] ends each of them.
    pub(crate) fn take(&mut self, n: u64) -> u64 {
        let (room, whole) = (self.room(), self.per_message() as u64);
        // Grant as many as fill whole messages, if more are wanted.
        let granted = if n > room && room > whole { room - room % whole } else { n.min(room) };
        self.under_way += granted;
        self.was_full |= self.room() == 0;
        granted
    }

    /// Offers of taken places are now on the stream, in this many messages.
    pub(crate) fn published(&mut self, offers: u64, messages: u64) {
        self.under_way = self.under_way.saturating_sub(offers);
        self.standing = self.standing.max(0) + signed(offers);
        self.own.published += offers;
        if messages > 0 {
            // Recent messages count more than old ones.
            self.per_message += (offers as f64 / messages as f64 - self.per_message) / 8.0;
        }
    }

    /// Taken places got no offer.
    pub(crate) fn give_back(&mut self, n: u64) {
        self.under_way = self.under_way.saturating_sub(n);
    }

    /// Jobs were added to the backlog.
    pub(crate) fn queued(&mut self, n: u64) {
        self.waiting = self.waiting.max(0) + signed(n);
        self.own.queued += n;
    }

    /// Jobs left the backlog.
    pub(crate) fn dequeued(&mut self, n: u64) {
        self.waiting = (self.waiting - signed(n)).max(0);
        self.own.dequeued += n;
    }

    /// Entries were claimed. `kept` is set if there were no more to claim: the number of local claims, which were added
    /// meanwhile.
    pub(crate) fn claimed(&mut self, n: u64, kept: Option<u64>) {
        self.claimed += n;
        if let Some(kept) = kept {
            self.waiting = signed(self.claimed + kept);
        }
    }

    /// A claim has ended, whatever happened to its entries.
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

    /// An offer made at `dispatched_at` was started at `started_at`, both in Redis time.
    pub(crate) fn aged(&mut self, dispatched_at: Time, started_at: Time) {
        if dispatched_at < self.judged_from {
            return;
        }
        let age = started_at.since(dispatched_at);
        if age > TARGET && self.limit > self.floor {
            let share = (TARGET.as_secs_f64() / age.as_secs_f64()).max(0.5);
            self.limit = ((self.limit as f64 * share) as u64).max(self.floor);
            self.was_full = false;
            // Other offers made under the old limit are old too; they must not narrow it again.
            self.judged_from = started_at;
        }
    }

    /// Sets the floor and the slots per worker from the crew of the subject.
    pub(crate) fn served_by(&mut self, crew: Crew) {
        self.floor = crew.free.clamp(LEAST_FLOOR, MOST_FLOOR);
        self.limit = self.limit.max(self.floor);
        self.slots_each = crew.slots.checked_div(crew.workers).unwrap_or(0);
    }

    /// This replica's totals: taken before a count, and passed on with it.
    pub(crate) fn mark(&self) -> Own {
        self.own
    }

    /// This many messages are on the subject, counted some time after `mark`.
    pub(crate) fn counted(&mut self, mark: Own, messages: u64) {
        let offers = (messages as f64 * self.per_message).round() as u64;
        let since = signed(self.own.published - mark.published) - signed(self.own.consumed - mark.consumed);
        self.standing = (signed(offers) + since).max(0);
    }

    /// This many jobs wait in Redis, counted some time after `mark`.
    pub(crate) fn measured(&mut self, mark: Own, waiting: u64) {
        let since = signed(self.own.queued - mark.queued) - signed(self.own.dequeued - mark.dequeued);
        self.waiting = (signed(waiting) + since).max(0);
    }

    /// Called regularly, so that a quiet subject stops being hot, and later is no longer wide.
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
        // A worker asks different replicas in turn, so a rate measured over a whole span is not replaced by a shorter
        // one.
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
