//! What NATS and the streams on it have to be.

use muster_bus::{BusError, BusVitals, StreamVitals};

use super::{Chart, Finding, Level, at_least};

/// The oldest version that has all that we ask of it.
const VERSION: (u32, u32) = (2, 9);
/// The server's own default: groups are cut to fit below it.
const MAX_PAYLOAD: usize = 1 << 20;

/// The server, then each stream.
pub(super) fn judge(checkup: &Result<BusVitals, BusError>) -> Vec<Finding> {
    let vitals = match checkup {
        Ok(vitals) => vitals,
        Err(fault) => {
            let mut chart = Chart::of("nats");
            let mend = "start it with JetStream, or mend NATS_URL and the way there";
            chart.note("answers", fault.to_string(), Some((Level::Error, mend)));
            return chart.findings;
        }
    };
    let mut chart = Chart::of(format!("nats {}", vitals.server));
    let old = (Level::Error, "nats-server 2.9 or later");
    chart.note("version", &vitals.version, (!at_least(&vitals.version, VERSION)).then_some(old));
    let small = (Level::Warn, "max_payload 1MB or above: large payloads and results may not fit");
    chart.note(
        "max_payload",
        format!("{} bytes", vitals.max_payload),
        (vitals.max_payload < MAX_PAYLOAD).then_some(small),
    );
    let mut findings = chart.findings;
    for (which, told) in &vitals.streams {
        let mut chart = Chart::of(format!("nats {}", which.name()));
        stream(&mut chart, told, vitals.wanted_copies);
        findings.extend(chart.findings);
    }
    findings
}

fn stream(chart: &mut Chart, told: &Result<StreamVitals, BusError>, wanted: usize) {
    match told {
        Err(fault) => {
            let mend = "it is made again by itself; if it stays away, see the logs of the schedulers";
            chart.note("stream", fault.to_string(), Some((Level::Error, mend)));
        }
        Ok(StreamVitals { copies: 1, .. }) if wanted == 1 => {
            // NATS does not tell how often it syncs; every two minutes unless told otherwise.
            let mend =
                "three nodes and NATS_REPLICAS=3; or a short `sync_interval` on the one server, which it does not tell";
            chart.note("copies", "one copy, and what is not synced goes with its machine", Some((Level::Warn, mend)));
        }
        Ok(StreamVitals { copies, .. }) if *copies < wanted => {
            let mend = "`nats stream edit --replicas`, or delete the stream: it is made again and refilled";
            let found = format!("{copies} copies, NATS_REPLICAS says {wanted}");
            chart.note("copies", found, Some((Level::Error, mend)));
        }
        Ok(StreamVitals { copies, in_step }) => {
            let behind = (Level::Warn, "a NATS node is away or catching up");
            let found = format!("{in_step} of {copies} copies are in step");
            chart.note("copies", found, (in_step < copies).then_some(behind));
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_bus::Stream;

    use super::*;

    fn faults(
        version: &str,
        max_payload: usize,
        wanted: usize,
        copies: usize,
        in_step: usize,
    ) -> Vec<(&'static str, Level)> {
        let streams = vec![(Stream::Sys, Ok(StreamVitals { copies, in_step }))];
        let (server, version) = ("n1".to_owned(), version.to_owned());
        let findings = judge(&Ok(BusVitals { server, version, max_payload, wanted_copies: wanted, streams }));
        findings.into_iter().filter(|it| it.level != Level::Ok).map(|it| (it.check, it.level)).collect()
    }

    #[test]
    fn each_fault_is_found_as_itself() {
        assert_eq!(faults("2.10.1", MAX_PAYLOAD, 3, 3, 3), []);
        assert_eq!(faults("2.8.4", MAX_PAYLOAD, 3, 3, 3), [("version", Level::Error)]);
        assert_eq!(faults("2.9.0", 65_536, 3, 3, 3), [("max_payload", Level::Warn)]);
        assert_eq!(faults("2.9.0", MAX_PAYLOAD, 1, 1, 1), [("copies", Level::Warn)]);
        assert_eq!(faults("2.9.0", MAX_PAYLOAD, 3, 1, 1), [("copies", Level::Error)]);
        assert_eq!(faults("2.9.0", MAX_PAYLOAD, 3, 3, 2), [("copies", Level::Warn)]);
    }

    #[test]
    fn a_bus_that_is_away_is_a_fault() {
        let findings = judge(&Err(BusError::Unreadable("gone".to_owned())));
        assert_eq!((findings.len(), findings[0].check, findings[0].level), (1, "answers", Level::Error));
    }
}
