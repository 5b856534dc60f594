//! Runs, from outside: what a run asks for, what it answers to what happens, and the promises that hold for every run.

#[path = "runs/approvals.rs"]
mod approvals;
#[path = "runs/basics.rs"]
mod basics;
#[path = "runs/compensation.rs"]
mod compensation;
#[path = "runs/nesting.rs"]
mod nesting;
#[path = "runs/operations.rs"]
mod operations;
#[path = "runs/oracle.rs"]
mod oracle;
#[path = "runs/properties.rs"]
mod properties;
#[path = "runs/reruns.rs"]
mod reruns;
#[path = "runs/signals.rs"]
mod signals;
#[path = "runs/slots.rs"]
mod slots;
#[path = "runs/tape.rs"]
mod tape;
#[path = "runs/values.rs"]
mod values;
#[path = "runs/views.rs"]
mod views;
#[path = "runs/world.rs"]
mod world;
