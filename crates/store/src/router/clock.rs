//! An estimate of Redis time between replies, for log lines and for sleeping until something is due. No decision about
//! a job depends on it: scripts read the time themselves, and the estimate only tells how long ago one did.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Instant,
};

use muster_domain::time::{micros, wall_clock};

const UNSET: i64 = i64::MIN;
/// If a new estimate is earlier, the clock moves back only by the difference divided by this: the reply may have been
/// delayed, but the server's clock may also have been set back.
const BACKWARD: i64 = 8;

pub(super) struct Clock {
    base: Instant,
    /// Redis time minus the monotonic time since `base`, in microseconds.
    offset: AtomicI64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { base: Instant::now(), offset: AtomicI64::new(UNSET) }
    }

    /// Notes a time that a node has just returned.
    pub(super) fn note(&self, redis_micros: u64) {
        let Some(heard) = i64::try_from(redis_micros).ok().map(|time| time - self.elapsed()) else { return };
        let _ = self.offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
            Some(if known == UNSET || heard >= known { heard } else { known + (heard - known) / BACKWARD })
        });
    }

    pub(super) fn now(&self) -> u64 {
        match self.offset.load(Ordering::Relaxed) {
            UNSET => wall_clock().0,
            offset => u64::try_from(offset.saturating_add(self.elapsed())).unwrap_or(0),
        }
    }

    fn elapsed(&self) -> i64 {
        i64::try_from(micros(self.base.elapsed())).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;
    const HOUR: u64 = 60 * MINUTE;

    #[test]
    fn the_estimate_follows_what_redis_said() {
        let clock = Clock::new();
        assert!(clock.now().abs_diff(wall_clock().0) < MINUTE);
        clock.note(HOUR);
        assert!((HOUR..HOUR + MINUTE).contains(&clock.now()));
        clock.note(2 * HOUR);
        assert!((2 * HOUR..2 * HOUR + MINUTE).contains(&clock.now()));
    }

    #[test]
    fn a_late_reply_hardly_sets_the_estimate_back_but_many_do() {
        let clock = Clock::new();
        clock.note(HOUR);
        clock.note(HOUR - 8 * MINUTE);
        assert!(clock.now() >= HOUR - MINUTE);
        for _ in 0..100 {
            clock.note(HOUR - 8 * MINUTE);
        }
        assert!(clock.now() < HOUR - 7 * MINUTE);
    }
}
