//! What changed in a run between two looks, in the form of the events that `/events` has.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::show;
use crate::output::cell;

/// What was seen of a run.
#[derive(Debug, Default)]
pub(super) struct Changes {
    run: Option<String>,
    steps: HashMap<String, (String, Value)>,
}

impl Changes {
    /// The changes since the last look, in order of time, then the progress of items as it is `now`. The first look finds
    /// every step that has begun.
    pub(super) fn since(&mut self, run: &Value, now: &str) -> Vec<Value> {
        let (mut changes, mut progress, first) = (Vec::new(), Vec::new(), self.run.is_none());
        for step in run["steps"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let (place, state, items) = (cell(&step["place"]), cell(&step["state"]), &step["items"]);
            let seen = self.steps.get(&place);
            let same = seen.is_some_and(|(was, had)| *was == state && had == items);
            if same || (seen.is_none() && state == "waiting") {
                continue;
            }
            // A step that started and ended between two reads gets a line for each of the two changes.
            if seen.is_none() && !first && state != "running" && !step["started_at"].is_null() {
                changes.push(of_step(run, &began(step), "running"));
            }
            let moved = seen.is_none_or(|(was, _)| *was != state);
            self.steps.insert(place, (state.clone(), items.clone()));
            match of_step(run, step, &state) {
                change if moved => changes.push(change),
                mut change => {
                    change["time"] = now.into();
                    progress.push(change);
                }
            }
        }
        changes.sort_by_key(|change| cell(&change["time"]));
        changes.append(&mut progress);
        let state = cell(&run["state"]);
        if self.run.as_ref() != Some(&state) {
            let mut event = of_run(run, &state);
            self.run = Some(state);
            // A run begins before its steps and ends after them. When it was paused or stopped is not in it.
            match (run["done"] == true, first) {
                (true, _) => changes.push(event),
                (false, true) => changes.insert(0, event),
                (false, false) => {
                    event["time"] = now.into();
                    changes.push(event);
                }
            }
        }
        changes
    }
}

/// A step as it was when it started.
fn began(step: &Value) -> Value {
    json!({"place": step["place"], "started_at": step["started_at"], "job_id": step["job_id"]})
}

fn of_run(run: &Value, state: &str) -> Value {
    let began = [&run["ended_at"], &run["started_at"], &run["created_at"]].into_iter().find(|at| !at.is_null());
    let mut data = json!({
        "run_id": run["id"],
        "workflow": run["workflow"],
        "version": run["version"],
        "state": state,
        "done": run["done"] == true,
    });
    if run["error"].is_object() {
        data["error_code"] = run["error"]["code"].clone();
        data["error"] = run["error"].clone();
    }
    json!({"type": format!("muster.run.{state}"), "time": began, "subject": run["id"], "data": data})
}

fn of_step(run: &Value, step: &Value, state: &str) -> Value {
    let at = [&step["ended_at"], &step["started_at"]].into_iter().find(|at| !at.is_null());
    let done = !matches!(state, "waiting" | "running");
    let mut data = json!({
        "run_id": run["id"],
        "workflow": run["workflow"],
        "version": run["version"],
        "step": step["place"],
        "state": state,
        "done": done,
    });
    for name in ["items", "error", "reason", "job_id", "duration_ms"] {
        if !step[name].is_null() {
            data[name] = step[name].clone();
        }
    }
    if step["error"].is_object() {
        data["error_code"] = step["error"]["code"].clone();
    }
    json!({"type": format!("muster.step.{state}"), "time": at, "subject": run["id"], "data": data})
}

/// One change for people.
pub(super) fn line(change: &Value) -> String {
    let data = &change["data"];
    let (time, state) = (cell(&change["time"]), cell(&data["state"]));
    let (what, more) = match data["step"].is_string() {
        true => (cell(&data["step"]), [show::items_of(data), show::took(data), show::why(data)].to_vec()),
        false => (format!("{} {}", cell(&data["workflow"]), cell(&data["run_id"])), vec![show::why(data)]),
    };
    let more: Vec<String> = more.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{time:<24}  {state:<12}  {what}  {}", more.join("  ")).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:01:00.000Z";

    fn run(state: &str, steps: &[(&str, &str)]) -> Value {
        let step = |(n, (place, state)): (usize, &(&str, &str))| {
            let began = *state != "waiting";
            json!({"place": place, "state": state, "started_at": began.then(|| format!("2026-01-01T00:00:0{n}.000Z"))})
        };
        let steps: Vec<Value> = steps.iter().enumerate().map(step).collect();
        let done = matches!(state, "succeeded" | "failed");
        json!({"id": "r", "workflow": "order", "version": 2, "state": state, "done": done, "steps": steps,
            "created_at": "2026-01-01T00:00:00.000Z"})
    }

    fn lines(changes: &[Value]) -> Vec<String> {
        let lines = changes.iter().map(line);
        lines.map(|line| line.split_once("  ").unwrap().1.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn only_what_changed_is_told_and_in_order() {
        let mut changes = Changes::default();
        let first = changes.since(&run("running", &[("a", "succeeded"), ("b", "running"), ("c", "waiting")]), NOW);
        assert_eq!(lines(&first), ["running order r", "succeeded a", "running b"]);
        assert_eq!(first[1]["type"], "muster.step.succeeded");
        assert!(
            changes.since(&run("running", &[("a", "succeeded"), ("b", "running"), ("c", "waiting")]), NOW).is_empty()
        );
        let last = changes.since(&run("succeeded", &[("a", "succeeded"), ("b", "succeeded"), ("c", "failed")]), NOW);
        assert_eq!(lines(&last), ["succeeded b", "running c", "failed c", "succeeded order r"]);
        assert_eq!((&last[3]["type"], &last[3]["data"]["done"]), (&json!("muster.run.succeeded"), &json!(true)));
    }

    #[test]
    fn the_items_of_a_for_each_and_errors_are_told() {
        let mut changes = Changes::default();
        let mut now = run("running", &[("each", "running")]);
        now["steps"][0]["items"] = json!({"total": 9, "succeeded": 0, "failed": 0});
        assert_eq!(lines(&changes.since(&now, NOW)), ["running order r", "running each 0/9"]);
        now["steps"][0]["items"] = json!({"total": 9, "succeeded": 4, "failed": 1});
        let progress = changes.since(&now, NOW);
        assert_eq!((lines(&progress), &progress[0]["time"]), (vec!["running each 4/9, 1 failed".into()], &json!(NOW)));
        now["state"] = "paused".into();
        let paused = changes.since(&now, NOW);
        assert_eq!((lines(&paused), &paused[0]["time"]), (vec!["paused order r".into()], &json!(NOW)));
        now["state"] = "failed".into();
        now["done"] = true.into();
        now["error"] = json!({"code": "c", "message": "m", "step": "each[3]"});
        assert_eq!(lines(&changes.since(&now, NOW)), ["failed order r c: m (step each[3])"]);
    }
}
