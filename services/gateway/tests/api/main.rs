//! Tests of the gateway's API: gateways run in this process on free ports, over real Redis and NATS. The end-to-end
//! tests cover what needs a scheduler.

mod definitions;
mod events;
mod faults;
mod gate;
mod hygiene;
mod idempotency;
mod input;
mod jobs;
mod keys;
mod limits;
mod openapi;
mod retention;
mod run_asks;
mod run_start;
mod run_values;
mod runs;
mod schemas;
mod workers;
mod workflows;
