//! Lists: the pages of any list, and the filter of jobs.

use std::{fmt, marker::PhantomData};

use muster_domain::{State, Time};
use reqwest::Method;
use serde::{Deserialize, de::DeserializeOwned};

use super::{Client, error::ClientError, job::Job, transport::Call};

/// Which jobs to list; all of them by default.
///
/// ```
/// use muster_sdk::{JobFilter, State};
/// let filter = JobFilter::new().state(State::Failed).topic("mail.send").label("campaign", "spring");
/// # drop(filter);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct JobFilter {
    states: Vec<&'static str>,
    include: Vec<&'static str>,
    query: Vec<(String, String)>,
}

impl JobFilter {
    /// All jobs.
    pub fn new() -> JobFilter {
        JobFilter::default()
    }

    fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((key.into(), value.into()));
        self
    }

    /// Only jobs in this state; several states mean any of them.
    pub fn state(mut self, state: State) -> Self {
        self.states.push(state.as_str());
        self
    }

    /// Only jobs of this topic.
    pub fn topic(self, topic: impl Into<String>) -> Self {
        self.with("topic", topic)
    }

    /// Only jobs with this label.
    pub fn label(self, key: &str, value: impl Into<String>) -> Self {
        self.with(format!("label.{key}"), value)
    }

    /// Only jobs that failed with this code.
    pub fn error_code(self, code: impl Into<String>) -> Self {
        self.with("error_code", code)
    }

    /// Only jobs that this worker ran.
    pub fn worker(self, worker: impl Into<String>) -> Self {
        self.with("worker", worker)
    }

    /// Only jobs of this run of a workflow.
    pub fn run_id(self, run_id: impl Into<String>) -> Self {
        self.with("run_id", run_id)
    }

    /// Only jobs accepted after this moment.
    pub fn created_after(self, moment: Time) -> Self {
        self.with("created_after", moment.rfc3339())
    }

    /// Only jobs accepted before this moment.
    pub fn created_before(self, moment: Time) -> Self {
        self.with("created_before", moment.rfc3339())
    }

    /// Only jobs that ended after this moment.
    pub fn finished_after(self, moment: Time) -> Self {
        self.with("finished_after", moment.rfc3339())
    }

    /// Only jobs that ended before this moment.
    pub fn finished_before(self, moment: Time) -> Self {
        self.with("finished_before", moment.rfc3339())
    }

    /// Sets the most jobs per page.
    pub fn limit(self, jobs: usize) -> Self {
        self.with("limit", jobs.to_string())
    }

    /// Includes the payloads.
    pub fn include_payload(mut self) -> Self {
        self.include.push("payload");
        self
    }

    /// Includes the results.
    pub fn include_result(mut self) -> Self {
        self.include.push("result");
        self
    }

    /// The call for the first page.
    pub(super) fn call(self) -> Call {
        let lists = [("state", self.states.join(",")), ("include", self.include.join(","))];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let call = lists.fold(Call::new(Method::GET, ["jobs"]), |call, (name, list)| call.query(name, list));
        self.query.into_iter().fold(call, |call, (key, value)| call.query(key, value))
    }
}

/// A list that is read page by page, newest first.
#[must_use]
pub struct Pages<T = Job> {
    client: Client,
    first: Call,
    cursor: Option<String>,
    over: bool,
    items: PhantomData<fn() -> T>,
}

#[derive(Deserialize)]
struct Page<T> {
    items: Vec<T>,
    #[serde(default)]
    next_cursor: Option<String>,
}

impl<T> Pages<T> {
    pub(super) fn new(client: Client, first: Call) -> Pages<T> {
        Pages { client, first, cursor: None, over: false, items: PhantomData }
    }

    /// Begins at the [`Pages::cursor`] of another list.
    pub fn from_cursor(mut self, cursor: impl Into<String>) -> Pages<T> {
        self.cursor = Some(cursor.into());
        self
    }

    /// Where the next page begins; `None` before the first and after the last.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }
}

impl<T: DeserializeOwned> Pages<T> {
    /// The next page; `None` after the last. A page may be short, or even empty: the list goes on.
    pub async fn next_page(&mut self) -> Result<Option<Vec<T>>, ClientError> {
        if self.over {
            return Ok(None);
        }
        let mut call = self.first.clone();
        if let Some(cursor) = &self.cursor {
            call = call.query("cursor", cursor);
        }
        let page: Page<T> = self.client.transport.call(&call).await?.json()?;
        self.over = page.next_cursor.is_none();
        self.cursor = page.next_cursor;
        Ok(Some(page.items))
    }

    /// All remaining items at once. Beware of large lists.
    pub async fn all(mut self) -> Result<Vec<T>, ClientError> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await? {
            all.extend(page);
        }
        Ok(all)
    }
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("first", &self.first).field("cursor", &self.cursor).finish_non_exhaustive()
    }
}
