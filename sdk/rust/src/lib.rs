//! Muster for Rust programs: submit jobs and run them, and compose them into workflows.
//!
//! [`Client`] uses HTTP to talk to the gateways. It tries them in turn, repeats calls that may be repeated with the
//! same idempotency key, and honours `Retry-After`; a job whose submit returned `Ok` reaches exactly one end.
//!
//! ```no_run
//! use std::time::Duration;
//! use muster_sdk::{Client, JobRequest};
//!
//! # async fn example() -> Result<(), muster_sdk::ClientError> {
//! let client = Client::new(["http://127.0.0.1:8081"], "mst_key")?;
//! let submitted = client.submit(JobRequest::new("math.square").payload(&7)).await?;
//! let job = client.wait(submitted.job.id, Duration::from_secs(30)).await?;
//! assert_eq!(job.result_as::<u64>()?, 49);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] also stores workflows, starts runs of them and steers them. [`Client::workflow`] names the types of input
//! and output once; see [`WorkflowHandle`].
//!
//! [`Worker`] pulls work over NATS and runs a handler for each job, as many at once as it has slots.
//!
//! ```no_run
//! use muster_sdk::{Context, Worker};
//!
//! # async fn example() -> Result<(), muster_sdk::WorkerError> {
//! Worker::builder("nats://127.0.0.1:4222")
//!     .handle("math.square", |_: Context, n: u64| async move { Ok(n * n) })
//!     .build()?
//!     .run_until_signal()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! What a handler may rely on:
//! - It runs at least once, at most `max_attempts` times; each attempt has a higher [`fence`](Context::fence). Make its
//!   effects harmless to repeat, or protect them with the fence.
//! - An error leads to another attempt later, unless it is [permanent](HandlerError::permanent). A panic counts as an
//!   error. A result of more than 256 KiB is a success of which only a preview is kept.
//! - While the worker's loop runs, its leases are extended, however long the handler takes. Do not block the thread:
//!   use `tokio::task::spawn_blocking` for such work.
//! - When the result is no longer wanted (cancelled, timed out, lost, draining), [`cancelled`](Context::cancelled)
//!   resolves; some seconds later the handler is aborted.
//! - An outage of NATS or of every scheduler ends nothing: handlers continue, and results are delivered when NATS and
//!   the schedulers are back.
//!
//! With the feature `opentelemetry`, and a layer of `tracing-opentelemetry` in the program, each handler runs under a
//! span `attempt` in its job's own trace. Without them, the trace is a field of that span.
//!
//! The schedulers decide what happens to a job and write it to Redis; this crate never guesses.

mod client;
pub mod sse;
mod worker;

pub use client::{
    ApiKey, AttemptRecord, CancelOptions, Client, ClientBuilder, ClientError, Compensation, FieldError, GraphFormat,
    History, HistoryEntry, Identity, ItemCounts, Job, JobFailure, JobFilter, JobProgress, JobRequest, NewKey, Pages,
    Problem, RerunPlan, RerunRequest, RetryRequest, Run, RunExplanation, RunFailure, RunFilter, RunHandle, RunItem,
    RunItems, RunStep, RunTimeline, RunWait, StartOptions, StartedRun, Status, Submitted, TimelineEntry, Workflow,
    WorkflowHandle, WorkflowSource, WorkflowSummary, WorkflowVersion,
};
pub use muster_domain::{
    Backoff, Durability, JobId, Labels, OnLostLease, Priority, RetryPolicy, RunId, State, Tenant, Time, Topic,
    TraceParent, WorkerId,
};
pub use worker::{
    Context, HandlerError, INVALID_PAYLOAD, JobResult, LEAVE_GRACE, MAX_RESULT, RESULT_PREVIEW, StopReason, Summary,
    Worker, WorkerBuilder, WorkerError, WorkerHandle,
};
