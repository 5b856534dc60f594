//! The workflow service in-process, with a real Redis, a real NATS, a scheduler and workers.

mod concurrency;
#[cfg(feature = "failpoints")]
mod failpoints;
mod operations;
mod outages;
mod replicas;
mod retention;
mod stack;
mod steps;
