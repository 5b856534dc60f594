//! The basis of the end-to-end tests: a whole stack of real processes from `muster dev`, clients for each of its
//! gateways, workers that count what they run, and the means to kill and pause processes.
//!
//! Promises: every stack is separate (folder, ports, servers) and ends with its test. Leaves to the tests: what must
//! hold.

pub mod by_hand;
mod events;
mod failpoints;
mod probe;
mod program;
pub mod sick;
mod stack;
mod workers;

pub use events::Watch;
pub use failpoints::Failpoints;
pub use probe::{Answer, Probe, metric_sum};
pub use program::Program;
pub use stack::{Away, Options, ProcessState, ShutOut, Stack, State, spawn_forever};
pub use workers::{Executions, Run, Setup, TestWorker, WorkerProcess, pid_in, process_runs};
