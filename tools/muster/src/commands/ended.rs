//! Waits for the end of a job or a run, by long polls on any gateway, and judges it.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Caller;
use crate::{
    api::{Answer, Call},
    outcome::{Code, Failure},
    output, spans,
};

/// The longest time that one request waits.
const POLL: Duration = Duration::from_secs(20);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Job,
    Run,
}

impl What {
    fn noun(self) -> &'static str {
        match self {
            What::Job => "job",
            What::Run => "run",
        }
    }

    fn late(self) -> &'static str {
        match self {
            What::Job => "`muster job history` shows its steps; use a longer --timeout",
            What::Run => "`muster run explain` says what it waits for; use a longer --timeout",
        }
    }

    /// Waits until it has ended, and returns it.
    pub(super) async fn until_done(
        self,
        caller: &Caller,
        id: &str,
        timeout: Option<Duration>,
    ) -> anyhow::Result<Answer> {
        let (noun, spinner) = (self.noun(), output::spinner(format!("waiting for {id}")));
        let limit = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = limit.map_or(POLL, |limit| limit.saturating_duration_since(Instant::now()).min(POLL));
            let call =
                Call::get(format!("/{noun}s/{id}")).query("wait_ms", spans::millis(left).to_string()).waits(left);
            let answer = caller.api.call(&call).await.map_err(Failure::from)?;
            let state = answer.value["state"].as_str().unwrap_or_default().to_owned();
            if answer.value["done"] == Value::Bool(true) {
                return Ok(answer);
            }
            if left.is_zero() {
                return Err(Failure::new(format!("{noun} {id} is still {state}")).hint(self.late()).into());
            }
            spinner.set_message(format!("{id} is {state}"));
        }
    }

    /// Succeeds if it succeeded; exit code 4 otherwise.
    pub(super) fn judged(self, ended: &Value) -> Result<(), Failure> {
        let state = ended["state"].as_str().unwrap_or_default();
        if state == "succeeded" {
            return Ok(());
        }
        let mut words = format!("the {} ended as {state}", self.noun());
        if let Some(message) = ended["error"]["message"].as_str() {
            words += &format!(": {message}");
        }
        if let Some(step) = ended["error"]["step"].as_str() {
            words += &format!(" (step {step})");
        }
        Err(Failure::new(words).with_code(Code::JobFailed))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_success_is_fine() {
        assert!(What::Job.judged(&json!({"state": "succeeded"})).is_ok());
        let failed = What::Job.judged(&json!({"state": "failed", "error": {"message": "no disk"}})).unwrap_err();
        assert_eq!(failed.to_string(), "the job ended as failed: no disk");
        let failed = json!({"state": "failed", "error": {"message": "none left", "step": "reserve[3]"}});
        let failed = What::Run.judged(&failed).unwrap_err();
        assert_eq!(failed.to_string(), "the run ended as failed: none left (step reserve[3])");
    }
}
