//! Real servers for tests: Redis (standalone and a six-node cluster) and NATS (one node and three) on
//! free loopback ports in temporary folders, faults to put on them, and waiting with a deadline.
//!
//! Promises: servers die with the test process, however it ends; tests and test binaries that run in parallel do not
//! collide; nothing here depends on the runtime of the test that called first. A failure while a server starts is a
//! panic with the tail of the server's log. This crate uses none of Muster's crates, so that each of them can use it
//! in its tests.

mod binaries;
pub mod clock;
mod cluster;
mod folder;
mod nats;
mod nats_cluster;
mod ports;
mod process;
mod proxy;
mod redis;
mod shared;
mod wait;

pub use binaries::bin;
pub use cluster::RedisCluster;
pub use nats::NatsServer;
pub use nats_cluster::NatsCluster;
pub use ports::free_port;
pub use proxy::Proxy;
pub use redis::RedisServer;
pub use shared::{cluster, nats, redis};
pub use wait::until;

/// Runs blocking work off the caller's runtime; a panic in it is the caller's panic.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => panic!("the test's runtime ended meanwhile: {cancelled}"),
        },
    }
}
