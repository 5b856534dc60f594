//! What the gateways tell about a run besides the run itself: its timeline, what it waits for, the items of its
//! for-eaches, and the plan of a rerun.

use muster_domain::{JobId, RunId, Time};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    error::{ClientError, RunFailure},
    fields::{maybe_text, moment, present, read},
};

/// What happened in a run, the oldest first.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunTimeline {
    /// The entries; of a long timeline the middle is left out.
    pub items: Vec<TimelineEntry>,
    /// How many entries were left out.
    pub dropped: u64,
}

/// One entry of a timeline.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TimelineEntry {
    /// When.
    #[serde(with = "moment")]
    pub at: Option<Time>,
    /// The step; empty for the run itself.
    pub step: String,
    /// What: a state of the run or of the step, or the name of what happened.
    pub what: String,
    /// Why; empty if there is nothing to say.
    pub why: String,
}

/// Why a run is in its state, and what it waits for.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunExplanation {
    /// The state of the run.
    pub state: String,
    /// What the run waits for.
    pub waits_for: Vec<RunWait>,
    /// The same for people, one sentence each.
    pub sentences: Vec<String>,
    /// When the run is looked at next, whatever happens.
    #[serde(with = "moment", skip_serializing_if = "Option::is_none")]
    pub next_look: Option<Time>,
}

/// Something that a run waits for.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunWait {
    /// The step; empty for the run itself.
    pub step: String,
    /// `start`, `resume`, `command`, `job`, `run`, `signal`, `approval` or `time`. A newer gateway may know more.
    #[serde(rename = "for")]
    pub what: String,
    /// The time.
    #[serde(with = "moment", skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The job.
    #[serde(with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The run that a step started.
    #[serde(with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The same for people.
    pub sentence: String,
}

/// What a rerun would do.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RerunPlan {
    /// The name of the workflow.
    pub workflow: String,
    /// The version of the workflow.
    pub version: u32,
    /// The outermost steps that would run again, or for the first time.
    pub again: Vec<String>,
    /// The outermost steps whose results would be taken over.
    pub taken: Vec<String>,
    /// How many items would run again, if it is about failed items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u32>,
}

/// Some items of a for-each.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunItems {
    /// How many items the for-each has; 0 before it begins.
    pub total: u32,
    /// The items, in order.
    pub items: Vec<RunItem>,
    /// The index of the next item; `None` at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_from: Option<u32>,
}

/// One item of a for-each.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunItem {
    /// The number of the item; 0 is the first.
    pub index: u32,
    /// The state of the item; one of those of a step.
    pub state: String,
    /// Why the item failed; the message is in its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// The job of the item.
    #[serde(with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// The run that the item started.
    #[serde(with = "maybe_text", skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The value that the run keeps of the item. Only with the scope `payloads`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<RawValue>>,
}

impl RunItem {
    /// The kept value.
    pub fn value_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.value.as_deref(), "value of the item")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_read_whatever_else_they_say() {
        let text = r#"{"state":"running","next_look":"2026-01-02T03:04:05.678Z","more":1,"waits_for":[
            {"step":"mail","for":"job","job_id":"0198c0de-0000-7000-8000-000000000001","sentence":"waits"},
            {"for":"moon","until":"tomorrow"}],"sentences":["waits"]}"#;
        let explained: RunExplanation = serde_json::from_str(text).unwrap();
        assert_eq!(explained.next_look.unwrap().rfc3339(), "2026-01-02T03:04:05.678Z");
        assert!(explained.waits_for[0].job_id.is_some());
        assert_eq!((explained.waits_for[1].what.as_str(), explained.waits_for[1].until), ("moon", None));

        let timeline: RunTimeline =
            serde_json::from_str(r#"{"items":[{"at":"2026-01-02T03:04:05.678Z","what":"running"}],"dropped":3}"#)
                .unwrap();
        assert_eq!((timeline.items[0].step.as_str(), timeline.dropped), ("", 3));

        let items: RunItems =
            serde_json::from_str(r#"{"total":9,"items":[{"index":4,"state":"x","value":{"a": 1.0}}],"next_from":5}"#)
                .unwrap();
        assert_eq!((items.items[0].value.as_ref().unwrap().get(), items.next_from), (r#"{"a": 1.0}"#, Some(5)));
        assert!(items.items[0].value_as::<u8>().is_err());
    }
}
