//! Operations on runs as they travel: what somebody asked of a run, and what started it. They are published after they
//! were saved, so that they can be applied again if a failover loses the save.

use muster_domain::{Labels, RunId, Tenant, Time};
use muster_engine::run::{Again, Parent, RunOp, What};
use muster_wire::{run_bytes, v1};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::notes::Unpublished;

/// What somebody asks of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ask {
    /// Send it a message.
    Signal {
        /// The name of the signal.
        name: String,
        /// The message.
        body: Value,
    },
    /// Stop it.
    Cancel {
        /// Whether its compensations run.
        compensate: bool,
        /// Why.
        reason: String,
    },
    /// Start nothing for a while.
    Pause,
    /// Go on.
    Resume,
    /// End a step that is stuck, with a result.
    Complete {
        /// The step.
        step: String,
        /// Its result.
        result: Value,
        /// Why.
        reason: String,
    },
    /// Pass over a step that is stuck.
    Skip {
        /// The step.
        step: String,
        /// Why.
        reason: String,
    },
    /// Run the compensations that are missing.
    Compensate {
        /// The step of another run that is told of the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tell: Option<Parent>,
    },
    /// Decide an approval.
    Approval {
        /// The step.
        step: String,
        /// Whether it was granted.
        granted: bool,
        /// Who decided, when, with which notes.
        by: Value,
    },
}

impl Ask {
    /// The name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Ask::Signal { .. } => "signal",
            Ask::Cancel { .. } => "cancel",
            Ask::Pause => "pause",
            Ask::Resume => "resume",
            Ask::Complete { .. } => "complete",
            Ask::Skip { .. } => "skip",
            Ask::Compensate { .. } => "compensate",
            Ask::Approval { .. } => "approval",
        }
    }

    /// The event for the engine. The same id twice is one request.
    pub fn event(&self, id: &str) -> What {
        let op = match self.clone() {
            Ask::Signal { name, body } => return What::Signal { id: id.to_owned(), name, body },
            Ask::Approval { step, granted, by } => return What::Approval { step, granted, by },
            Ask::Cancel { compensate, reason } => RunOp::Cancel { compensate, reason },
            Ask::Pause => RunOp::Pause,
            Ask::Resume => RunOp::Resume,
            Ask::Complete { step, result, reason } => RunOp::Complete { step, result, reason },
            Ask::Skip { step, reason } => RunOp::Skip { step, reason },
            Ask::Compensate { tell } => RunOp::Compensate { tell },
        };
        What::Op { id: id.to_owned(), op }
    }

    pub(crate) fn unpublished(&self, id: &str, at: Time) -> Unpublished {
        let body = serde_json::to_string(self).unwrap_or_default();
        Unpublished { id: id.to_owned(), at: at.0, kind: self.kind().to_owned(), body }
    }
}

/// What is needed to start a run again that Redis has lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartBody {
    /// The name of the workflow.
    pub workflow: String,
    /// The version that was fixed.
    pub version: u32,
    /// The input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Whose rights it has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub principal: String,
    /// Globs of the topics to which it may submit jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// The step of another run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// How many runs are above it.
    #[serde(default)]
    pub depth: u32,
    /// The hash of the request, in hexadecimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// The run that it repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<RerunBody>,
}

/// What a rerun takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RerunBody {
    /// The id of the old run.
    pub of: String,
    /// The step from which on all runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The for-each whose failed items run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_items: Option<String>,
}

impl RerunBody {
    pub(crate) fn new(of: RunId, again: &Again) -> RerunBody {
        let (from, failed_items) = match again.clone() {
            Again::From(step) => (Some(step), None),
            Again::FailedItems(step) => (None, Some(step)),
        };
        RerunBody { of: of.to_string(), from, failed_items }
    }

    /// What runs again; none if the message does not say.
    pub fn again(&self) -> Option<Again> {
        let each = self.failed_items.clone().map(Again::FailedItems);
        self.from.clone().map(Again::From).or(each)
    }
}

/// The id and the kind of the operation that starts a run.
pub(crate) const START: &str = "start";

impl StartBody {
    pub(crate) fn unpublished(&self, at: Time) -> Unpublished {
        let body = serde_json::to_string(self).unwrap_or_default();
        Unpublished { id: START.to_owned(), at: at.0, kind: START.to_owned(), body }
    }
}

/// The message of an operation.
pub(crate) fn message(run: RunId, tenant: &Tenant, op: &Unpublished) -> v1::RunOp {
    v1::RunOp {
        run_id: run_bytes(Some(run)),
        tenant: tenant.to_string(),
        at: op.at,
        id: op.id.clone(),
        kind: op.kind.clone(),
        body: op.body.clone().into_bytes().into(),
    }
}

/// The id of the message: the stream keeps one of several equal ones.
pub(crate) fn message_id(run: RunId, op: &Unpublished) -> String {
    format!("run-{run}-{}-{}", op.kind, op.id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operation_survives_its_text() {
        let asks = [
            Ask::Signal { name: "paid".into(), body: json!({"n": 12345678901234567890_u64}) },
            Ask::Cancel { compensate: false, reason: "late".into() },
            Ask::Pause,
            Ask::Resume,
            Ask::Complete { step: "a[3]".into(), result: json!([1.50]), reason: "by hand".into() },
            Ask::Skip { step: "b".into(), reason: String::new() },
            Ask::Compensate { tell: None },
            Ask::Approval { step: "ok".into(), granted: true, by: json!({}) },
        ];
        for ask in asks {
            let op = ask.unpublished("id", Time(5));
            assert_eq!(op.kind, ask.kind());
            assert_eq!(serde_json::from_str::<Ask>(&op.body).unwrap(), ask);
        }
    }
}
