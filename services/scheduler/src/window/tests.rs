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
    window.claimed(4, None);
    assert_eq!(window.waiting(), 6);
    window.claimed(3, Some(0));
    assert_eq!(window.waiting(), 0, "the rest is with others");
    window.claimed(0, Some(2));
    assert_eq!(window.waiting(), 2, "these came meanwhile");
    window.claimed(0, Some(0));
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
    started(&mut window, 20_000);
    assert_eq!(window.per_message(), LEAST_SHARED, "nobody knows what a worker takes");
    window.served_by(Crew { workers: 10, slots: 5_000, free: 0 });
    assert_eq!(window.per_message(), MOST_SHARED);
    started(&mut window, 3_000);
    assert_eq!(window.per_message(), 75, "what is started within 25 milliseconds");
    started(&mut window, 300);
    assert_eq!(window.per_message(), LEAST_SHARED);
    for (slots, most) in [(16, 8), (6, 3), (1, 1)] {
        window.served_by(Crew { workers: 10, slots: 10 * slots, free: 0 });
        assert_eq!(window.per_message(), most, "workers of {slots}");
    }
}

#[test]
fn a_wide_window_takes_little_from_who_comes_after_its_crew_has_left() {
    let (mut window, now) = (Window::new(), Instant::now());
    window.limit = CEILING;
    assert_eq!(window.take(1_000), MOST_FLOOR);
    window.give_back(MOST_FLOOR);
    window.consumed(10_000, now);
    window.consumed(10_000, now + METER);
    assert_eq!(window.take(1_000), 1_000, "it is as wide as it was as soon as they start again");
}

#[test]
fn where_offers_share_messages_room_comes_by_whole_ones() {
    let (mut window, now) = (Window::new(), Instant::now());
    window.meter = Meter { since: Some(now), count: 0, rate: 0.0 };
    window.consumed(10_000, now + Duration::from_secs(1));
    window.served_by(Crew { workers: 1, slots: 64, free: 64 });
    window.limit = 200;
    (window.standing, window.was_full) = (0, false);
    assert_eq!(window.take(1_000), 192, "six whole messages");
    window.published(192, 6);
    assert_eq!((window.room(), window.take(5)), (0, 0), "what is left is a part of one");
    window.consumed(24, now + Duration::from_secs(1));
    assert_eq!(window.take(40), 32);
    window.give_back(32);
    assert_eq!(window.take(7), 7, "who is not many goes all the same");
    window.give_back(7);
    window.consumed(110, now + Duration::from_secs(1));
    assert_eq!(window.outstanding(), 58);
    window.limit = 60;
    assert_eq!(window.take(9), 2, "nobody waits for a whole one where little stands there");
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
    // Enough starts make it hot before the span ends.
    let again = start + METER * 4;
    window.tick(again);
    window.consumed(ENOUGH, again);
    assert!(!window.is_hot(), "one answer says nothing about a second");
    window.consumed(1, again + LEAST_SPAN);
    assert!(window.is_hot());
    let seen = window.meter.rate;
    window.consumed(ENOUGH, again + LEAST_SPAN * 9);
    assert_eq!(window.meter.rate, seen, "a worker that asks another replica for a moment says little");
    window.tick(again + METER * 4);
    assert!(!window.is_hot(), "a burst is over soon");
}

#[test]
fn a_backlog_moves_fast_while_it_is_started_within_seconds() {
    let mut window = Window::new();
    let start = Instant::now();
    window.queued(10);
    assert!(window.short_wait().is_none(), "nobody starts anything");
    window.consumed(150, start);
    window.consumed(150, start + METER);
    window.queued(590);
    assert_eq!(window.short_wait(), Some(Duration::from_secs(1)));
    window.queued(600 * 15);
    assert!(window.short_wait().is_none(), "600 a second need more than 15 seconds for these");
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
            prop_assert!(window.room() == 0 || window.room() + window.outstanding() == window.width());
        }
    }
}
