//! What a worker does with a job, however the job came: over NATS or over HTTP.

use bytes::Bytes;
use muster_sdk::{HandlerError, JobResult};
use tokio_util::sync::CancellationToken;

use super::{
    builtin::{self, Tally},
    drilled,
    exec::Exec,
};
use crate::record::Recorder;

/// One attempt at a job.
pub(super) struct Task {
    pub(super) job_id: String,
    pub(super) attempt: u32,
    pub(super) fence: u64,
    /// JSON; empty if the job has none.
    pub(super) payload: Bytes,
    /// Cancelled when nobody wants the result any more.
    pub(super) stop: CancellationToken,
}

/// The handler that the command line chose.
pub(super) enum Work {
    Exec(Exec),
    Echo,
    Sleep,
    Fail,
    Count(Tally),
    Record(Recorder),
    Drill(Tally),
}

impl Work {
    /// Does it; the result is JSON.
    pub(super) async fn run(&self, task: Task) -> Result<JobResult, HandlerError> {
        let json = match self {
            Work::Exec(exec) => return exec.run(task).await,
            Work::Echo => Ok(builtin::echo(task.payload)),
            Work::Sleep => builtin::sleep(&task).await,
            Work::Fail => Err(builtin::fail(&task.payload)),
            Work::Count(tally) => tally.count(&task),
            Work::Record(recorder) => {
                recorder.note(&task.job_id);
                Ok(Bytes::from_static(b"1"))
            }
            Work::Drill(tally) => drilled::play(tally, &task).await,
        };
        json.map(JobResult::Whole)
    }
}
