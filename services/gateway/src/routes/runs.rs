//! Many runs: filtered, newest first, page by page. What concerns one run is in the files beside this one.

pub(super) mod asked;
pub(super) mod bulk;
pub(super) mod operations;
pub(super) mod rerun;
pub(super) mod views;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{ProblemCode, WorkflowName};
use muster_engine::run::RunState;
use muster_runs::{ListRefused, RunFilter, RunValues};

use super::json;
use crate::{
    access::{Access, Scope},
    auth::Caller,
    json::Faults,
    limits::{PAGE, VERSION},
    problem::Problem,
    query::Params,
    runs, schema,
    state::Gateway,
    view::{
        self,
        run::{RunParts, RunView, unread},
    },
};

const USUAL_PAGE: u64 = 50;

/// List runs, newest first. A page may be short, even empty: only a missing `next_cursor` ends the list.
#[utoipa::path(
    get, path = "/api/v1/runs", tag = "runs",
    params(
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("include" = Option<String>, Query, description = "`input`, `output`, or both with a comma; a page then ends at 4 MiB of them"),
        ("workflow" = Option<String>, Query, description = "Of this workflow"),
        ("version" = Option<u32>, Query, description = "Of this version of the workflow"),
        ("state" = Option<String>, Query, description = "One or more states with commas"),
        ("label.<key>" = Option<String>, Query, description = "This label, any number of them"),
        ("error_code" = Option<String>, Query, description = "This error code"),
        ("parent_run_id" = Option<String>, Query, description = "Started by a step of this run"),
        ("created_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("created_before" = Option<String>, Query, description = "Before, RFC 3339"),
        ("finished_after" = Option<String>, Query, description = "At or after, RFC 3339"),
        ("finished_before" = Option<String>, Query, description = "Before, RFC 3339"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::RunPage),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(super) async fn list(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    let Asked { filter, limit, cursor, values } = read(params)?;
    if values != RunValues::default() {
        caller.may(Access::Scope(Scope::Payloads))?;
    }
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let sees = |run: &muster_engine::run::Run| runs::may_see(&caller, run);
    let page = gateway.runs.list(&caller.tenant, cursor.as_deref(), limit, &filter, values, sees).await;
    let page = page.map_err(|fault| match fault {
        ListRefused::BadCursor => Problem::field(ProblemCode::InvalidRequest, "/query/cursor", fault.to_string()),
        ListRefused::Fault(fault) => fault.into(),
    })?;
    let parts = RunParts { input: values.input, output: values.output, ..RunParts::HEAD };
    let views: Vec<RunView<'_>> =
        page.items.iter().map(|run| RunView::of(run, parts)).collect::<Result<_, _>>().map_err(unread)?;
    let body = view::document(|json| {
        json.list("items", |json| views.iter().for_each(|run| json.object(None, |json| run.write(json))));
        // The workflows of these runs are unknown, so only a caller who may see every topic learns about them.
        if !page.unreadable.is_empty() && caller.covers_all() {
            json.list("unreadable", |json| page.unreadable.iter().for_each(|id| json.item(&id.to_string())));
        }
        if let Some(next) = &page.next_cursor {
            json.text("next_cursor", next);
        }
    });
    Ok(json(StatusCode::OK, body))
}

struct Asked {
    filter: RunFilter,
    limit: usize,
    cursor: Option<String>,
    values: RunValues,
}

fn read(mut params: Params) -> Result<Asked, Problem> {
    let f = &mut Faults::default();
    let limit = params.integer("limit", f, PAGE).unwrap_or(USUAL_PAGE);
    let values = params.read("include", f, read_include).unwrap_or_default();
    let cursor = params.take("cursor").filter(|cursor| !cursor.is_empty());
    let version = params.integer("version", f, VERSION);
    let filter = RunFilter {
        workflow: params.read("workflow", f, WorkflowName::parse),
        version: version.and_then(|version| u32::try_from(version).ok()),
        states: params.read("state", f, read_states).unwrap_or_default(),
        labels: params.prefixed("label.").into_iter().collect(),
        error_code: params.take("error_code"),
        parent: params.read("parent_run_id", f, str::parse),
        created_after: params.moment("created_after", f),
        created_before: params.moment("created_before", f),
        finished_after: params.moment("finished_after", f),
        finished_before: params.moment("finished_before", f),
    };
    params.finish(std::mem::take(f))?;
    Ok(Asked { filter, limit: usize::try_from(limit).unwrap_or(usize::MAX), cursor, values })
}

fn read_states(given: &str) -> Result<Vec<RunState>, String> {
    let word = |word: &str| RunState::parse(word).ok_or_else(|| format!("`{word}` is not a state of a run"));
    given.split(',').filter(|text| !text.is_empty()).map(word).collect()
}

fn read_include(given: &str) -> Result<RunValues, &'static str> {
    let mut values = RunValues::default();
    for word in given.split(',').filter(|word| !word.is_empty()) {
        match word {
            "input" => values.input = true,
            "output" => values.output = true,
            _ => return Err("names `input` and `output` only"),
        }
    }
    Ok(values)
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
            "workflow=order.new&version=3&state=failed,queued&label.k=v&error_code=boom&limit=7&cursor=r.1.2&include=output\
             &parent_run_id=0198c0de-0000-7000-8000-000000000000&created_after=2026-01-01T00:00:00Z\
             &created_before=2026-01-02T00:00:00Z&finished_after=2026-01-03T00:00:00Z&finished_before=2026-01-04T00:00:00Z",
        )
        .await
        .unwrap();
        let filter = &asked.filter;
        assert_eq!((filter.workflow.as_ref().unwrap().to_string().as_str(), filter.version), ("order.new", Some(3)));
        assert_eq!(filter.states, [RunState::Failed, RunState::Queued]);
        assert_eq!((filter.labels["k"].as_str(), filter.error_code.as_deref()), ("v", Some("boom")));
        let times = [filter.created_after, filter.created_before, filter.finished_after, filter.finished_before];
        assert!(filter.parent.is_some() && times.is_sorted() && times[0].is_some(), "{times:?}");
        assert_eq!((asked.limit, asked.cursor.as_deref()), (7, Some("r.1.2")));
        assert_eq!(asked.values, RunValues { input: false, output: true });
    }

    #[tokio::test]
    async fn wrong_filters_are_refused_and_never_ignored() {
        for (query, pointer) in [
            ("state=pending", "/query/state"),
            ("workflow=A", "/query/workflow"),
            ("version=0", "/query/version"),
            ("limit=501", "/query/limit"),
            ("include=payload", "/query/include"),
            ("finished_after=yesterday", "/query/finished_after"),
            ("parent_run_id=1", "/query/parent_run_id"),
            ("topic=t", "/query/topic"),
        ] {
            let problem = asked(query).await.err().expect(query);
            assert_eq!((problem.status().as_u16(), problem.errors[0].pointer.as_str()), (422, pointer), "{query}");
        }
    }
}
