//! Whether the stores are such that the promises can be kept on them.
//!
//! Knows: what Redis and NATS have to be, the level of each fault, and what mends it. Promises: pure
//! but for asking; each thing that was looked at is a finding, the good ones too; a store that does not
//! answer is a finding, not an error. Leaves to others: reading the stores (`store`, `bus`).

mod nats;
mod redis;

use muster_flow::Flow;
use tracing::{error, warn};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// It works, and promises less than it could.
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

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What was looked at, in one word.
    pub(crate) check: &'static str,
    /// Which server.
    pub(crate) place: String,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it; none if all is well.
    pub(crate) mend: Option<&'static str>,
}

/// Findings about one server.
struct Chart {
    place: String,
    findings: Vec<Finding>,
}

impl Chart {
    fn of(place: impl Into<String>) -> Chart {
        Chart { place: place.into(), findings: Vec::new() }
    }

    /// As it should be, or this bad and mended so.
    fn note(&mut self, check: &'static str, found: impl Into<String>, fault: Option<(Level, &'static str)>) {
        let (level, mend) = fault.map_or((Level::Ok, None), |(level, mend)| (level, Some(mend)));
        let place = self.place.clone();
        self.findings.push(Finding { level, check, place, found: found.into(), mend });
    }
}

/// Looks at everything, the worst first.
pub(crate) async fn examine(flow: &Flow) -> Vec<Finding> {
    let (redis, nats) = tokio::join!(flow.store.checkup(), flow.bus.checkup());
    let mut findings = redis::judge(&redis, flow.store.router().is_cluster());
    findings.extend(nats::judge(&nats));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// The worst of them.
pub(crate) fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Says in the log what is not as it should be.
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

/// Whether a version is at least this one. What cannot be read is not.
fn at_least(version: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    matches!((numbers.next().flatten(), numbers.next().flatten()), (Some(major), Some(minor)) if (major, minor) >= wanted)
}
