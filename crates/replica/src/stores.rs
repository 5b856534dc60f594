//! Connects Redis and NATS as set in the settings.

use std::sync::Arc;

use muster_bus::{Bus, BusSettings};
use muster_chassis::{
    Values,
    settings::baseline::{
        NATS_REPLICAS, NATS_URL, REDIS_CALL_TIMEOUT, REDIS_CONNECT_TIMEOUT, REDIS_MIN_IDLE_CONNS, REDIS_POOL_SIZE,
        REDIS_RESPONSE_TIMEOUT, REDIS_URL,
    },
};
use muster_flow::Flow;
use muster_store::{RedisSettings, Store};

/// The settings for the connection to Redis.
pub fn redis(values: &Values) -> RedisSettings {
    RedisSettings {
        pool_size: values.get(REDIS_POOL_SIZE),
        min_idle: values.get(REDIS_MIN_IDLE_CONNS),
        connect_timeout: values.get(REDIS_CONNECT_TIMEOUT),
        response_timeout: values.get(REDIS_RESPONSE_TIMEOUT),
        budget: values.get(REDIS_CALL_TIMEOUT),
        ..RedisSettings::new(values.get(REDIS_URL))
    }
}

/// The settings for the connection to NATS, with this replica's name there.
pub fn nats(values: &Values, instance: &str) -> BusSettings {
    BusSettings { replicas: values.get(NATS_REPLICAS), ..BusSettings::new(values.get(NATS_URL), instance) }
}

/// Connects both stores. Messages carry Redis time.
pub async fn connect(values: &Values, instance: &str) -> anyhow::Result<Flow> {
    let store = Store::connect(redis(values)).await?;
    let bus = Bus::connect(nats(values, instance)).await?;
    let clock = store.clone();
    bus.set_clock(Arc::new(move || clock.now()));
    Ok(Flow::new(store, bus))
}
