//! The replica crate against real Redis and NATS.

mod process;
mod shards;
mod takeover;
