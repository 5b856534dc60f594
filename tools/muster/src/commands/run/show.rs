//! Prints a run with its steps, lists of runs and items, a timeline, an explanation and the outlook of a rerun for
//! people.

use std::time::Duration;

use serde_json::Value;

use crate::{
    output::{self, cell},
    spans,
};

/// Prints every field of a run that applies, and its steps if it has some.
pub(super) fn run(run: &Value) {
    output::facts(&[
        ("id", cell(&run["id"])),
        ("workflow", format!("{} (version {})", cell(&run["workflow"]), cell(&run["version"]))),
        ("tenant", cell(&run["tenant"])),
        ("state", cell(&run["state"])),
        ("labels", labels(&run["labels"])),
        ("created", cell(&run["created_at"])),
        ("started", cell(&run["started_at"])),
        ("ended", cell(&run["ended_at"])),
        ("took", took(run)),
        ("compensation", compensation(&run["compensation"])),
        ("rerun of", cell(&run["rerun_of"])),
        ("of the run", cell(&run["parent_run_id"])),
        ("input", given(run, "input")),
        ("output", given(run, "output")),
        ("error", error(&run["error"])),
    ]);
    if let Some(all) = run["steps"].as_array().filter(|all| !all.is_empty()) {
        output::line("");
        steps(all);
    }
}

fn steps(steps: &[Value]) {
    let row = |step: &Value| {
        vec![
            cell(&step["place"]),
            cell(&step["state"]),
            cell(&step["kind"]),
            took(step),
            items_of(step),
            why(step),
            cell(&step["attempts"]),
            cell(&step["compensation"]),
            [&step["job_id"], &step["run_id"]].into_iter().map(cell).find(|id| !id.is_empty()).unwrap_or_default(),
        ]
    };
    let headings = ["STEP", "STATE", "KIND", "TOOK", "ITEMS", "WHY", "ATTEMPTS", "COMPENSATION", "JOB"];
    output::rows(&headings, steps.iter().map(row));
}

/// Prints one line per run.
pub(super) fn runs(runs: &[Value]) {
    let row = |run: &Value| {
        vec![
            cell(&run["id"]),
            format!("{}:{}", cell(&run["workflow"]), cell(&run["version"])),
            cell(&run["state"]),
            cell(&run["created_at"]),
            took(run),
            cell(&run["error"]["code"]),
            labels(&run["labels"]),
        ]
    };
    output::rows(&["ID", "WORKFLOW", "STATE", "CREATED", "TOOK", "ERROR", "LABELS"], runs.iter().map(row));
}

/// Prints the state, then one sentence per line: about the run, then about what it waits for.
pub(super) fn explanation(answer: &Value) {
    let list = |name: &str| answer[name].as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
    let mut said: Vec<String> = list("sentences").iter().map(cell).collect();
    for wait in list("waits_for") {
        let sentence = cell(&wait["sentence"]);
        if !sentence.is_empty() && !said.contains(&sentence) {
            said.push(sentence);
        }
    }
    let id = Some(cell(&answer["run_id"])).filter(|id| !id.is_empty()).map(|id| format!(" {id}")).unwrap_or_default();
    output::line(format_args!("run{id} is {}", cell(&answer["state"])));
    said.iter().for_each(|sentence| output::line(format_args!("- {sentence}")));
}

/// Prints one line per entry.
pub(super) fn timeline(answer: &Value) {
    let row = |entry: &Value| ["at", "step", "what", "why"].map(|name| cell(&entry[name])).to_vec();
    let entries = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    output::rows(&["TIME", "STEP", "WHAT", "WHY"], entries.iter().map(row));
    if let Some(dropped @ 1..) = answer["dropped"].as_u64() {
        output::line(format_args!("{dropped} entries between the first and the last 1,000 were left out"));
    }
}

