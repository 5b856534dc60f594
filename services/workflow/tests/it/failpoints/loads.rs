//! The loads that bring a process of the service to a failpoint, and what is to come of each.

use std::collections::BTreeMap;

use muster_domain::RunId;
use muster_engine::run::RunState;
use muster_runs::Ask;
use muster_testkit::until;
use serde_json::json;

use super::HEALED;
use crate::stack::Stack;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Jobs, delays and a set value, one after the other.
    Chain,
    /// A job for each of 40 items.
    Each,
    /// Parallel branches, a switch, a loop and a notice.
    Kinds,
    /// A failure after two steps that are undone.
    Undone,
    /// A step that waits for a signal.
    Signal,
    /// A sub-run, and a step behind it.
    Child,
    /// A run that is cancelled while its sub-run works.
    Cancelled,
    /// Two runs of which only one may go on at a time.
    Queued,
    /// A run that cancels an older one.
    Newest,
    /// A run that Redis loses whole.
    Forgotten,
    /// A run whose last saves Redis loses, with a signal that was answered.
    SetBack,
}

/// Every workflow that a load runs.
pub(super) const DEFINITIONS: &[(&str, &str)] = &[
    (
        "chain",
        r#"
steps:
  - {id: a, job: {topic: echo, payload: "${{ input.row }} a"}}
  - {id: b, needs: [a], delay: {ms: 100}}
  - {id: c, needs: [b], set: "${{ steps.a.result.got + ' c' }}"}
  - {id: d, needs: [c], job: {topic: echo, payload: "${{ steps.c.result }}"}}
"#,
    ),
    (
        "each",
        r#"
steps:
  - id: all
    for_each: {items: input.items, as: item, max_parallel: 15}
    job: {topic: echo, payload: "${{ input.row }} ${{ item }}"}
  - {id: join, needs: [all], job: {topic: echo, payload: "${{ input.row }} join"}}
"#,
    ),
    (
        "kinds",
        r#"
steps:
  - id: both
    parallel:
      branches:
        x: [{id: x, job: {topic: echo, payload: "${{ input.row }} x"}}]
        y: [{id: y, job: {topic: echo, payload: "${{ input.row }} y"}}]
  - id: which
    needs: [both]
    switch:
      - when: input.items.size() > 3
        steps: [{id: many, job: {topic: echo, payload: "${{ input.row }} many"}}]
      - else: [{id: few, job: {topic: echo, payload: "${{ input.row }} few"}}]
  - id: count
    needs: [which]
    loop:
      max: 5
      state: {init: 0, next: "${{ state + 1 }}"}
      until: state >= 2
      steps: [{id: add, job: {topic: echo, payload: "${{ input.row }} ${{ state }}"}}]
  - {id: tell, needs: [count], notify: {type: counted, data: {row: "${{ input.row }}"}}}
"#,
    ),
    (
        "undone",
        r#"
steps:
  - id: a
    job: {topic: echo, payload: "${{ input.row }} a"}
    compensate: {job: {topic: undo, payload: "${{ input.row }} undo a"}}
  - id: b
    needs: [a]
    job: {topic: echo, payload: "${{ input.row }} b"}
    compensate: {job: {topic: undo, payload: "${{ input.row }} undo b"}}
  - {id: c, needs: [b], job: {topic: fail, payload: "${{ input.row }} c"}}
"#,
    ),
    (
        "signal",
        r#"
steps:
  - {id: paid, wait_signal: {name: paid, timeout_ms: 600000}}
  - {id: a, needs: [paid], job: {topic: echo, payload: "${{ input.row }} ${{ steps.paid.result }}"}}
"#,
    ),
    ("below", "steps: [{id: a, job: {topic: echo, payload: '${{ input.row }} below'}}]\n"),
    (
        "child",
        r#"
steps:
  - {id: sub, workflow: {name: below, input: {row: "${{ input.row }}"}}}
  - {id: a, needs: [sub], job: {topic: echo, payload: "${{ input.row }} above"}}
"#,
    ),
    ("long", "steps: [{id: a, job: {topic: slow, payload: {ms: 600000, row: '${{ input.row }}'}}}]\n"),
    (
        "cancelled",
        r#"
steps:
  - {id: sub, workflow: {name: long, input: {row: "${{ input.row }}"}}}
  - {id: a, needs: [sub], run_if: always, job: {topic: echo, payload: "${{ input.row }} never"}}
"#,
    ),
    (
        "queued",
        r#"
concurrency: {key: input.key, max: 1, when_full: queue}
steps: [{id: a, job: {topic: echo, payload: "${{ input.row }}"}}]
"#,
    ),
    (
        "newest",
        r#"
concurrency: {key: input.key, max: 1, when_full: cancel_oldest}
steps:
  - {id: go, wait_signal: {name: go, timeout_ms: 600000}}
  - {id: a, needs: [go], job: {topic: echo, payload: "${{ input.row }}"}}
"#,
    ),
];

