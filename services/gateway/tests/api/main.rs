//! The gateway as its clients see it: started in this process on free ports, over real Redis and
//! NATS. What needs a scheduler is shown by the end-to-end tests.

mod events;
mod faults;
mod gate;
mod idempotency;
mod input;
mod jobs;
mod keys;
mod limits;
mod openapi;
mod retention;
mod schemas;
mod workers;
