//! The bounds of a job's numbers, for every reader: requests, settings, workflow definitions.
//!
//! The bounds of names, labels and keys are part of their types.

use std::ops::RangeInclusive;

/// Ten years in milliseconds: a larger number is a mistake.
const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;
/// The span until a job's start-by or deadline.
pub const SPAN_MS: RangeInclusive<u64> = 1..=TEN_YEARS_MS;
/// The delay of a job, and the pauses between its attempts.
pub const DELAY_MS: RangeInclusive<u64> = 0..=TEN_YEARS_MS;
/// The limit of one attempt.
pub const TIMEOUT_MS: RangeInclusive<u64> = 1..=u32::MAX as u64;
/// The number of attempts.
pub const ATTEMPTS: RangeInclusive<u64> = 1..=1000;
/// The factor between two pauses.
pub const FACTOR: RangeInclusive<f64> = 1.0..=100.0;
/// The random part of a pause.
pub const JITTER: RangeInclusive<f64> = 0.0..=1.0;
