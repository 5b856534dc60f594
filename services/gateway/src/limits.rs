//! The bounds of request fields that are the gateway's own.
//!
//! Promises: the reader of a field and the OpenAPI document use the same number. Leaves to others: the bounds of a job's
//! fields (`flow::admission::bounds`), and those of names and labels (`domain`).

use std::ops::RangeInclusive;

/// Ten years in milliseconds: a larger number is a mistake.
const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// How long a request may wait for a job to end, or for work.
pub(crate) const WAIT_MS: RangeInclusive<u64> = 0..=30_000;
/// The most entries of one page of a list.
pub(crate) const PAGE: RangeInclusive<u64> = 1..=500;
/// The most bytes of an idempotency key.
pub(crate) const MOST_IDEMPOTENCY_KEY: usize = 256;
/// The most jobs in one batch.
pub(crate) const MOST_BATCH: usize = 1_000;
/// The number of a version of a workflow.
pub(crate) const VERSION: RangeInclusive<u64> = 1..=u32::MAX as u64;
/// The most bytes of the reason of a cancel or a pause.
pub(crate) const MOST_REASON: usize = 1_000;

/// The most jobs, or topics, in one call of a worker.
pub(crate) const MOST_CALL: usize = 100;
/// The lease of an attempt.
pub(crate) const LEASE_MS: RangeInclusive<u64> = 5_000..=900_000;
/// The delay that a worker wants before the next attempt.
pub(crate) const WORKER_DELAY_MS: RangeInclusive<u64> = 0..=TEN_YEARS_MS;
/// A fence. Numbers up to this one are exact in every language.
pub(crate) const FENCE: RangeInclusive<u64> = 0..=(1 << 53) - 1;
/// The most bytes of an error's details, or of a progress report's data.
pub(crate) const MOST_EXTRA: usize = 64 * 1024;
/// The most bytes of an error's code.
pub(crate) const MOST_ERROR_CODE: usize = 128;
/// The most bytes of a progress report's message.
pub(crate) const MOST_PROGRESS_MESSAGE: usize = 4_000;
/// How far a job is, in percent.
pub(crate) const PERCENT: RangeInclusive<f64> = 0.0..=100.0;
/// The most bytes of a result that is kept.
pub(crate) const MOST_RESULT: usize = 256 * 1024;
/// The most bytes of the beginning of a result that is too large to be kept.
pub(crate) const MOST_PREVIEW: usize = 4 * 1024;
/// The size of a result that a worker has cut itself.
pub(crate) const CUT_RESULT: RangeInclusive<u64> = MOST_RESULT as u64 + 1..=*FENCE.end();

/// The jobs that a bulk operation handles per second.
pub(crate) const BULK_RATE: RangeInclusive<u64> = 1..=5_000;
/// The jobs after which a bulk operation ends as a canary.
pub(crate) const CANARY: RangeInclusive<u64> = 1..=1_000_000_000;

/// The jobs of a topic, or of a concurrency key, that run at once.
pub(crate) const CONCURRENCY: RangeInclusive<u64> = 1..=1_000_000;
/// The jobs of a topic that are released per second.
pub(crate) const RATE: RangeInclusive<f64> = 0.001..=1_000_000.0;
/// The jobs of a topic that are released at once.
pub(crate) const BURST: RangeInclusive<u64> = 1..=1_000_000;
/// The jobs of a topic that may wait.
pub(crate) const BACKLOG: RangeInclusive<u64> = 1..=1_000_000_000;
/// How long an ended record is kept: at least twice as long as the streams keep messages.
pub(crate) const RETENTION_MS: RangeInclusive<u64> = 20 * 60 * 1000..=TEN_YEARS_MS;

/// The most bytes of the name of a key.
pub(crate) const MOST_KEY_NAME: usize = 100;
/// The most topic globs of a key.
pub(crate) const MOST_GLOBS: usize = 100;
/// The most bytes of a topic glob.
pub(crate) const MOST_GLOB: usize = 128;
/// The most stars in a topic glob: matching tries every way to place them.
pub(crate) const MOST_STARS: usize = 3;
/// How long the old secret of a key works after a rotation.
pub(crate) const OVERLAP_MS: RangeInclusive<u64> = 0..=30 * 24 * 3_600_000;
