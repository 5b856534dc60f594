//! Gauges of the state of the stores and replicas, which only one replica shows.
//!
//! Knows: what is measured how often ([`MEASURES`]). Promises: each measure is a few reads, however many jobs there
//! are; one that fails leaves its gauges unchanged and stops no other. Nothing here is on the path of a job. Leaves to
//! others: the choice of the leader, and the judgement of the values (`doctor` of the gateway).

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::join_all;
use muster_telemetry::Gauge;
use tracing::{debug, error};

use super::shown::{Measured, Series, Shown};
use crate::context::Context;

/// Interval for values that change quickly.
const OFTEN: Duration = Duration::from_secs(10);
/// Interval for values that change only when a person changes them.
const RARELY: Duration = Duration::from_secs(60);
/// An API key that expires within this time counts as expiring.
const EXPIRES: (Duration, &str) = (Duration::from_secs(7 * 24 * 3600), "7d");
/// Newest entries of the audit log that are verified.
const AUDIT_TAIL: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Measure {
    Streams,
    Replicas,
    DeadLetters,
    Backup,
    Redis,
    Keys,
    Audit,
}

/// All measures with their intervals.
const MEASURES: [(Measure, Duration); 7] = [
    (Measure::Streams, OFTEN),
    (Measure::Replicas, OFTEN),
    (Measure::DeadLetters, OFTEN),
    (Measure::Backup, OFTEN),
    (Measure::Redis, RARELY),
    (Measure::Keys, RARELY),
    (Measure::Audit, RARELY),
];

/// The vital gauges, as this replica last showed them.
#[derive(Default)]
pub(super) struct VitalGauges {
    parts: [Part; MEASURES.len()],
}

#[derive(Default)]
struct Part {
    shown: Shown,
    measured: Option<Instant>,
}

impl VitalGauges {
    /// Takes the measures that are due.
    pub(super) async fn measure(&mut self, context: &Context) {
        let due = self.parts.iter_mut().zip(MEASURES);
        let due = due.filter(|(part, (_, every))| part.measured.is_none_or(|at| at.elapsed() >= *every));
        let one = async |(part, (measure, _)): (&mut Part, (Measure, Duration))| {
            part.measured = Some(Instant::now());
            match measure.read(context).await {
                Ok(now) => part.shown.replace(now),
                Err(fault) => debug!(event = "not_measured", ?measure, detail = format!("{fault:#}"), "not measured"),
            }
        };
        join_all(due.map(one)).await;
    }

    /// Clears the gauges, which another replica shows now; the next measures begin anew.
    pub(super) fn stand_down(&mut self) {
        for part in &mut self.parts {
            part.shown.replace(Measured::new());
            part.measured = None;
        }
    }
}

impl Measure {
    async fn read(self, context: &Context) -> anyhow::Result<Measured> {
        let store = context.store();
        Ok(match self {
            Measure::Streams => streams(context).await?,
            Measure::Replicas => {
                let counts = store.replica_counts().await?.into_iter();
                counts.map(|(service, n)| ((Gauge::Replicas, service, ""), n as f64)).collect()
            }
            Measure::DeadLetters => one(Gauge::DeadLettersCurrent, store.count_all_dead_letters().await? as f64),
            Measure::Backup => {
                let at = store.last_backup().await?.map_or(0, |backup| backup.at.0);
                one(Gauge::BackupLastSuccess, Duration::from_micros(at).as_secs_f64())
            }
            Measure::Redis => redis(context).await?,
            Measure::Keys => {
                let (within, label) = EXPIRES;
                let expiring = store.count_keys_expiring(within).await? as f64;
                Measured::from([((Gauge::ApiKeysExpiring, label.to_owned(), ""), expiring)])
            }
            Measure::Audit => {
                let broken = store.verify_audit_tail(AUDIT_TAIL).await?;
                if let Some(place) = &broken {
                    let (number, id, reason) = (place.number, &place.id, &place.reason);
                    error!(event = "audit_chain_broken", number, id, reason, "the audit log was tampered with");
                }
                one(Gauge::AuditChainBroken, flag(broken.is_some()))
            }
        })
    }
}

async fn streams(context: &Context) -> anyhow::Result<Measured> {
    let (streams, storage) = tokio::join!(context.bus().stream_vitals(), context.bus().storage());
    let storage = storage?;
    let mut now = one(Gauge::NatsStorageUsed, storage.used as f64);
    now.insert(plain(Gauge::NatsStorageLimit), storage.limit.unwrap_or(0) as f64);
    for (stream, vitals) in streams {
        let vitals = vitals.context(stream.name())?;
        for (gauge, value) in [
            (Gauge::NatsStreamBytes, vitals.bytes),
            (Gauge::NatsStreamMessages, vitals.messages),
            (Gauge::NatsStreamLimit, vitals.max_bytes.unwrap_or(0)),
            (Gauge::NatsStreamConsumers, vitals.consumers),
            (Gauge::NatsStreamLagging, vitals.lagging() as u64),
        ] {
            now.insert((gauge, stream.name().to_owned(), ""), value as f64);
        }
    }
    Ok(now)
}

/// The worst values of all primaries; fails while one of them does not answer.
async fn redis(context: &Context) -> anyhow::Result<Measured> {
    let (mut logs, mut evicts) = (true, false);
    for (node, vitals) in context.store().vitals().await? {
        let vitals = vitals.with_context(|| node.to_string())?;
        logs &= vitals.append_only;
        evicts |= vitals.eviction != "noeviction";
    }
    let mut now = one(Gauge::RedisAofEnabled, flag(logs));
    now.insert(plain(Gauge::RedisEvicts), flag(evicts));
    Ok(now)
}

fn one(gauge: Gauge, value: f64) -> Measured {
    Measured::from([(plain(gauge), value)])
}

fn plain(gauge: Gauge) -> Series {
    (gauge, String::new(), "")
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}