/// Prints one line per item.
pub(super) fn items(step: &str, total: &Value, items: &[Value], next: Option<u64>) {
    let row = |item: &Value| {
        let id = [&item["job_id"], &item["run_id"]].into_iter().map(cell).find(|id| !id.is_empty());
        vec![
            cell(&item["index"]),
            cell(&item["state"]),
            cell(&item["error"]["code"]),
            given(item, "value"),
            id.unwrap_or_default(),
        ]
    };
    output::rows(&["INDEX", "STATE", "ERROR", "VALUE", "JOB"], items.iter().map(row));
    match (total.as_u64(), next) {
        (Some(0), _) => output::line(format_args!("{step} has no items, or has not begun")),
        (_, Some(next)) => output::line(format_args!("{} items in all; --from {next} shows more", cell(total))),
        _ => {}
    }
}

/// Prints what a rerun would do.
pub(super) fn outlook(plan: &Value) {
    let list = |name: &str| {
        let all = plan[name].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().map(cell).collect::<Vec<_>>().join(" ")
    };
    output::facts(&[
        ("workflow", format!("{} (version {})", cell(&plan["workflow"]), cell(&plan["version"]))),
        ("runs again", list("again")),
        ("items again", cell(&plan["items"])),
        ("taken over", list("taken")),
    ]);
    output::line("nothing was started");
}

/// How long it took; how long it has been running is not in the answer.
pub(super) fn took(what: &Value) -> String {
    what["duration_ms"].as_u64().map(|ms| spans::show(Duration::from_millis(ms))).unwrap_or_default()
}

/// The items of a for-each: `12/100, 1 failed`.
pub(super) fn items_of(step: &Value) -> String {
    let items = &step["items"];
    let number = |name: &str| items[name].as_u64().unwrap_or_default();
    match (items.is_object(), number("failed")) {
        (false, _) => String::new(),
        (true, 0) => format!("{}/{}", number("succeeded"), number("total")),
        (true, failed) => format!("{}/{}, {failed} failed", number("succeeded"), number("total")),
    }
}

/// Why a step failed or was skipped.
pub(super) fn why(step: &Value) -> String {
    match error(&step["error"]) {
        none if none.is_empty() => cell(&step["reason"]),
        error => error,
    }
}

fn error(error: &Value) -> String {
    if !error.is_object() {
        return String::new();
    }
    let step = error["step"].as_str().map(|step| format!(" (step {step})")).unwrap_or_default();
    format!("{}: {}{step}", cell(&error["code"]), cell(&error["message"]))
}

fn compensation(of: &Value) -> String {
    match (of["state"].as_str(), of["failed"].as_u64()) {
        (None | Some("none"), _) => String::new(),
        (Some(state), Some(failed @ 1..)) => format!("{state}, {failed} failed"),
        (Some(state), _) => state.to_owned(),
    }
}

/// A value as JSON; empty if it is absent.
fn given(of: &Value, name: &str) -> String {
    of.get(name).map(Value::to_string).unwrap_or_default()
}

fn labels(labels: &Value) -> String {
    let pair = |(name, value): (&String, &Value)| format!("{name}={}", cell(value));
    labels.as_object().map(|all| all.iter().map(pair).collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_says_how_far_its_items_are_and_why_it_failed() {
        let step = json!({"items": {"total": 100, "issued": 14, "succeeded": 12, "failed": 0, "running": 2}});
        assert_eq!(items_of(&step), "12/100");
        let step = json!({"items": {"total": 100, "succeeded": 12, "failed": 1}, "reason": "by hand",
            "error": {"code": "no_stock", "message": "none left", "step": "reserve[3]"}});
        assert_eq!(items_of(&step), "12/100, 1 failed");
        assert_eq!(why(&step), "no_stock: none left (step reserve[3])");
        assert_eq!(why(&json!({"reason": "by hand"})), "by hand");
        assert_eq!((items_of(&json!({})), why(&json!({}))), (String::new(), String::new()));
    }

    #[test]
    fn compensations_are_told_only_if_there_are_some() {
        assert_eq!(compensation(&json!({"state": "none", "failed": 0})), "");
        assert_eq!(compensation(&json!({"state": "done", "failed": 0})), "done");
        assert_eq!(compensation(&json!({"state": "failed", "failed": 2})), "failed, 2 failed");
        assert_eq!(compensation(&Value::Null), "");
    }
}
