//! Many jobs: filtered, newest first, page by page.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{JobId, ProblemCode, State as JobState, Topic};
use muster_store::{Fields, ListError, ListFilter};

use super::{
    jobs::{included, read_include},
    json,
};
use crate::{auth::Caller, json::Faults, limits::PAGE, problem::Problem, query::Params, schema, state::Gateway, view};

const USUAL_PAGE: u64 = 50;

/// List jobs, newest first. A page may be short, even empty: only a missing `next_cursor` ends the list.
#[utoipa::path(
    get, path = "/api/v1/jobs", tag = "jobs",
    params(
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("include" = Option<String>, Query, description = "`payload`, `result`, or both with a comma; a page then ends at 4 MiB of them"),
        ("state" = Option<String>, Query, description = "One or more states with commas"),
        ("topic" = Option<String>, Query, description = "This topic"),
        ("label.<key>" = Option<String>, Query, description = "This label, any number of them"),
        ("error_code" = Option<String>, Query, description = "This error code"),
        ("worker" = Option<String>, Query, description = "Last run by this worker"),
        ("run_id" = Option<String>, Query, description = "Of this run of a workflow"),
        ("created_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("created_before" = Option<String>, Query, description = "Before, RFC 3339"),
        ("finished_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("finished_before" = Option<String>, Query, description = "Before, RFC 3339"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::JobPage),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(super) async fn list(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    let Asked { filter, limit, cursor, fields } = read(params)?;
    let fields = included(&caller, fields)?;
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let page = gateway.flow.store.list(&caller.tenant, cursor.as_deref(), limit, &filter, fields).await;
    let page = page.map_err(|fault| match fault {
        ListError::BadCursor => Problem::field(ProblemCode::InvalidRequest, "/query/cursor", fault.to_string()),
        ListError::Store(error) => error.into(),
    })?;
    let body = view::document(|json| {
        json.list("items", |json| {
            let theirs = page.items.iter().filter(|record| caller.may_touch(&record.spec.topic).is_ok());
            theirs.for_each(|record| json.object(None, |json| view::JobView::of(record).write(json)));
        });
        write_unreadable(json, &caller, &page.unreadable);
        if let Some(next) = &page.next_cursor {
            json.text("next_cursor", next);
        }
    });
    Ok(json(StatusCode::OK, body))
}

/// Lists the unreadable jobs of a page, if the caller may see every topic: their topics are unknown.
pub(super) fn write_unreadable(json: &mut view::Json, caller: &Caller, jobs: &[JobId]) {
    if !jobs.is_empty() && caller.key.topics.is_empty() {
        json.list("unreadable", |json| jobs.iter().for_each(|id| json.item(&id.to_string())));
    }
}

struct Asked {
    filter: ListFilter,
    limit: usize,
    cursor: Option<String>,
    fields: Fields,
}

fn read(mut params: Params) -> Result<Asked, Problem> {
    let f = &mut Faults::default();
    let limit = params.integer("limit", f, PAGE).unwrap_or(USUAL_PAGE);
    let fields = params.read("include", f, read_include).unwrap_or(Fields::NONE);
    let cursor = params.take("cursor").filter(|cursor| !cursor.is_empty());
    let filter = ListFilter {
        states: params.read("state", f, read_states).unwrap_or_default(),
        topic: params.read("topic", f, Topic::parse),
        labels: params.prefixed("label.").into_iter().collect(),
        error_code: params.take("error_code"),
        worker: params.take("worker"),
        run: params.read("run_id", f, str::parse),
        created_after: params.moment("created_after", f),
        created_before: params.moment("created_before", f),
        finished_after: params.moment("finished_after", f),
        finished_before: params.moment("finished_before", f),
    };
    params.finish(std::mem::take(f))?;
    Ok(Asked { filter, limit: usize::try_from(limit).unwrap_or(usize::MAX), cursor, fields })
}

fn read_states(given: &str) -> Result<Vec<JobState>, String> {
    let word = |word: &str| JobState::parse(word).ok_or_else(|| format!("`{word}` is not a state"));
    given.split(',').filter(|text| !text.is_empty()).map(word).collect()
}

#[cfg(test)]
mod tests {
    use axum::extract::FromRequestParts;

    use super::*;

    async fn asked(query: &str) -> Result<Asked, Problem> {
        let (mut parts, ()) = http::Request::builder().uri(format!("/x?{query}")).body(()).unwrap().into_parts();
        read(Params::from_request_parts(&mut parts, &()).await?)
    }

    #[tokio::test]
    async fn every_filter_is_read() {
        let asked = asked(
            "state=failed,timed_out&topic=a.b&label.k=v&error_code=boom&worker=w&run_id=0198c0de-0000-7000-8000-000000000000&limit=7&cursor=b.1.2&include=result\
             &created_after=2026-01-01T00:00:00Z&finished_before=2026-01-02T00:00:00Z",
        )
        .await
        .unwrap();
        assert_eq!(asked.filter.states, [JobState::Failed, JobState::TimedOut]);
        assert_eq!(asked.filter.labels["k"], "v");
        assert_eq!(
            asked.filter.run.map(|run| run.to_string()).as_deref(),
            Some("0198c0de-0000-7000-8000-000000000000")
        );
        assert!(asked.filter.created_after.is_some() && asked.filter.finished_before.is_some());
        assert_eq!((asked.limit, asked.cursor.as_deref()), (7, Some("b.1.2")));
        assert_eq!(asked.fields, Fields { payload: false, result: true });
    }

    #[tokio::test]
    async fn wrong_filters_are_refused_and_never_ignored() {
        for (query, pointer) in [
            ("state=finished", "/query/state"),
            ("topic=A", "/query/topic"),
            ("limit=501", "/query/limit"),
            ("limit=-1", "/query/limit"),
            ("include=everything", "/query/include"),
            ("created_after=yesterday", "/query/created_after"),
            ("run_id=1", "/query/run_id"),
            ("States=failed", "/query/States"),
        ] {
            let problem = asked(query).await.err().expect(query);
            assert_eq!((problem.status().as_u16(), problem.errors[0].pointer.as_str()), (422, pointer), "{query}");
        }
    }
}
