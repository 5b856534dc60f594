//! Dead letters: jobs that ended badly, and messages that a service could not decode.

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{JobErrorCode, ProblemCode, State as JobState, Time, Topic};
use muster_store::{DeadMessage, DeadMessageCause, Fields, ListError, ListFilter, PAGE_WORK, Record};

use super::{Named, json, lists::write_unreadable};
use crate::{
    auth::Caller,
    json::Faults,
    limits::PAGE,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, JobView, Json},
};

const USUAL_PAGE: u64 = 50;
/// The most causes that a summary lists.
const MOST_CAUSES: usize = 500;

/// List the dead letters, newest first. A page may be short: only a missing `next_cursor` ends the list.
#[utoipa::path(
    get, path = "/api/v1/dlq", tag = "dead letters",
    params(
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("kind" = Option<String>, Query, description = "`job` (the default), or `message`: those that could not be read, for keys of all tenants only"),
        ("state" = Option<String>, Query, description = "One or more bad ends with commas"),
        ("topic" = Option<String>, Query, description = "This topic"),
        ("label.<key>" = Option<String>, Query, description = "This label, any number of them"),
        ("error_code" = Option<String>, Query, description = "This error code"),
        ("worker" = Option<String>, Query, description = "Last run by this worker"),
        ("created_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("created_before" = Option<String>, Query, description = "Before, RFC 3339"),
        ("finished_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("finished_before" = Option<String>, Query, description = "Before, RFC 3339"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::DeadLetterPage),
        (status = 403, description = "Messages, and the key is one tenant's", body = schema::Problem),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
) -> Result<Response, Problem> {
    let f = &mut Faults::default();
    let limit = params.integer("limit", f, PAGE).unwrap_or(USUAL_PAGE);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let cursor = params.take("cursor").filter(|cursor| !cursor.is_empty());
    let messages = params.read("kind", f, read_kind).unwrap_or(false);
    // Messages have none of the fields that a filter matches.
    let filter = if messages { ListFilter::default() } else { read_filter(&mut params, f) };
    params.finish(std::mem::take(f))?;
    if messages && caller.key.tenant.is_some() {
        return Err(Problem::new(
            ProblemCode::MissingScope,
            "this key lacks all tenants: nobody knows whose message it is that cannot be read",
        ));
    }
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let store = &gateway.flow.store;
    let body = if messages {
        let (items, next) = store.list_dead_messages(cursor.as_deref(), limit).await.map_err(refused)?;
        let write = |json: &mut Json| items.iter().for_each(|m| json.object(None, |json| write_message(json, m)));
        page(next, |json| json.list("items", write))
    } else {
        let found = store.list(&caller.tenant, cursor.as_deref(), limit, &filter, Fields::NONE).await;
        let found = found.map_err(refused)?;
        let theirs = found.items.iter().filter(|record| caller.may_touch(&record.spec.topic).is_ok());
        let write = |json: &mut Json| theirs.for_each(|record| json.object(None, |json| write_job(json, record)));
        page(found.next_cursor, |json| {
            json.list("items", write);
            write_unreadable(json, &caller, &found.unreadable);
        })
    };
    Ok(json(StatusCode::OK, body))
}

/// Count the dead letters by cause, topic, error code and state: the most recent 2,000 jobs and, for keys of all
/// tenants, the most recent 2,000 messages; and whether there are more.
#[utoipa::path(
    get, path = "/api/v1/dlq/summary", tag = "dead letters",
    params(
        ("state" = Option<String>, Query, description = "One or more bad ends with commas"),
        ("topic" = Option<String>, Query, description = "This topic"),
        ("label.<key>" = Option<String>, Query, description = "This label, any number of them"),
        ("error_code" = Option<String>, Query, description = "This error code"),
        ("worker" = Option<String>, Query, description = "Last run by this worker"),
        ("created_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("created_before" = Option<String>, Query, description = "Before, RFC 3339"),
        ("finished_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("finished_before" = Option<String>, Query, description = "Before, RFC 3339"),
    ),
    responses(
        (status = 200, description = "The counts", body = schema::DeadLetterSummary),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(super) async fn summary(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let filter = read_filter(&mut params, &mut faults);
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let store = &gateway.flow.store;
    let found = store.list(&caller.tenant, None, PAGE_WORK + 1, &filter, Fields::NONE).await.map_err(refused)?;
    let total = store.count_dead_letters(&caller.tenant).await?;
    let mut counts = Tables::default();
    let theirs = found.items.iter().filter(|record| caller.may_touch(&record.spec.topic).is_ok());
    theirs.for_each(|record| counts.add(record));
    let messages = match caller.key.tenant {
        None => Some(store.count_dead_messages().await?),
        Some(_) => None,
    };
    if messages.is_some_and(|n| n > 0) {
        let causes = store.dead_message_causes(PAGE_WORK).await.map_err(refused)?;
        causes.into_iter().for_each(|message| counts.add_message(message));
    }
    let body = view::document(|json| {
        json.integer("counted", counts.all);
        json.boolean("more", total.max(messages.unwrap_or(0)) > PAGE_WORK as u64);
        json.list("by_cause", |json| write_causes(json, &counts.causes));
        json.list("by_topic", |json| write_counts(json, "topic", &counts.topics));
        json.list("by_error_code", |json| write_counts(json, "error_code", &counts.codes));
        json.list("by_state", |json| write_counts(json, "state", &counts.states));
        if let Some(messages) = messages {
            json.integer("messages", messages);
        }
    });
    Ok(json(StatusCode::OK, body))
}

/// Counts of dead letters by topic, code, state and cause.
#[derive(Default)]
struct Tables {
    all: u64,
    topics: BTreeMap<String, u64>,
    codes: BTreeMap<String, u64>,
    states: BTreeMap<String, u64>,
    causes: BTreeMap<Cause, Seen>,
}

/// Why a job or message is a dead letter.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// The state in which the job ended, and its error code if there is one.
    Job { state: JobState, code: Option<String> },
    /// The subject of a message, and what is wrong with the message.
    Message { subject: String, reason: String },
}

/// The number of dead letters with one cause, and the time of the last one.
#[derive(Default)]
struct Seen {
    count: u64,
    last: Time,
}

impl Tables {
    fn seen(&mut self, cause: Cause, at: Time) {
        let seen = self.causes.entry(cause).or_default();
        seen.count += 1;
        seen.last = seen.last.max(at);
    }

    fn add_message(&mut self, message: DeadMessageCause) {
        let DeadMessageCause { subject, reason, at } = message;
        self.seen(Cause::Message { subject, reason }, at);
    }

    fn add(&mut self, record: &Record) {
        self.all += 1;
        let code = record.error.as_ref().map(|error| error.code.clone());
        self.seen(Cause::Job { state: record.head.state(), code }, record.head.since);
        *self.topics.entry(record.spec.topic.to_string()).or_default() += 1;
        *self.states.entry(record.head.state().to_string()).or_default() += 1;
        if let Some(error) = &record.error {
            *self.codes.entry(error.code.clone()).or_default() += 1;
        }
    }
}

/// Writes counts, the highest first.
fn write_counts(json: &mut Json, name: &str, counts: &BTreeMap<String, u64>) {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    for (value, n) in sorted {
        json.object(None, |json| {
            json.text(name, value);
            json.integer("count", *n);
        });
    }
}

/// Writes causes, the most frequent first; among equals, the most recent first.
fn write_causes(json: &mut Json, causes: &BTreeMap<Cause, Seen>) {
    let mut sorted: Vec<_> = causes.iter().collect();
    sorted.sort_by_key(|(_, seen)| std::cmp::Reverse((seen.count, seen.last)));
    for (cause, seen) in sorted.into_iter().take(MOST_CAUSES) {
        json.object(None, |json| {
            match cause {
                Cause::Job { state, code } => {
                    json.text("kind", "job");
                    json.text("cause", code.as_deref().unwrap_or(state.as_str()));
                    json.text("state", state.as_str());
                }
                Cause::Message { subject, reason } => {
                    json.text("kind", "message");
                    json.text("cause", JobErrorCode::Undecodable.as_str());
                    json.text("subject", subject);
                    json.text("reason", reason);
                }
            }
            json.integer("count", seen.count);
            json.moment("last_seen", seen.last.some());
        });
    }
}

/// Delete a message that could not be read. Jobs are deleted by `DELETE /jobs/{id}`.
#[utoipa::path(
    delete, path = "/api/v1/dlq/messages/{id}", tag = "dead letters",
    params(("id" = String, Path, description = "The message, as `GET /dlq?kind=message` names it")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "No such message", body = schema::Problem),
    )
)]
pub(super) async fn delete_message(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(id): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let store = &gateway.flow.store;
    let unknown = || Problem::new(ProblemCode::NotFound, "there is no such message");
    store.dead_message(&id).await?.ok_or_else(unknown)?;
    gateway.tell(gateway.act(&caller, "message_delete").target(format!("message/{id}"))).await?;
    match store.delete_dead_message(&id).await? {
        true => Ok(json(StatusCode::NO_CONTENT, bytes::Bytes::new())),
        false => Err(unknown()),
    }
}

fn page(next: Option<String>, fill: impl FnOnce(&mut Json)) -> bytes::Bytes {
    view::document(|json| {
        fill(json);
        if let Some(next) = next {
            json.text("next_cursor", &next);
        }
    })
}

fn write_job(json: &mut Json, record: &Record) {
    json.text("kind", "job");
    json.text("reason", &reason(record));
    JobView::of(record).write(json);
}

fn write_message(json: &mut Json, message: &DeadMessage) {
    json.text("kind", "message");
    json.text("id", &message.id);
    json.text("subject", &message.subject);
    json.text("reason", &message.reason);
    json.integer("size", message.original.len() as u64);
    json.moment("found_at", message.at.some());
}

/// Why the job is a dead letter, as text.
fn reason(record: &Record) -> String {
    let (head, attempts) = (&record.head, format!("{} of {}", record.head.attempt, record.head.max_attempts));
    match head.state() {
        JobState::Failed if head.attempt >= head.max_attempts => format!("failed on its last attempt ({attempts})"),
        JobState::Failed => format!("failed for good on attempt {attempts}"),
        JobState::TimedOut => format!("ran out of time on attempt {attempts}"),
        JobState::Expired => "did not start in time".to_owned(),
        JobState::Quarantined => format!("its worker fell silent on every attempt ({attempts})"),
        other => format!("ended {other}"),
    }
}

fn read_kind(given: &str) -> Result<bool, &'static str> {
    match given {
        "job" => Ok(false),
        "message" => Ok(true),
        _ => Err("must be `job` or `message`"),
    }
}

