//! Requirements for NATS and its streams.

use muster_bus::{BusError, BusVitals, Drift, StorageVitals, StreamVitals};

use super::{Chart, Finding, Level, Version, at_least, latency, numbers};

/// The oldest version with all the features that Muster uses.
const VERSION: (u32, u32) = (2, 9);
/// Versions with a fault that affects Muster: the first one, the last one, and the remedy.
const BAD: &[(Version, Version, &str)] = &[(
    (2, 10, 20),
    (2, 10, 22),
    "use nats-server 2.10.23 or later: this version may lose a stream when its machine crashes",
)];
/// Percentages of the storage limit: from the first on, storage is nearly full; from the second on, it counts as
/// full.
const NEARLY_FULL: (u64, u64) = (80, 95);
/// The default of the server. Groups are cut to fit below it.
const MAX_PAYLOAD: usize = 1 << 20;

/// Checks the server, then each stream.
pub(super) fn judge(answer: &Result<BusVitals, BusError>) -> Vec<Finding> {
    let vitals = match answer {
        Ok(vitals) => vitals,
        Err(fault) => {
            let mut chart = Chart::of("nats");
            let mend = "start NATS with JetStream, or correct NATS_URL and the network";
            chart.note("answers", fault.to_string(), Some((Level::Error, mend)));
            return chart.findings;
        }
    };
    let mut chart = Chart::of(format!("nats {}", vitals.server));
    chart.note("version", &vitals.version, version(&vitals.version));
    let small = (Level::Warn, "set max_payload to 1MB or more: large payloads and results may not fit");
    chart.note(
        "max_payload",
        format!("{} bytes", vitals.max_payload),
        (vitals.max_payload < MAX_PAYLOAD).then_some(small),
    );
    latency(&mut chart, vitals.latency);
    storage(&mut chart, vitals.storage);
    let sync = "nats-server does not report its sync_interval; its default is 2 min. If the machines of all copies \
                crash at once, messages that were not synced are lost";
    chart.note("sync", sync, None);
    if vitals.wanted_copies > 1 && !vitals.clustered {
        let found = format!("NATS_REPLICAS is {}, but this server is not part of a cluster", vitals.wanted_copies);
        let mend = "set NATS_REPLICAS=1 for a single server, or use a NATS cluster: otherwise no stream can be created";
        chart.note("settings", found, Some((Level::Error, mend)));
    }
    let mut findings = chart.findings;
    for (which, told) in &vitals.streams {
        let mut chart = Chart::of(format!("nats {}", which.name()));
        stream(&mut chart, told, vitals.wanted_copies);
        findings.extend(chart.findings);
    }
    findings
}

fn version(version: &str) -> Option<(Level, &'static str)> {
    if !at_least(version, VERSION) {
        return Some((Level::Error, "use nats-server 2.9 or later"));
    }
    let number = numbers(version)?;
    let bad = BAD.iter().find(|(from, to, _)| (*from..=*to).contains(&number));
    bad.map(|(_, _, mend)| (Level::Warn, *mend))
}

fn storage(chart: &mut Chart, StorageVitals { used, limit }: StorageVitals) {
    let Some(limit) = limit else {
        let found =
            format!("{used} bytes used; the account has no limit of its own, and the server does not report its limit");
        return chart.note("storage", found, None);
    };
    let share = used.saturating_mul(100) / limit.max(1);
    let mend = "add disk and raise the limit, or keep fewer jobs on the bus: NATS refuses offers and results when its \
                storage is full";
    let fault = match share {
        share if share >= NEARLY_FULL.1 => Some((Level::Error, mend)),
        share if share >= NEARLY_FULL.0 => Some((Level::Warn, mend)),
        _ => None,
    };
    chart.note("storage", format!("{used} of {limit} bytes used, {share} %"), fault);
}

/// Reports fields of streams and consumers that differ from what Muster sets.
pub(super) fn judge_drift(drift: &Result<Vec<Drift>, BusError>) -> Vec<Finding> {
    const MEND: &str = "Muster corrects what can be changed in place; otherwise delete the stream or consumer: Muster \
                        creates and fills it again";
    let mut chart = Chart::of("nats");
    match drift {
        Err(fault) => {
            chart.note("drift", fault.to_string(), Some((Level::Warn, "streams and consumers could not be compared")));
        }
        Ok(fields) if fields.is_empty() => {
            chart.note("drift", "streams and consumers are as Muster created them", None)
        }
        Ok(fields) => {
            for Drift { what, field, want, got } in fields {
                let level = if what.starts_with("stream") { Level::Error } else { Level::Warn };
                chart.note("drift", format!("{what}: {field} is {got}, Muster set {want}"), Some((level, MEND)));
            }
        }
    }
    chart.findings
}

