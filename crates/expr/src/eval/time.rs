//! Timestamps and durations, both as nanoseconds.

use chrono::{DateTime, Datelike, FixedOffset, SecondsFormat, TimeZone, Timelike, Utc};
use chrono_tz::Tz;

use crate::{EvalError, functions::Part};

type Result<T> = std::result::Result<T, EvalError>;

pub(crate) const SECOND: i128 = 1_000_000_000;
/// The first and the last second of a timestamp: the years 1 to 9999.
const TIMES: std::ops::RangeInclusive<i128> = -62_135_596_800..=253_402_300_799;
/// The longest duration in seconds: about 10,000 years.
const LONGEST: i128 = 315_576_000_000;

/// A timestamp within its range.
pub(crate) fn time(nanos: i128) -> Result<i128> {
    if TIMES.contains(&nanos.div_euclid(SECOND)) {
        return Ok(nanos);
    }
    Err(EvalError::Value("the timestamp is outside of the years 1 to 9999".to_owned()))
}

/// A duration within its range.
pub(crate) fn span(nanos: i128) -> Result<i128> {
    if nanos.abs() <= LONGEST * SECOND {
        return Ok(nanos);
    }
    Err(EvalError::Value("the duration is longer than 10,000 years".to_owned()))
}

/// Reads a timestamp of RFC 3339.
pub(crate) fn read_time(text: &str) -> Option<i128> {
    let read = DateTime::parse_from_rfc3339(text).ok()?;
    time(i128::from(read.timestamp()) * SECOND + i128::from(read.timestamp_subsec_nanos())).ok()
}

/// A timestamp as text of RFC 3339, in UTC.
pub(crate) fn write_time(nanos: i128) -> String {
    utc(nanos).map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

/// Reads a duration such as `1h30m`, `-1.5s` or `250ms`.
pub(crate) fn read_span(text: &str) -> Option<i128> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut sum: i128 = 0;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len()));
        let unit: i128 = match unit {
            "h" => 3600 * SECOND,
            "m" => 60 * SECOND,
            "s" => SECOND,
            "ms" => 1_000_000,
            "us" | "µs" | "μs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        // So few digits of the shortest and the longest unit stay within an i128.
        if digits.is_empty() || digits.contains('.') || whole.len() > 16 || fraction.len() > 9 {
            return None;
        }
        sum = sum.checked_add(digits.parse::<i128>().ok()? * unit / 10_i128.pow(fraction.len() as u32))?;
        rest = tail;
        if rest.is_empty() {
            return span(sign * sum).ok();
        }
    }
}

/// A duration as text: seconds, with a fraction if there is one.
pub(crate) fn write_span(nanos: i128) -> String {
    let (sign, n) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (seconds, rest) = (n / SECOND as u128, n % SECOND as u128);
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:09}").trim_end_matches('0').to_owned() };
    format!("{sign}{seconds}{fraction}s")
}

/// Whether a time zone is known: a name of the IANA data base, or an offset such as `+02:00`.
pub(crate) fn zone_is_known(zone: &str) -> bool {
    offset(zone).is_some() || zone.parse::<Tz>().is_ok()
}

/// A part of a timestamp in a zone, UTC without one.
pub(crate) fn part_of_time(nanos: i128, part: Part, zone: Option<&str>) -> Result<i64> {
    let at = utc(nanos).ok_or_else(|| EvalError::Value("the timestamp is outside of its range".to_owned()))?;
    Ok(match zone {
        None => part_of(part, &at),
        Some(zone) => match (offset(zone), zone.parse::<Tz>()) {
            (Some(offset), _) => part_of(part, &at.with_timezone(&offset)),
            (None, Ok(tz)) => part_of(part, &at.with_timezone(&tz)),
            _ => return Err(EvalError::Value(format!("the time zone {zone:?} is not known"))),
        },
    })
}

/// A part of a duration: the whole duration in that unit, but milliseconds only of its last second.
pub(crate) fn part_of_span(nanos: i128, part: Part) -> Option<i64> {
    let n = match part {
        Part::Hours => nanos / (3600 * SECOND),
        Part::Minutes => nanos / (60 * SECOND),
        Part::Seconds => nanos / SECOND,
        Part::Milliseconds => nanos % SECOND / 1_000_000,
        _ => return None,
    };
    i64::try_from(n).ok()
}

fn part_of<Z: TimeZone>(part: Part, at: &DateTime<Z>) -> i64 {
    match part {
        Part::FullYear => at.year().into(),
        Part::Month => at.month0().into(),
        Part::Date => at.day().into(),
        Part::DayOfMonth => at.day0().into(),
        Part::DayOfWeek => at.weekday().num_days_from_sunday().into(),
        Part::DayOfYear => at.ordinal0().into(),
        Part::Hours => at.hour().into(),
        Part::Minutes => at.minute().into(),
        Part::Seconds => at.second().into(),
        Part::Milliseconds => (at.nanosecond() / 1_000_000 % 1000).into(),
    }
}

fn utc(nanos: i128) -> Option<DateTime<Utc>> {
    let seconds = i64::try_from(nanos.div_euclid(SECOND)).ok()?;
    DateTime::from_timestamp(seconds, u32::try_from(nanos.rem_euclid(SECOND)).ok()?)
}

/// `+02:00`, `-05:30` or `02:00`.
fn offset(text: &str) -> Option<FixedOffset> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two =
        |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<i32>().ok());
    let (hours, minutes) = (two(hours)??, two(minutes)??);
    if minutes < 60 { FixedOffset::east_opt(sign * (hours * 3600 + minutes * 60)) } else { None }
}