fn read_filter(params: &mut Params, f: &mut Faults) -> ListFilter {
    let states = params.read("state", f, read_states).unwrap_or_default();
    let bad_ends = || JobState::ALL.iter().copied().filter(|state| state.is_bad_end()).collect();
    ListFilter {
        states: if states.is_empty() { bad_ends() } else { states },
        topic: params.read("topic", f, Topic::parse),
        labels: params.prefixed("label.").into_iter().collect(),
        error_code: params.take("error_code"),
        worker: params.take("worker"),
        run: params.read("run_id", f, str::parse),
        created_after: params.moment("created_after", f),
        created_before: params.moment("created_before", f),
        finished_after: params.moment("finished_after", f),
        finished_before: params.moment("finished_before", f),
    }
}

fn read_states(given: &str) -> Result<Vec<JobState>, String> {
    let word = |word: &str| match JobState::parse(word) {
        Some(state) if state.is_bad_end() => Ok(state),
        _ => Err(format!("`{word}` is not a bad end")),
    };
    given.split(',').filter(|text| !text.is_empty()).map(word).collect()
}

/// The refusal of a list, as a problem.
pub(super) fn refused(fault: ListError) -> Problem {
    match fault {
        ListError::BadCursor => Problem::field(ProblemCode::InvalidRequest, "/query/cursor", fault.to_string()),
        ListError::Store(error) => error.into(),
    }
}
