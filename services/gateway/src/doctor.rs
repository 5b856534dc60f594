//! Checks whether the stores are configured so that Muster can keep its promises.
//!
//! Knows: the requirements for Redis and NATS, the level of each fault, and its remedy. Promises: pure except for the
//! questions to the stores; every check yields a finding, also when all is well; a store that does not answer is a
//! finding, not an error. Leaves to others: reading the stores (`store`, `bus`).

mod nats;
mod redis;
mod settings;

use std::time::Duration;

use muster_flow::{Emptied, Flow};
use tracing::{error, warn};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No fault.
    Ok,
    /// The store works, but with weaker guarantees than possible.
    Warn,
    /// Jobs may be lost, or nothing works.
    Error,
}

impl Level {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The name of the check, one word.
    pub(crate) check: &'static str,
    /// The server that was checked.
    pub(crate) place: String,
    /// What the check found.
    pub(crate) found: String,
    /// The remedy; `None` if there is no fault.
    pub(crate) mend: Option<&'static str>,
}

/// The findings about one server.
struct Chart {
    place: String,
    findings: Vec<Finding>,
}

impl Chart {
    fn of(place: impl Into<String>) -> Chart {
        Chart { place: place.into(), findings: Vec::new() }
    }

    /// Adds a finding: no fault, or a fault with this level and remedy.
    fn note(&mut self, check: &'static str, found: impl Into<String>, fault: Option<(Level, &'static str)>) {
        let (level, mend) = fault.map_or((Level::Ok, None), |(level, mend)| (level, Some(mend)));
        let place = self.place.clone();
        self.findings.push(Finding { level, check, place, found: found.into(), mend });
    }
}

/// Runs all checks. The worst findings come first.
pub(crate) async fn examine(flow: &Flow) -> Vec<Finding> {
    let (redis, nats) = tokio::join!(flow.store.vitals(), flow.bus.vitals());
    let mut findings = redis::judge(&redis, flow.store.router().is_cluster());
    findings.extend(nats::judge(&nats));
    if nats.is_ok() {
        findings.extend(nats::judge_drift(&flow.bus.drift().await));
    }
    if redis.is_ok() {
        findings.extend(settings::judge(&flow.store.replicas().await));
    }
    // If a store does not answer, the checks above report it.
    if let (Ok(now), Ok(note)) = tokio::join!(flow.emptied(), flow.store.emptied_note()) {
        findings.push(emptied(now, note));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// Whether Redis still has the jobs that the streams name.
fn emptied(now: Option<Emptied>, note: Option<String>) -> Finding {
    const MEND: &str = "the schedulers create jobs of the last ten minutes again; older jobs are lost: restore the \
                        newest backup into an empty Redis, or submit them again; then DEL muster:meta:emptied";
    let mut chart = Chart::of("redis");
    let (text, fault) = match (now, note) {
        (None, None) => ("Redis has the jobs whose submits are on the stream".to_owned(), None),
        (Some(found), _) => (found.to_string(), Some((Level::Error, MEND))),
        (None, Some(note)) => (note, Some((Level::Error, MEND))),
    };
    chart.note("emptied", text, fault);
    chart.findings.remove(0)
}

/// The worst level among the findings.
pub(crate) fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Logs the findings that are faults.
pub(crate) fn tell(findings: &[Finding]) {
    for Finding { level, check, place, found, mend } in findings {
        let mend = mend.unwrap_or_default();
        match level {
            Level::Ok => (),
            Level::Warn => warn!(event = "doctor", check, place, mend, "{found}"),
            Level::Error => error!(event = "doctor", check, place, mend, "{found}"),
        }
    }
}

/// Whether a version is at least the wanted one. An unreadable version is not.
fn at_least(version: &str, wanted: (u32, u32)) -> bool {
    numbers(version).is_some_and(|(major, minor, _)| (major, minor) >= wanted)
}

/// The major, minor and patch numbers.
type Version = (u32, u32, u32);

/// The numbers of a version. A missing patch number is 0, and a suffix such as `-RC.1` is ignored.
fn numbers(version: &str) -> Option<Version> {
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next().and_then(|part| part.parse().ok());
    let mut parts = version.trim_start_matches('v').split('.');
    Some((digits(parts.next()?)?, digits(parts.next()?)?, parts.next().and_then(digits).unwrap_or(0)))
}

/// A median latency above this slows down every job.
const SLOW: Duration = Duration::from_millis(10);

/// Adds the finding about the latency of a store.
fn latency(chart: &mut Chart, median: Duration) {
    let slow = (Level::Warn, "run the services closer to the store, or find out what keeps the store busy");
    let found = format!("an answer takes {:.1} ms (median of five)", median.as_secs_f64() * 1e3);
    chart.note("latency", found, (median > SLOW).then_some(slow));
}

#[cfg(test)]
mod tests {
    use muster_domain::JobId;

    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("v2.10.22-RC.1"), Some((2, 10, 22)));
        assert_eq!((numbers("7.0"), numbers("7"), numbers("")), (Some((7, 0, 0)), None, None));
        assert!(at_least("2.10.1", (2, 9)) && !at_least("2.9.9", (2, 10)) && !at_least("new", (0, 0)));
    }

    #[test]
    fn an_emptied_redis_is_an_error_and_a_whole_one_is_not() {
        assert_eq!(emptied(None, None).level, Level::Ok);
        let noted = emptied(None, Some("2026-01-01T00:00:00Z Redis has none".to_owned()));
        assert_eq!((noted.level, noted.found.contains("2026-01-01")), (Level::Error, true));
        let finding = emptied(Some(Emptied { missing: 3, example: JobId::mint(1) }), None);
        assert_eq!((finding.level, finding.check), (Level::Error, "emptied"));
        assert!(finding.found.contains("none of 3 jobs"), "{}", finding.found);
    }

    #[test]
    fn a_slow_store_is_a_warning() {
        let mut chart = Chart::of("x");
        latency(&mut chart, Duration::from_millis(9));
        latency(&mut chart, Duration::from_millis(11));
        assert_eq!([chart.findings[0].level, chart.findings[1].level], [Level::Ok, Level::Warn]);
    }
}
