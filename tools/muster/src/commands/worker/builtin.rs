//! Handlers that need no program: echo, sleep, fail, count. For first steps, tests and load.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use muster_domain::WorkerId;
use muster_sdk::HandlerError;
use serde::Deserialize;

use super::task::Task;

/// The error code for an invalid payload.
const INVALID_PAYLOAD: &str = "invalid_payload";

/// Returns the payload; without a payload, `null`.
pub(super) fn echo(payload: Bytes) -> Bytes {
    if payload.is_empty() { Bytes::from_static(b"null") } else { payload }
}

/// Takes `{"ms": n}` and sleeps that long, or ends early when the attempt is cancelled.
pub(super) async fn sleep(task: &Task) -> Result<Bytes, HandlerError> {
    #[derive(Deserialize)]
    struct Nap {
        ms: u64,
    }
    let nap: Nap = serde_json::from_slice(&task.payload)
        .map_err(|e| HandlerError::permanent(format_args!("sleep takes {{\"ms\": n}}: {e}")).code(INVALID_PAYLOAD))?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(nap.ms)) => Ok(format!("{{\"slept_ms\":{}}}", nap.ms).into()),
        () = task.stop.cancelled() => Err(HandlerError::retryable("told to stop")),
    }
}

/// The failure that the payload describes.
pub(super) fn fail(payload: &[u8]) -> HandlerError {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Wish {
        code: Option<String>,
        message: Option<String>,
        retryable: Option<bool>,
    }
    let wish: Wish = serde_json::from_slice(payload).unwrap_or_default();
    let message = wish.message.unwrap_or_else(|| "failed as asked".to_owned());
    let error = match wish.retryable {
        Some(false) => HandlerError::permanent(message),
        _ => HandlerError::retryable(message),
    };
    match wish.code {
        Some(code) => error.code(code),
        None => error,
    }
}

/// The number of executions and, optionally, a file with a line for each: job, attempt, fence. Each line is one write
/// in append mode, so workers may share the file, and a kill loses or duplicates no line.
pub(super) struct Tally {
    open: Mutex<(Option<File>, u64)>,
    /// The worker's name, for the end of each line.
    by: Option<WorkerId>,
}

impl Tally {
    /// Counts this worker's own executions, from one.
    pub(super) fn in_memory() -> Tally {
        Tally { open: Mutex::new((None, 0)), by: None }
    }

    /// Continues at the end of the file.
    pub(super) fn open(path: &Path) -> anyhow::Result<Tally> {
        let file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let lines = BufReader::new(&file).lines().count() as u64;
        Ok(Tally { open: Mutex::new((Some(file), lines)), by: None })
    }

    /// Adds the worker's name to each line.
    pub(super) fn signed(self, by: &WorkerId) -> Tally {
        Tally { by: Some(by.clone()), ..self }
    }

    /// Counts this execution; the result is the number of executions.
    pub(super) fn count(&self, task: &Task) -> Result<Bytes, HandlerError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &mut open.0 {
            let by = self.by.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
            let line = format!("{} {} {}{by}\n", task.job_id, task.attempt, task.fence);
            file.write_all(line.as_bytes())?;
        }
        open.1 += 1;
        Ok(open.1.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn task(payload: &'static str) -> Task {
        let payload = Bytes::from_static(payload.as_bytes());
        let (stop, leaves) = (CancellationToken::new(), Box::new(|| false));
        Task { job_id: "j".into(), attempt: 2, fence: 9, payload, stop, leaves }
    }

    #[test]
    fn count_writes_a_line_per_execution_and_goes_on_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("count");
        assert_eq!(Tally::open(&file).unwrap().count(&task("")).unwrap(), "1");
        assert_eq!(Tally::open(&file).unwrap().count(&task("")).unwrap(), "2");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "j 2 9\nj 2 9\n");
        Tally::open(&file).unwrap().signed(&WorkerId::parse("w1").unwrap()).count(&task("")).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().ends_with("\nj 2 9 w1\n"));
    }

    #[test]
    fn count_needs_no_file() {
        let tally = Tally::in_memory();
        assert_eq!([tally.count(&task("")).unwrap(), tally.count(&task("")).unwrap()], ["1", "2"]);
    }

    #[test]
    fn fail_does_as_the_payload_says() {
        let error = fail(br#"{"code":"c","message":"m","retryable":false}"#);
        assert_eq!((error.code.as_str(), error.message.as_str(), error.retryable), ("c", "m", false));
        assert!(fail(b"").retryable && fail(b"[]").retryable);
    }

    #[tokio::test]
    async fn sleep_ends_at_once_when_told_to() {
        let long = task(r#"{"ms":100000}"#);
        long.stop.cancel();
        assert!(sleep(&long).await.unwrap_err().retryable);
        assert_eq!(sleep(&task(r#"{"ms":1}"#)).await.unwrap(), r#"{"slept_ms":1}"#);
        assert!(!sleep(&task("7")).await.unwrap_err().retryable);
    }
}
