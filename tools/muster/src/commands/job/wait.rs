//! Waits for a job to end, by long polls on any gateway.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::Instant;

use super::{Caller, ask, checked, shown};
use crate::{
    api::{Answer, Call},
    outcome::{Code, Failure},
    output, spans,
};

/// The longest time that one request waits.
const POLL: Duration = Duration::from_secs(20);

/// Wait until a job has ended; exit code 4 if it did not succeed
#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The job's id
    id: String,

    /// Give up after this long
    #[arg(long, value_parser = spans::parse, value_name = "DURATION")]
    timeout: Option<Duration>,
}

impl Wait {
    pub(super) async fn run(self, caller: &Caller) -> anyhow::Result<()> {
        let answer = until_done(caller, checked(&self.id)?, self.timeout).await?;
        shown(caller, &answer);
        Ok(judged(&answer.value)?)
    }
}

/// Waits until the job has ended, and returns it.
pub(super) async fn until_done(caller: &Caller, id: &str, timeout: Option<Duration>) -> anyhow::Result<Answer> {
    let spinner = output::spinner(format!("waiting for {id}"));
    let limit = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = limit.map_or(POLL, |limit| limit.saturating_duration_since(Instant::now()).min(POLL));
        let call = Call::get(format!("/jobs/{id}")).query("wait_ms", spans::millis(left).to_string()).waits(left);
        let answer = ask(caller, &call).await?;
        let state = answer.value["state"].as_str().unwrap_or_default().to_owned();
        if answer.value["done"] == Value::Bool(true) {
            return Ok(answer);
        }
        if left.is_zero() {
            let failure = Failure::new(format!("job {id} is still {state}"));
            return Err(failure.hint("`muster job history` shows its steps; use a longer --timeout").into());
        }
        spinner.set_message(format!("{id} is {state}"));
    }
}

/// Succeeds if the job succeeded; exit code 4 otherwise.
pub(super) fn judged(job: &Value) -> Result<(), Failure> {
    let state = job["state"].as_str().unwrap_or_default();
    if state == "succeeded" {
        return Ok(());
    }
    let why = job["error"]["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
    Err(Failure::new(format!("the job ended as {state}{why}")).with_code(Code::JobFailed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_success_is_fine() {
        assert!(judged(&json!({"state": "succeeded"})).is_ok());
        let failed = judged(&json!({"state": "failed", "error": {"message": "no disk"}})).unwrap_err();
        assert_eq!(failed.to_string(), "the job ended as failed: no disk");
    }
}
