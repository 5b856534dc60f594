//! Workflows: what a definition means, and what a run of it does.
//!
//! This crate reads and checks definitions ([`definition`]) and moves runs along them ([`run`]), whose values it bounds
//! ([`value`]). It is pure: no I/O, no
//! clock, no randomness, so the same input gives the same answer on every replica and on a laptop. It leaves storing
//! definitions and runs, and carrying out what a run asks for, to the workflow service.

pub mod definition;
pub mod run;
pub mod value;
