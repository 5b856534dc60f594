//! Workflows: what a definition means, and what a run of it does.
//!
//! This crate reads and checks definitions ([`definition`]). It is pure: no I/O, no clock, no randomness, so the same
//! input gives the same answer on every replica and on a laptop. It leaves storing definitions and running jobs to the
//! workflow service.

pub mod definition;