/// What is to come of the rows that were played.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) runs: Vec<(String, RunId, RunState)>,
    /// How often each payload runs.
    pub(super) jobs: BTreeMap<String, usize>,
}

impl Expected {
    fn jobs(&mut self, row: &str, names: impl IntoIterator<Item = impl std::fmt::Display>) {
        for name in names {
            *self.jobs.entry(format!("{row} {name}")).or_default() += 1;
        }
    }
}

impl Load {
    fn workflow(self) -> &'static str {
        match self {
            Load::Chain => "chain",
            Load::Each => "each",
            Load::Kinds => "kinds",
            Load::Undone => "undone",
            Load::Signal | Load::Forgotten | Load::SetBack => "signal",
            Load::Child => "child",
            Load::Cancelled => "cancelled",
            Load::Queued => "queued",
            Load::Newest => "newest",
        }
    }

    /// Starts the runs of a row, and does what people do to them.
    pub(super) async fn bring(self, stack: &Stack, row: &str, expected: &mut Expected) {
        let items: Vec<u32> = (0..40).collect();
        let input = json!({"row": row, "items": items, "key": row});
        let id = stack.run(self.workflow(), input.clone()).await;
        let mut end = RunState::Succeeded;
        match self {
            Load::Chain => expected.jobs(row, ["a", "a c"]),
            Load::Each => {
                expected.jobs(row, &items);
                expected.jobs(row, ["join"]);
            }
            Load::Kinds => expected.jobs(row, ["x", "y", "many", "0", "1"]),
            Load::Undone => {
                end = RunState::Failed;
                expected.jobs(row, ["a", "b", "c", "undo a", "undo b"]);
            }
            Load::Signal => pays(stack, row, id, expected).await,
            Load::Forgotten => {
                waits(stack, id).await;
                stack.forget(id).await;
                until(HEALED, "the run to be there again", async || stack.runs.read(id).await.unwrap().map(drop)).await;
                pays(stack, row, id, expected).await;
            }
            Load::SetBack => {
                waits(stack, id).await;
                stack.remember(id).await;
                pays(stack, row, id, expected).await;
                stack.set_back(id).await;
            }
            Load::Child => expected.jobs(row, ["below", "above"]),
            Load::Cancelled => {
                end = RunState::Cancelled;
                let works = async || stack.executed("slow").iter().any(|payload| payload["row"] == row).then_some(());
                until(HEALED, "the job of the sub-run", works).await;
                stack.ask(id, Ask::Cancel { compensate: true, reason: "enough".into() }).await;
                *expected.jobs.entry(row.to_owned()).or_default() += 1;
            }
            Load::Queued => {
                let second = stack.run(self.workflow(), input).await;
                expected.runs.push((row.to_owned(), second, end));
                *expected.jobs.entry(row.to_owned()).or_default() += 2;
            }
            Load::Newest => {
                end = RunState::Cancelled;
                waits(stack, id).await;
                let second = stack.run(self.workflow(), input).await;
                stack.signal(second, "go").await;
                expected.runs.push((row.to_owned(), second, RunState::Succeeded));
                *expected.jobs.entry(row.to_owned()).or_default() += 1;
            }
        }
        expected.runs.push((row.to_owned(), id, end));
    }
}

/// Waits until a run goes on.
async fn waits(stack: &Stack, id: RunId) {
    until(HEALED, "the run to go on", async || (stack.read(id).await.run.state() == RunState::Running).then_some(()))
        .await;
}

/// Sends the signal that a run of `signal` waits for.
async fn pays(stack: &Stack, row: &str, id: RunId, expected: &mut Expected) {
    stack.ask(id, Ask::Signal { name: "paid".into(), body: json!("cash") }).await;
    expected.jobs(row, ["cash"]);
}