fn stream(chart: &mut Chart, told: &Result<StreamVitals, BusError>, wanted: usize) {
    match told {
        Err(fault) => {
            let mend = "Muster creates it again; if it stays missing, read the logs of the schedulers";
            chart.note("stream", fault.to_string(), Some((Level::Error, mend)));
        }
        Ok(StreamVitals { copies: 1, .. }) if wanted == 1 => {
            // NATS does not report how often it syncs. Its default is every two minutes.
            let mend = "use three nodes and NATS_REPLICAS=3, or a short `sync_interval` on the single server (the \
                        doctor cannot see it)";
            chart.note(
                "copies",
                "one copy: messages that were not synced are lost with its machine",
                Some((Level::Warn, mend)),
            );
        }
        Ok(StreamVitals { copies, .. }) if *copies < wanted => {
            let mend = "run `nats stream edit --replicas`, or delete the stream: Muster creates and fills it again";
            let found = format!("{copies} copies, NATS_REPLICAS says {wanted}");
            chart.note("copies", found, Some((Level::Error, mend)));
        }
        Ok(StreamVitals { copies, in_step, .. }) => {
            let behind = (Level::Warn, "a NATS node is down or still catching up: start it, or wait");
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
        let streams = vec![(Stream::Sys, Ok(StreamVitals { copies, in_step, ..StreamVitals::default() }))];
        let (server, version) = ("n1".to_owned(), version.to_owned());
        let vitals =
            BusVitals { server, version, max_payload, wanted_copies: wanted, clustered: true, streams, ..sound() };
        faults_of(vitals)
    }

    fn sound() -> BusVitals {
        BusVitals { version: "2.9.10".to_owned(), max_payload: MAX_PAYLOAD, ..BusVitals::default() }
    }

    fn faults_of(vitals: BusVitals) -> Vec<(&'static str, Level)> {
        let findings = judge(&Ok(vitals));
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
    fn versions_that_lose_streams_are_named() {
        let of = |version: &str| version_fault(version);
        assert_eq!([of("2.10.19"), of("2.10.23"), of("2.11.0"), of("2.9.10")], [None; 4]);
        assert_eq!([of("2.10.20"), of("2.10.21"), of("2.10.22")], [Some(Level::Warn); 3]);
        assert_eq!(of("2.8.4"), Some(Level::Error));
    }

    fn version_fault(text: &str) -> Option<Level> {
        version(text).map(|(level, _)| level)
    }

    #[test]
    fn storage_that_fills_up_is_told_before_it_is_full() {
        let of = |used, limit| faults_of(BusVitals { storage: StorageVitals { used, limit }, ..sound() });
        assert_eq!(of(1 << 40, None), []);
        assert_eq!(of(79, Some(100)), []);
        assert_eq!(of(80, Some(100)), [("storage", Level::Warn)]);
        assert_eq!(of(95, Some(100)), [("storage", Level::Error)]);
    }

    #[test]
    fn three_copies_on_one_server_are_an_error() {
        assert_eq!(faults_of(BusVitals { wanted_copies: 3, ..sound() }), [("settings", Level::Error)]);
        assert_eq!(faults_of(BusVitals { wanted_copies: 3, clustered: true, ..sound() }), []);
    }

    #[test]
    fn what_was_changed_by_hand_is_named_by_its_field() {
        let drift =
            |what: &str| Drift { what: what.into(), field: "max_age".into(), want: "6".into(), got: "1".into() };
        let findings = judge_drift(&Ok(vec![drift("stream MUSTER_SYS"), drift("consumer dur_x")]));
        assert_eq!((findings[0].level, findings[1].level), (Level::Error, Level::Warn));
        assert_eq!(findings[0].found, "stream MUSTER_SYS: max_age is 1, Muster set 6");
        assert_eq!(judge_drift(&Ok(Vec::new()))[0].level, Level::Ok);
    }

    #[test]
    fn a_bus_that_is_away_is_a_fault() {
        let findings = judge(&Err(BusError::Unreadable("gone".to_owned())));
        assert_eq!((findings.len(), findings[0].check, findings[0].level), (1, "answers", Level::Error));
    }
}
