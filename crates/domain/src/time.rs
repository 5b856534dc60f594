//! Time on the Redis clock. A [`Time`] counts microseconds of Redis TIME. Nothing here reads a local clock except
//! [`wall_clock`], which exists for log lines and for the first guess of an id's prefix.

use std::{fmt, ops::Add, time::Duration};

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};

/// A moment on the Redis clock, in microseconds since the Unix epoch. Zero means "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The absence of a moment, as records store it.
    pub const NONE: Time = Time(0);

    /// `Some` unless this is [`Time::NONE`].
    pub fn some(self) -> Option<Time> {
        (self.0 != 0).then_some(self)
    }

    /// How long from `earlier` to `self`; zero if `earlier` is later than `self`.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// How long from `now` until `self`; zero if it has passed.
    pub fn remaining(self, now: Time) -> Duration {
        self.since(now)
    }

    /// Whether this moment has come.
    pub fn reached(self, now: Time) -> bool {
        self.0 <= now.0
    }

    /// The same moment, earlier by `span`.
    pub fn before(self, span: Duration) -> Time {
        Time(self.0.saturating_sub(micros(span)))
    }

    /// RFC 3339 in UTC with milliseconds, as the API shows it.
    pub fn rfc3339(self) -> String {
        let at = DateTime::<Utc>::from_timestamp_micros(i64::try_from(self.0).unwrap_or(i64::MAX))
            .unwrap_or(DateTime::<Utc>::MAX_UTC);
        let Some(year) = u32::try_from(at.year()).ok().filter(|year| *year < 10_000) else {
            return at.to_rfc3339_opts(SecondsFormat::Millis, true);
        };
        // Writes digit by digit: every answer contains at least one moment, and the general formatter takes several
        // times as long.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let millis = at.timestamp_subsec_millis();
        let parts = [
            (0..4, year),
            (5..7, at.month()),
            (8..10, at.day()),
            (11..13, at.hour()),
            (14..16, at.minute()),
            (17..19, at.second()),
            (20..23, millis),
        ];
        for (place, mut number) in parts {
            for digit in text[place].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Reads an RFC 3339 moment with any offset. Refuses years beyond 2255, because they do not fit into a fence.
    pub fn parse_rfc3339(text: &str) -> Option<Time> {
        let micros = DateTime::parse_from_rfc3339(text).ok()?.timestamp_micros();
        Some(Time(u64::try_from(micros).ok()?)).filter(|time| time.is_storable())
    }

    /// Whether the time is after 1970 and fits into a fence, which is so until the year 2255.
    pub fn is_storable(self) -> bool {
        self.0 > 0 && self.0 < 1 << 53
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(micros(span)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.some() {
            Some(t) => f.write_str(&t.rfc3339()),
            None => f.write_str("none"),
        }
    }
}

/// Whole microseconds of a span, saturating.
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// This machine's clock. For log lines and estimates only: no decision about a job may depend on it.
#[expect(clippy::disallowed_methods, reason = "the one place that may read the local clock")]
pub fn wall_clock() -> Time {
    Time(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_round_trips_with_any_offset() {
        let t = Time::parse_rfc3339("2026-11-16T08:00:00.250+02:00").unwrap();
        assert_eq!(t.rfc3339(), "2026-11-16T06:00:00.250Z");
        assert_eq!(Time::parse_rfc3339(&t.rfc3339()), Some(t));
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000_000, "+10000-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(Time(micros).rfc3339(), text);
        }
        assert_eq!(Time::parse_rfc3339("1960-01-01T00:00:00Z"), None);
        assert_eq!(Time::parse_rfc3339("9999-01-01T00:00:00Z"), None);
        assert_eq!(Time::parse_rfc3339("tomorrow"), None);
    }
}
