//! Calls about runs of workflows. A repeated call has its effect once: it carries an idempotency key. To complete or to
//! skip a step needs none, because the same request for the same step is one operation.

use std::time::Duration;

use muster_domain::RunId;
use reqwest::Method;
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::{
    Client, LONGEST_WAIT,
    error::ClientError,
    pages::Pages,
    run::Run,
    run_request::{CancelOptions, RerunRequest, RunFilter, StartOptions, raw},
    run_views::{RerunPlan, RunExplanation, RunItems, RunTimeline},
    transport::{Answer, Call},
    workflow::GraphFormat,
};

/// A run that was started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StartedRun {
    /// The run.
    pub run: Run,
    /// The run existed already, under the same idempotency key.
    pub replayed: bool,
}

impl StartedRun {
    fn read(answer: &Answer) -> Result<StartedRun, ClientError> {
        Ok(StartedRun { run: answer.json()?, replayed: answer.replayed })
    }
}

#[derive(Serialize)]
struct Output<'a> {
    output: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Client {
    /// Starts a run. Once this returns `Ok`, the run will reach exactly one end.
    pub async fn start_run(
        &self,
        workflow: &str,
        input: &(impl Serialize + ?Sized),
        options: StartOptions,
    ) -> Result<StartedRun, ClientError> {
        let input = raw(input, "input")?;
        let key = options.idempotency_key.clone().unwrap_or_else(random_key);
        let call = Call::new(Method::POST, ["workflows", workflow, "runs"]).body(&options.body(&input))?;
        let call = options.wait.into_iter().fold(call.idempotency_key(Some(key)), Call::wait);
        StartedRun::read(&self.transport.call(&call).await?)
    }

    /// The current state of a run, with its steps.
    pub async fn get_run(&self, id: RunId) -> Result<Run, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["runs".to_owned(), id.to_string()])).await?.json()
    }

    /// A run as soon as it has ended, or its state after `wait` (at most 30 s).
    pub async fn get_run_wait(&self, id: RunId, wait: Duration) -> Result<Run, ClientError> {
        let call = Call::new(Method::GET, ["runs".to_owned(), id.to_string()]).wait(wait.min(LONGEST_WAIT));
        self.transport.call(&call).await?.json()
    }

    /// Waits until a run has ended, well or not. [`ClientError::NotDone`] when `limit` has passed.
    pub async fn wait_run(&self, id: RunId, limit: Duration) -> Result<Run, ClientError> {
        self.until_done(limit, |left| self.get_run_wait(id, left), |run| run.done).await
    }

    /// Lists runs, newest first, page by page.
    pub fn list_runs(&self, filter: RunFilter) -> Pages<Run> {
        let first = Call::new(Method::GET, ["runs"]);
        let first = filter.query().into_iter().fold(first, |call, (name, value)| call.query(name, value));
        Pages::new(self.clone(), first)
    }

    /// Cancels a run: nothing new starts except its compensations. Repeating is fine; for a run that ended in another
    /// way the gateway answers `run_done`.
    pub async fn cancel_run(&self, id: RunId, options: &CancelOptions) -> Result<Run, ClientError> {
        self.operate(id, &["cancel"], options, Some(random_key())).await
    }

    /// Pauses a run: what runs, runs on, and nothing new starts.
    pub async fn pause_run(&self, id: RunId) -> Result<Run, ClientError> {
        self.operate(id, &["pause"], &json!({}), Some(random_key())).await
    }

    /// Resumes a paused run.
    pub async fn resume_run(&self, id: RunId) -> Result<Run, ClientError> {
        self.operate(id, &["resume"], &json!({}), Some(random_key())).await
    }

    /// Tries the compensations of an ended run again that are missing.
    pub async fn compensate_run(&self, id: RunId) -> Result<Run, ClientError> {
        self.operate(id, &["compensate"], &json!({}), Some(random_key())).await
    }

    /// Sends a signal to a run, which keeps it until a step reads it.
    pub async fn signal_run(
        &self,
        id: RunId,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Run, ClientError> {
        self.signal_run_once(id, name, value, random_key()).await
    }

    /// Sends a signal under a key: the same key twice is one signal.
    pub async fn signal_run_once(
        &self,
        id: RunId,
        name: &str,
        value: &(impl Serialize + ?Sized),
        idempotency_key: impl Into<String>,
    ) -> Result<Run, ClientError> {
        let call = post(id, &["signals", name]).body(&raw(value, "signal")?)?;
        self.transport.call(&call.idempotency_key(Some(idempotency_key.into()))).await?.json()
    }

    /// Completes a step that is stuck, with an output.
    pub async fn complete_step(
        &self,
        id: RunId,
        step: &str,
        output: &(impl Serialize + ?Sized),
        reason: Option<&str>,
    ) -> Result<Run, ClientError> {
        let output = raw(output, "output")?;
        self.operate(id, &["steps", step, "complete"], &Output { output: &output, reason }, None).await
    }

    /// Skips a step that is stuck.
    pub async fn skip_step(&self, id: RunId, step: &str, reason: Option<&str>) -> Result<Run, ClientError> {
        let body = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
        self.operate(id, &["steps", step, "skip"], &body, None).await
    }

    /// Runs an ended run again in part, as a new run that names the old one in `rerun_of`.
    pub async fn rerun_run(&self, id: RunId, request: &RerunRequest) -> Result<StartedRun, ClientError> {
        let call = post(id, &["rerun"]).body(request)?.idempotency_key(Some(random_key()));
        StartedRun::read(&self.transport.call(&call).await?)
    }

    /// What a rerun would do. Nothing is stored.
    pub async fn plan_rerun(&self, id: RunId, request: &RerunRequest) -> Result<RerunPlan, ClientError> {
        self.transport.call(&post(id, &["rerun"]).body(&request.dry())?).await?.json()
    }

    /// What happened in a run, when and why.
    pub async fn run_timeline(&self, id: RunId) -> Result<RunTimeline, ClientError> {
        self.transport.call(&get(id, &["timeline"])).await?.json()
    }

    /// Why a run is in its state, and what it waits for.
    pub async fn run_explain(&self, id: RunId) -> Result<RunExplanation, ClientError> {
        self.transport.call(&get(id, &["explain"])).await?.json()
    }

    /// Items of a for-each, from an index on. [`RunItems::next_from`] is where the next call begins.
    pub async fn run_items(&self, id: RunId, step: &str, from: u32, limit: u32) -> Result<RunItems, ClientError> {
        let call = get(id, &["steps", step, "items"]);
        let call = call.query("from", from.to_string()).query("limit", limit.to_string());
        self.transport.call(&call).await?.json()
    }

    /// A drawing of a run; its steps have the colours of their states.
    pub async fn run_graph(&self, id: RunId, format: GraphFormat) -> Result<String, ClientError> {
        self.transport.call(&get(id, &["graph"]).query("format", format.as_str())).await?.text()
    }

    async fn operate(
        &self,
        id: RunId,
        what: &[&str],
        body: &impl Serialize,
        key: Option<String>,
    ) -> Result<Run, ClientError> {
        self.transport.call(&post(id, what).body(body)?.idempotency_key(key)).await?.json()
    }
}

fn get(id: RunId, rest: &[&str]) -> Call {
    Call::new(Method::GET, path(id, rest))
}

fn post(id: RunId, rest: &[&str]) -> Call {
    Call::new(Method::POST, path(id, rest))
}

fn path(id: RunId, rest: &[&str]) -> impl Iterator<Item = String> {
    ["runs".to_owned(), id.to_string()].into_iter().chain(rest.iter().map(|&part| part.to_owned()))
}

fn random_key() -> String {
    uuid::Uuid::new_v4().to_string()
}
