//! The audit log: who did what, and whether the log is unchanged.

use axum::{extract::State, response::Response};
use http::{HeaderMap, StatusCode};
use muster_domain::{JobId, Tenant};
use muster_store::{AuditEntry, AuditFilter, AuditReport};

use super::{dead_letters::refused, json};
use crate::{
    auth::{Caller, TENANT_HEADER},
    json::Faults,
    limits::PAGE,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

/// How many entries one call verifies; it may be a few more.
const WALK: usize = 50_000;

/// List the audit log, newest first. A tenant's key sees what was done to its tenant; a key for all
/// tenants sees everything, or one tenant's by `Muster-Tenant` or `tenant`.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "operations",
    params(
        ("action" = Option<String>, Query, description = "What was done"),
        ("actor" = Option<String>, Query, description = "By whom: `system`, or a key's id"),
        ("job_id" = Option<String>, Query, description = "To which job"),
        ("tenant" = Option<String>, Query, description = "To whose thing; for keys for all tenants"),
        ("after" = Option<String>, Query, description = "Not before this moment"),
        ("before" = Option<String>, Query, description = "Before this moment"),
        ("limit" = Option<u64>, Query, description = "Entries of a page: 50, at most 500"),
        ("cursor" = Option<String>, Query, description = "Where the page before ended"),
    ),
    responses((status = 200, description = "A page of entries", body = schema::AuditPage))
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let text = |given: &str| Ok::<String, String>(given.to_owned());
    let asked = params.read("tenant", f, Tenant::parse);
    let tenant = match &caller.key.tenant {
        None if !headers.contains_key(TENANT_HEADER) => asked.map(|tenant| tenant.to_string()),
        _ => {
            if asked.is_some_and(|asked| asked != caller.tenant) {
                f.invalid("/query", "tenant", "is not the tenant that this request acts for");
            }
            Some(caller.tenant.to_string())
        }
    };
    let filter = AuditFilter {
        tenant,
        action: params.read("action", f, text),
        actor: params.read("actor", f, text),
        job: params.read("job_id", f, |given| {
            given.parse::<JobId>().map(|id| id.to_string()).map_err(|_| "is not a job's id")
        }),
        after: params.moment("after", f),
        before: params.moment("before", f),
    };
    let limit = params.integer("limit", f, PAGE).unwrap_or(50);
    let cursor = params.take("cursor");
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let limit = usize::try_from(limit).unwrap_or(50);
    let page = gateway.flow.store.list_audit(&filter, cursor.as_deref(), limit).await;
    let (items, next) = page.map_err(refused)?;
    let body = view::document(|json| {
        json.list("items", |json| items.iter().for_each(|entry| json.object(None, |json| write(json, entry))));
        if let Some(next) = &next {
            json.text("next_cursor", next);
        }
    });
    Ok(json(StatusCode::OK, body))
}

/// Writes the act's own fields verbatim, then the fields that link the entry.
fn write(json: &mut Json, entry: &AuditEntry) {
    let act: serde_json::Value = serde_json::from_str(&entry.body).unwrap_or_default();
    for (name, value) in act.as_object().into_iter().flatten() {
        json.raw(name, value.to_string().as_bytes());
    }
    json.integer("number", entry.number.parse().unwrap_or(0));
    json.text("previous", &entry.previous);
    json.text("hash", &entry.hash);
}

/// Walk along the chain of hashes and say where it breaks. A long log takes several calls: go on with
/// `next_cursor`. For keys for all tenants.
#[utoipa::path(
    get, path = "/api/v1/audit/verify", tag = "operations",
    params(("cursor" = Option<String>, Query, description = "Where the call before stopped")),
    responses((status = 200, description = "What was found", body = schema::AuditVerdict))
)]
pub(super) async fn verify(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
) -> Result<Response, Problem> {
    let cursor = params.take("cursor");
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let report = gateway.flow.store.verify_audit(cursor.as_deref(), WALK).await.map_err(refused)?;
    if let Some(broken) = &report.broken {
        tracing::error!(
            event = "audit_broken",
            number = broken.number,
            id = broken.id,
            reason = broken.reason,
            "the audit log is not as it was written"
        );
    }
    Ok(json(StatusCode::OK, view::document(|json| write_report(json, &report))))
}

fn write_report(json: &mut Json, report: &AuditReport) {
    json.boolean("valid", report.broken.is_none());
    json.boolean("complete", report.next_cursor.is_none());
    json.integer("checked", report.checked);
    json.integer("first", report.first);
    json.integer("last", report.last);
    json.text("hash", &report.hash);
    if let Some(broken) = &report.broken {
        json.object(Some("broken"), |json| {
            json.integer("number", broken.number);
            json.text("id", &broken.id);
            json.text("entry", &broken.cursor);
            json.text("reason", &broken.reason);
        });
    }
    if let Some(cursor) = &report.next_cursor {
        json.text("next_cursor", cursor);
    }
}
