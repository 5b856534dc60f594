//! Durations as people write them: `250ms`, `30s`, `5m`, `2h`. A bare number is refused, because its unit is unknown.

use std::time::Duration;

/// Reads a duration; made for clap's `value_parser`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or("a duration needs a unit: 250ms, 30s, 5m or 2h")?;
    let (digits, unit) = text.split_at(at);
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a duration; write 250ms, 30s, 5m or 2h"))?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(format!("{unit:?} is not a unit of time; use ms, s, m or h")),
    };
    millis.map(Duration::from_millis).ok_or_else(|| format!("{text:?} is too long"))
}

/// Whole milliseconds, for the API.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A duration for people.
pub(crate) fn show(span: Duration) -> String {
    match span.as_millis() {
        ms if ms < 1_000 => format!("{ms}ms"),
        ms if ms < 60_000 => format!("{:.1}s", span.as_secs_f64()),
        ms if ms < 3_600_000 => format!("{}m{}s", ms / 60_000, ms % 60_000 / 1_000),
        ms => format!("{}h{}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "30", "s", "1.5s", "-1s", "3 s", "5d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown_durations_use_the_unit_that_fits() {
        assert_eq!(show(Duration::from_millis(12)), "12ms");
        assert_eq!(show(Duration::from_millis(1_540)), "1.5s");
        assert_eq!(show(Duration::from_secs(65)), "1m5s");
        assert_eq!(show(Duration::from_secs(7_260)), "2h1m");
    }
}
