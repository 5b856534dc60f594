//! Requests about runs: how to start one, which ones to list, what a cancel and a rerun do.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{RunId, Time};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{LONGEST_WAIT, error::ClientError};

/// How to start a run. By default: the latest version, no labels, no wait.
///
/// ```
/// use std::time::Duration;
/// use muster_sdk::StartOptions;
///
/// let options = StartOptions::new().label("shop", "east").idempotency_key("order-4711").wait(Duration::from_secs(5));
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct StartOptions {
    labels: BTreeMap<String, String>,
    version: Option<u32>,
    pub(super) idempotency_key: Option<String>,
    pub(super) wait: Option<Duration>,
}

/// The body of a start.
#[derive(Debug, Serialize)]
pub(super) struct StartBody<'a> {
    input: &'a RawValue,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
}

impl StartOptions {
    /// The defaults.
    pub fn new() -> StartOptions {
        StartOptions::default()
    }

    /// Adds a label for finding the run again.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Starts this version instead of the latest one.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// Two starts with the same key are one run. Without a key, a random one makes the client's own repetitions
    /// harmless.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Waits up to this long (at most 30 s) for the end of the run. Check `run.done`.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(LONGEST_WAIT)).filter(|wait| !wait.is_zero());
        self
    }

    pub(super) fn body<'a>(&'a self, input: &'a RawValue) -> StartBody<'a> {
        StartBody { input, labels: &self.labels, version: self.version }
    }
}

/// Which runs to list; all of them by default.
///
/// ```
/// use muster_sdk::RunFilter;
/// let filter = RunFilter::new().workflow("order").state("failed").state("timed_out").label("shop", "east");
/// # drop(filter);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RunFilter {
    states: Vec<String>,
    include: Vec<&'static str>,
    query: Vec<(String, String)>,
}

impl RunFilter {
    /// All runs.
    pub fn new() -> RunFilter {
        RunFilter::default()
    }

    fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((key.into(), value.into()));
        self
    }

    /// Only runs of this workflow.
    pub fn workflow(self, name: impl Into<String>) -> Self {
        self.with("workflow", name)
    }

    /// Only runs in this state; several states mean any of them.
    pub fn state(mut self, state: impl Into<String>) -> Self {
        self.states.push(state.into());
        self
    }

    /// Only runs with this label.
    pub fn label(self, key: &str, value: impl Into<String>) -> Self {
        self.with(format!("label.{key}"), value)
    }

    /// Only runs of this version of their workflow.
    pub fn version(self, version: u32) -> Self {
        self.with("version", version.to_string())
    }

    /// Only runs that failed with this code.
    pub fn error_code(self, code: impl Into<String>) -> Self {
        self.with("error_code", code)
    }

    /// Only runs that a step of this run started.
    pub fn parent(self, run: RunId) -> Self {
        self.with("parent_run_id", run.to_string())
    }

    /// Only runs accepted after this moment.
    pub fn created_after(self, moment: Time) -> Self {
        self.with("created_after", moment.rfc3339())
    }

    /// Only runs accepted before this moment.
    pub fn created_before(self, moment: Time) -> Self {
        self.with("created_before", moment.rfc3339())
    }

    /// Only runs that ended after this moment.
    pub fn finished_after(self, moment: Time) -> Self {
        self.with("finished_after", moment.rfc3339())
    }

    /// Only runs that ended before this moment.
    pub fn finished_before(self, moment: Time) -> Self {
        self.with("finished_before", moment.rfc3339())
    }

    /// Sets the most runs per page.
    pub fn limit(self, runs: usize) -> Self {
        self.with("limit", runs.to_string())
    }

    /// Includes the inputs.
    pub fn include_input(mut self) -> Self {
        self.include.push("input");
        self
    }

    /// Includes the outputs.
    pub fn include_output(mut self) -> Self {
        self.include.push("output");
        self
    }

    /// The parameters of the first page.
    pub(super) fn query(self) -> Vec<(String, String)> {
        let lists = [("state", self.states.join(",")), ("include", self.include.join(","))];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        lists.map(|(name, list)| (name.to_owned(), list)).chain(self.query).collect()
    }
}

/// How to cancel a run. By default its compensations run.
#[derive(Clone, Debug, Default, Serialize)]
#[must_use]
pub struct CancelOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    compensate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl CancelOptions {
    /// The defaults.
    pub fn new() -> CancelOptions {
        CancelOptions::default()
    }

    /// Leaves everything as it is: no compensation runs.
    pub fn without_compensation(mut self) -> Self {
        self.compensate = Some(false);
        self
    }

    /// Sets the reason.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// What a rerun of an ended run does again. The new run takes over the results of every step that ended well, is neither
/// this step nor behind it, and was not undone; a step whose compensation began runs again, with the steps behind it. Look
/// with [`Client::plan_rerun`](crate::Client::plan_rerun).
///
/// ```
/// use muster_sdk::RerunRequest;
/// let rerun = RerunRequest::from_step("charge").input(&serde_json::json!({"total": 12}))?;
/// # drop(rerun);
/// # Ok::<(), muster_sdk::ClientError>(())
/// ```
#[derive(Clone, Debug, Default, Serialize)]
#[must_use]
pub struct RerunRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_items: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

impl RerunRequest {
    /// Runs this step again, and every step behind it.
    pub fn from_step(step: impl Into<String>) -> RerunRequest {
        RerunRequest { from: Some(step.into()), ..RerunRequest::default() }
    }

    /// Runs the items of this for-each again that did not succeed, and every step behind it.
    pub fn failed_items(step: impl Into<String>) -> RerunRequest {
        RerunRequest { failed_items: Some(step.into()), ..RerunRequest::default() }
    }

    /// Uses another input.
    pub fn input(mut self, input: &(impl Serialize + ?Sized)) -> Result<Self, ClientError> {
        self.input = Some(raw(input, "input")?);
        Ok(self)
    }

    /// Uses another version of the workflow.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// The same request, of which nothing is stored.
    pub(super) fn dry(&self) -> RerunRequest {
        RerunRequest { dry_run: true, ..self.clone() }
    }
}

/// A value as JSON text.
pub(super) fn raw(value: &(impl Serialize + ?Sized), what: &str) -> Result<Box<RawValue>, ClientError> {
    serde_json::value::to_raw_value(value)
        .map_err(|error| ClientError::Invalid(format!("the {what} cannot be written as JSON: {error}")))
}
