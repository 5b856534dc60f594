//! Runs the jobs of a worker, whether they came over NATS or over HTTP.

use bytes::Bytes;
use muster_sdk::{HandlerError, JobResult};

use super::{
    builtin::{self, Tally},
    drilled,
    exec::Exec,
    task::Task,
};
use crate::record::Recorder;

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
    /// Runs the job; the result is JSON.
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
