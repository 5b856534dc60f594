//! What the scheduler can be told, besides what every service can.

use std::time::Duration;

use muster_bus::{Bus, BusSettings};
use muster_chassis::{
    Kind, Setting, Values,
    settings::{admin_addr, loop_interval},
};
use muster_store::RedisSettings;

use crate::{consult::Outside, decide::Counsel, loops::Intervals};

/// The scheduler's own settings.
pub const SETTINGS: &[Setting] = &[
    admin_addr("0.0.0.0:9090"),
    loop_interval("loop_reconciler_interval", "MUSTER_LOOP_RECONCILER_INTERVAL", "5s"),
    loop_interval("loop_streams_interval", "MUSTER_LOOP_STREAMS_INTERVAL", "5s"),
    loop_interval("loop_scrub_interval", "MUSTER_LOOP_SCRUB_INTERVAL", "5s"),
    loop_interval("loop_reread_interval", "MUSTER_LOOP_REREAD_INTERVAL", "5s"),
    loop_interval("loop_backlog_interval", "MUSTER_LOOP_BACKLOG_INTERVAL", "5s"),
    loop_interval("loop_snapshot_interval", "MUSTER_LOOP_SNAPSHOT_INTERVAL", "5s"),
    loop_interval("loop_config_interval", "MUSTER_LOOP_CONFIG_INTERVAL", "30s"),
    Setting::new(
        "outage_wait",
        "MUSTER_OUTAGE_WAIT",
        Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(900) },
        "How long after an outage, or after its start, this replica ends no lease for silence. One usual lease.",
    )
    .or("30s"),
    Setting::new(
        "decide_topics",
        "MUSTER_DECIDE_TOPICS",
        Kind::List,
        "Topics whose jobs somebody outside has a say in, asked on the subject sys.job.decide; * stands for any \
         characters. None: nobody is asked.",
    ),
    Setting::new(
        "decide_timeout",
        "MUSTER_DECIDE_TIMEOUT",
        Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(900) },
        "How long one such question may take before it is asked again.",
    )
    .or("60s"),
];

pub(crate) fn redis(values: &Values) -> RedisSettings {
    RedisSettings {
        pool_size: values.count("redis_pool_size"),
        min_idle: values.count("redis_min_idle_conns"),
        connect_timeout: values.millis("redis_connect_timeout_ms"),
        response_timeout: values.millis("redis_response_timeout_ms"),
        budget: values.millis("redis_call_timeout_ms"),
        ..RedisSettings::new(values.text("redis_url"))
    }
}

pub(crate) fn nats(values: &Values, instance: &str) -> BusSettings {
    BusSettings { replicas: values.count("nats_replicas"), ..BusSettings::new(values.text("nats_url"), instance) }
}

pub(crate) fn intervals(values: &Values) -> Intervals {
    Intervals {
        reconciler: values.duration("loop_reconciler_interval"),
        streams: values.duration("loop_streams_interval"),
        scrub: values.duration("loop_scrub_interval"),
        reread: values.duration("loop_reread_interval"),
        backlog: values.duration("loop_backlog_interval"),
        snapshot: values.duration("loop_snapshot_interval"),
        config: values.duration("loop_config_interval"),
    }
}

/// Who has to be asked first; none if nobody has.
pub(crate) fn counsel(values: &Values, bus: &Bus) -> Option<Box<dyn Counsel>> {
    let topics = values.list("decide_topics").to_vec();
    let outside = Outside::new(bus.clone(), topics, values.duration("decide_timeout"));
    outside.map(|outside| Box::new(outside) as Box<dyn Counsel>)
}

pub(crate) fn outage_wait(values: &Values) -> Duration {
    values.duration("outage_wait")
}
