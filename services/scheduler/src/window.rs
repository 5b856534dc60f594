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

use crate::fleet::Crew;

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
const SHARED_FOR: Duration = Duration::from_millis(5);
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

    /// How many more it takes.
    pub(crate) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.outstanding())
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

    /// Whether the backlog moves so fast that a newcomer waits for seconds only. Counts the starts
    /// that this replica sees, so with several replicas it is on the safe side.
    pub(crate) fn moves_fast(&self) -> bool {
        self.is_hot() && self.waiting() as f64 <= self.meter.rate * SHORT_WAIT.as_secs_f64()
    }

    /// Takes up to `n` places. What was taken is given back by [`Window::published`] or
    /// [`Window::give_back`].
    pub(crate) fn take(&mut self, n: u64) -> u64 {
        let granted = n.min(self.room());
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

    /// Entries were claimed; `all`: there were no more to claim.
    pub(crate) fn claimed(&mut self, n: u64, all: bool) {
        self.claimed += n;
        if all {
            self.waiting = signed(self.claimed);
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
        if span >= METER || (self.count >= ENOUGH && span >= LEAST_SPAN) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Time = Time(1_800_000_000_000_000);

    fn with_free(free: u64) -> Crew {
        Crew { workers: 1, slots: free, free }
    }

    fn full() -> Window {
        let mut window = Window::new();
        assert_eq!(window.take(1_000), FIRST_LIMIT);
        window.published(FIRST_LIMIT, FIRST_LIMIT);
        window
    }

    #[test]
    fn it_takes_as_many_as_it_has_room_for() {
        let mut window = full();
        assert_eq!((window.room(), window.take(5)), (0, 0));
        window.consumed(3, Instant::now());
        assert_eq!(window.take(5), 3);
        window.give_back(3);
        assert_eq!(window.room(), 3, "what was not offered is free again");
    }

    #[test]
    fn running_dry_with_a_backlog_widens_it_once_per_filling() {
        let mut window = full();
        window.queued(10_000);
        window.consumed(FIRST_LIMIT, Instant::now());
        assert_eq!(window.limit(), 2 * FIRST_LIMIT);
        window.consumed(1, Instant::now());
        assert_eq!(window.limit(), 2 * FIRST_LIMIT, "not again before it was full again");
    }

    #[test]
    fn running_dry_without_a_backlog_or_never_full_changes_nothing() {
        let mut window = full();
        window.consumed(FIRST_LIMIT, Instant::now());
        assert_eq!(window.limit(), FIRST_LIMIT, "nobody waited");
        let mut window = Window::new();
        window.queued(10);
        window.take(1);
        window.published(1, 1);
        window.consumed(1, Instant::now());
        assert_eq!(window.limit(), FIRST_LIMIT, "it was not the window that held it back");
    }

    #[test]
    fn silence_makes_it_begin_anew() {
        let mut window = full();
        window.queued(10_000);
        let now = Instant::now();
        window.consumed(FIRST_LIMIT, now);
        window.tick(now + FORGET / 2);
        assert_eq!(window.limit(), 2 * FIRST_LIMIT, "a breath is no silence");
        window.tick(now + FORGET);
        assert_eq!(window.limit(), FIRST_LIMIT);
    }

    #[test]
    fn offers_that_grew_old_narrow_it_once_per_generation() {
        let mut window = full();
        let old = T0 + Duration::from_millis(800);
        window.aged(T0, old);
        assert_eq!(window.limit(), FIRST_LIMIT / 2);
        window.aged(T0 + Duration::from_millis(1), old + Duration::from_secs(9));
        assert_eq!(window.limit(), FIRST_LIMIT / 2, "made under the old limit");
        window.aged(old, old + Duration::from_millis(250));
        assert_eq!(window.limit(), 12, "by the share that was too much");
        window.aged(old + Duration::from_secs(1), old + Duration::from_secs(60));
        assert_eq!(window.limit(), LEAST_FLOOR, "never below the floor");
    }

    #[test]
    fn offers_started_in_time_leave_it_alone() {
        let mut window = full();
        window.aged(T0, T0 + TARGET);
        assert_eq!(window.limit(), FIRST_LIMIT);
    }

    #[test]
    fn free_slots_are_the_floor_within_bounds() {
        let mut window = Window::new();
        window.served_by(with_free(50));
        assert_eq!(window.limit(), 50, "a worker with fifty free slots can start fifty now");
        window.served_by(with_free(5_000));
        assert_eq!(window.limit(), MOST_FLOOR);
        window.served_by(with_free(0));
        window.aged(T0, T0 + Duration::from_secs(100));
        window.aged(T0 + Duration::from_secs(101), T0 + Duration::from_secs(200));
        window.aged(T0 + Duration::from_secs(201), T0 + Duration::from_secs(300));
        assert_eq!(window.limit(), LEAST_FLOOR);
    }

    #[test]
    fn a_count_is_corrected_by_what_happened_while_it_was_taken() {
        let mut window = full();
        let mark = window.mark();
        window.consumed(10, Instant::now());
        window.take(4);
        window.published(4, 4);
        window.counted(mark, 30);
        assert_eq!(window.outstanding(), 24);
        let mark = window.mark();
        window.queued(7);
        window.dequeued(2);
        window.measured(mark, 100);
        assert_eq!(window.waiting(), 105);
    }

    #[test]
    fn entries_being_released_do_not_hold_up_newcomers() {
        let mut window = Window::new();
        window.queued(10);
        window.claimed(4, false);
        assert_eq!(window.waiting(), 6);
        window.claimed(3, true);
        assert_eq!(window.waiting(), 0, "the rest is with others");
        window.dequeued(7);
        window.unclaimed(7);
        assert!(window.is_idle());
    }

    #[test]
    fn offers_share_messages_as_they_are_started_and_as_workers_can_take_them() {
        let (mut window, now) = (Window::new(), Instant::now());
        let started = |window: &mut Window, a_second: u64| {
            window.meter = Meter { since: Some(now), count: 0, rate: 0.0 };
            window.consumed(a_second, now + Duration::from_secs(1));
        };
        started(&mut window, 150);
        assert_eq!(window.per_message(), 1, "not hot");
        started(&mut window, 10_000);
        assert_eq!(window.per_message(), LEAST_SHARED, "nobody knows what a worker takes");
        window.served_by(Crew { workers: 10, slots: 5_000, free: 0 });
        assert_eq!(window.per_message(), MOST_SHARED);
        started(&mut window, 3_000);
        assert_eq!(window.per_message(), 15, "what is started within five milliseconds");
        started(&mut window, 300);
        assert_eq!(window.per_message(), LEAST_SHARED);
        for (slots, most) in [(16, 8), (6, 3), (1, 1)] {
            window.served_by(Crew { workers: 10, slots: 10 * slots, free: 0 });
            assert_eq!(window.per_message(), most, "workers of {slots}");
        }
    }

    #[test]
    fn a_subject_is_hot_while_hundreds_start_a_second() {
        let mut window = Window::new();
        let start = Instant::now();
        window.consumed(150, start);
        window.consumed(150, start + METER);
        assert!(window.is_hot());
        window.tick(start + METER * 3);
        assert!(!window.is_hot());
        // Nobody waits for the span to end who has seen enough.
        let again = start + METER * 4;
        window.tick(again);
        window.consumed(ENOUGH, again);
        assert!(!window.is_hot(), "one answer says nothing about a second");
        window.consumed(1, again + LEAST_SPAN);
        assert!(window.is_hot());
        window.tick(again + METER * 2);
        assert!(!window.is_hot(), "a burst is over soon");
    }

    #[test]
    fn a_backlog_moves_fast_while_it_is_started_within_seconds() {
        let mut window = Window::new();
        let start = Instant::now();
        window.queued(10);
        assert!(!window.moves_fast(), "nobody starts anything");
        window.consumed(150, start);
        window.consumed(150, start + METER);
        assert!(window.moves_fast());
        window.queued(600 * 15);
        assert!(!window.moves_fast(), "600 a second need more than 15 seconds for these");
    }

    proptest! {
        #[test]
        fn the_limit_keeps_its_bounds_and_the_room_adds_up(steps in prop::collection::vec((0u8..7, 0u64..5_000), 1..200)) {
            let mut window = Window::new();
            let (mut now, clock) = (T0, Instant::now());
            for (step, n) in steps {
                now = now + Duration::from_millis(n);
                match step {
                    0 => { let taken = window.take(n); window.published(taken, taken.div_ceil(8)); }
                    1 => { let taken = window.take(n); window.give_back(taken); }
                    2 => window.consumed(n, clock),
                    3 => window.queued(n),
                    4 => window.aged(now.before(Duration::from_millis(n)), now),
                    5 => window.served_by(with_free(n)),
                    _ => { let mark = window.mark(); window.counted(mark, n); window.measured(mark, n); }
                }
                prop_assert!((LEAST_FLOOR..=CEILING).contains(&window.limit()));
                prop_assert!(window.room() <= window.limit());
                prop_assert!(window.room() == 0 || window.room() + window.outstanding() == window.limit());
            }
        }
    }
}
