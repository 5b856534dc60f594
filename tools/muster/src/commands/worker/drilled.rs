//! The handler of `muster drill`: does what the payload says, including killing the worker. Each result carries the
//! attempt and fence under which it ran, so that a checker can tell which report was recorded.

use std::time::Duration;

use bytes::Bytes;
use muster_sdk::HandlerError;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{builtin::Tally, task::Task};

/// What a job of a drill does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Part {
    /// How long each attempt takes.
    pub(crate) ms: u64,
    /// How many attempts kill their worker.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) crashes: u32,
    /// How many attempts fail.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) failures: u32,
    /// Whether the failure is permanent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) permanent: bool,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Runs one attempt.
pub(super) async fn play(tally: &Tally, task: &Task) -> Result<Bytes, HandlerError> {
    tally.count(task)?;
    let stamp = json!({ "attempt": task.attempt, "fence": task.fence });
    let part: Part = serde_json::from_slice(&task.payload)
        .map_err(|e| HandlerError::permanent(format_args!("no part of a drill: {e}")).details(&stamp))?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(part.ms)) => (),
        () = task.stop.cancelled() => return Err(HandlerError::retryable("told to stop").details(&stamp)),
    }
    if task.attempt <= part.crashes {
        // Nothing is flushed and no message is sent: as if the machine had failed.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
    if task.attempt <= part.failures {
        let error = match part.permanent {
            true => HandlerError::permanent("failed for good, as its part says"),
            false => HandlerError::retryable("failed, as its part says"),
        };
        return Err(error.details(&stamp));
    }
    Ok(stamp.to_string().into())
}
