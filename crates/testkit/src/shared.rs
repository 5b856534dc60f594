//! One server of each kind per test process, started on first use. Tests that share a server use names of their own
//! and neither stop nor flush it. The servers are started outside any runtime, because the runtime of the first test
//! ends before the other tests do.

use std::sync::OnceLock;

use crate::{NatsServer, RedisCluster, RedisServer, off_runtime};

/// The standalone Redis that the tests of this process share.
pub async fn redis() -> &'static RedisServer {
    static SHARED: OnceLock<RedisServer> = OnceLock::new();
    off_runtime(|| SHARED.get_or_init(|| RedisServer::start_blocking(&[]))).await
}

/// The Redis Cluster of six nodes that the tests of this process share.
pub async fn cluster() -> &'static RedisCluster {
    static SHARED: OnceLock<RedisCluster> = OnceLock::new();
    off_runtime(|| SHARED.get_or_init(RedisCluster::start_steady_blocking)).await
}

/// The NATS server that the tests of this process share.
pub async fn nats() -> &'static NatsServer {
    static SHARED: OnceLock<NatsServer> = OnceLock::new();
    off_runtime(|| SHARED.get_or_init(NatsServer::start_blocking)).await
}
