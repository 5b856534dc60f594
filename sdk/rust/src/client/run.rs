//! A run of a workflow as the gateways show it. Unknown fields and states are ignored, so a newer gateway does not break
//! an older client. Inputs, outputs and results are kept as the text that was received.

use std::collections::BTreeMap;

use muster_domain::{JobId, RunId, Time};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    error::{ClientError, RunFailure},
    fields::{as_text, maybe_text, moment, present, read},
};

/// A run of a workflow.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// The id of the run.
    #[serde(with = "as_text")]
    pub id: RunId,
    /// The tenant that owns the run.
    #[serde(default)]
    pub tenant: String,
    /// The name of the workflow.
    #[serde(default)]
    pub workflow: String,
    /// The version of the workflow that the run keeps to.
    #[serde(default)]
    pub version: u32,
    /// `queued`, `running`, `paused`, `stopping`, `compensating`; ended: `succeeded`, `failed`, `cancelled`,
    /// `timed_out`. A newer gateway may know more.
    pub state: String,
    /// Whether the run has ended. Check this in a loop, not the state.
    #[serde(default)]
    pub done: bool,
    /// The labels of the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Who started the run.
    #[serde(default)]
    pub principal: String,
    /// When the start was accepted.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// When the first step could start.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the run ended.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// How long the run took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The input. Only with the scope `payloads`; lists have it only on request.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    /// The output of a run that succeeded. Only with the scope `payloads`; lists have it only on request.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// The run whose results this run took over.
    #[serde(default, with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<RunId>,
    /// The run that started this run.
    #[serde(default, with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// How many runs stand above this run.
    #[serde(default)]
    pub depth: u32,
    /// How far the compensations are.
    #[serde(default)]
    pub compensation: Compensation,
    /// The steps. Lists and the answers to operations leave them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RunStep>,
}

impl Run {
    /// Whether the run ended well.
    pub fn succeeded(&self) -> bool {
        self.state == "succeeded"
    }

    /// The output as a value.
    pub fn output_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.output.as_deref(), "output of the run")
    }

    /// The input as a value.
    pub fn input_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.input.as_deref(), "input of the run")
    }

    /// The step with this id, or at this place.
    pub fn step(&self, id: &str) -> Option<&RunStep> {
        self.steps.iter().find(|step| step.place == id).or_else(|| self.steps.iter().find(|step| step.id == id))
    }
}

/// How far the compensations of a run are.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Compensation {
    /// `none`, `due`, `running`, `done` or `failed`.
    pub state: String,
    /// How many compensations failed in the latest round.
    pub failed: u32,
}

/// A step of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct RunStep {
    /// The place: the id, with the numbers of the attempts and iterations around it.
    pub place: String,
    /// The id in the definition.
    #[serde(default)]
    pub id: String,
    /// The kind of step, as the definition names it.
    #[serde(default)]
    pub kind: String,
    /// `waiting`, `running`, `succeeded`, `failed`, `timed_out`, `cancelled` or `skipped`. A newer gateway may know
    /// more.
    pub state: String,
    /// When the step started.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the step ended.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// How long the step took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How many attempts the step had.
    #[serde(default)]
    pub attempts: u32,
    /// Why the step failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// Why the step was skipped, or the reason that a person gave who ended it by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The job of the step.
    #[serde(default, with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The run that the step started.
    #[serde(default, with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The items of a for-each, counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemCounts>,
    /// The latest iteration of a loop; 0 is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u32>,
    /// The branch that a switch took; 0 is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    /// How far the compensation of the step is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation: Option<String>,
    /// The result was too large to be kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The result, if the run keeps it: only if an expression reads it. Only with the scope `payloads`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

impl RunStep {
    /// The result as a value.
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.result.as_deref(), "result of the step")
    }
}

/// The items of a for-each, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ItemCounts {
    /// All items.
    pub total: u32,
    /// Items that were started.
    pub issued: u32,
    /// Items that succeeded.
    pub succeeded: u32,
    /// Items that failed or timed out.
    pub failed: u32,
    /// Items that run.
    pub running: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_whatever_else_it_says_and_its_values_stay_as_they_were() {
        let text = r#"{"id":"0198c0de-0000-7000-8000-000000000001","workflow":"order","version":2,"state":"dreaming",
            "done":true,"output":{"n": 123456789012345678901234567890,"f":1.10},"parent_run_id":"not-a-uuid","mood":[1],
            "created_at":"2026-01-02T03:04:05.678Z","error":{"code":"x","message":"y","step":"a[3]","hint":1},
            "steps":[{"place":"a","id":"a","kind":"job","state":"napping","result":null,"shape":1,
                "items":{"total":9,"issued":8,"more":7}},{"place":"b.1/c","id":"c","state":"running"}]}"#;
        let run: Run = serde_json::from_str(text).unwrap();
        assert_eq!((run.state.as_str(), run.done, run.succeeded()), ("dreaming", true, false));
        assert_eq!(run.output.as_ref().unwrap().get(), r#"{"n": 123456789012345678901234567890,"f":1.10}"#);
        assert_eq!((run.parent_run_id, run.input.is_none()), (None, true));
        assert_eq!(run.error.as_ref().unwrap().to_string(), "x: y (step a[3])");
        assert_eq!(run.step("a").unwrap().items.unwrap().issued, 8);
        assert_eq!(run.step("a").unwrap().result_as::<Option<u8>>().unwrap(), None);
        assert_eq!(run.step("c").unwrap().place, "b.1/c");
        assert!(run.step("d").is_none());
        assert!(run.output_as::<u8>().is_err());

        let again: Run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
        assert_eq!(again.output.unwrap().get(), run.output.unwrap().get());
        assert_eq!(again.steps.len(), 2);
    }
}
