//! The workflow service in-process, with a real Redis, a real NATS, a scheduler and workers.

mod outages;
mod stack;
mod steps;
