//! The entries of the audit log: which actor did what, to which job or other target, and when.
//!
//! This module knows the fields of an entry and which transitions of a job a loop causes. The same act has the same id
//! on every replica and in every repetition, so an act that is written twice is one entry. `store` keeps entries and
//! links them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Event, Head, JobId, JobSpec, State, Time, job::Transition};

/// The actor name of loops, which act without a request.
pub const SYSTEM: &str = "system";

/// The kind of actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorType {
    /// A loop of Muster itself.
    System,
    /// The holder of an API key.
    Key,
}

/// One entry: something that an actor did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Act {
    /// The id. The same act has the same id, however often it is written.
    pub id: String,
    /// When it was done, in Redis time: RFC 3339.
    pub at: String,
    /// The actor: `system`, or the id of an API key.
    pub actor: String,
    /// The kind of actor.
    pub actor_type: ActorType,
    /// The tenant that owns the job or target.
    pub tenant: String,
    /// The name of the action, as one identifier.
    pub action: String,
    /// The job that it was done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The target, if that is not a job: `key/<id>`, `topic/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The job's state before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_status: Option<String>,
    /// The job's state after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_status: Option<String>,
    /// Attempts started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u16>,
    /// Attempts allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// Further details. Never a secret.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub detail: Map<String, Value>,
}

impl Act {
    /// An act of the holder of an API key.
    pub fn by_key(id: String, at: Time, key: &str, tenant: &str, action: &str) -> Act {
        Act { actor: key.to_owned(), actor_type: ActorType::Key, ..Act::by_system(id, at, tenant, action) }
    }

    /// An act of a loop.
    pub fn by_system(id: String, at: Time, tenant: &str, action: &str) -> Act {
        Act {
            id,
            at: at.rfc3339(),
            actor: SYSTEM.to_owned(),
            actor_type: ActorType::System,
            tenant: tenant.to_owned(),
            action: action.to_owned(),
            job_id: None,
            target: None,
            old_status: None,
            new_status: None,
            attempt: None,
            max_attempts: None,
            detail: Map::new(),
        }
    }

    /// Sets the job that the act was done to.
    #[must_use]
    pub fn job(mut self, id: JobId) -> Act {
        self.job_id = Some(id.to_string());
        self
    }

    /// Sets the target that the act was done to.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Act {
        self.target = Some(target.into());
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Act {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the job, its topic and its attempts.
    fn standing(mut self, id: JobId, spec: &JobSpec, head: &Head) -> Act {
        self.attempt = Some(head.attempt);
        self.max_attempts = Some(head.max_attempts);
        self.job(id).with("topic", spec.topic.as_str())
    }
}

/// The action name of a transition in the audit log, if a loop causes it.
pub fn action_of(event: Event, from: State) -> Option<&'static str> {
    Some(match event {
        Event::Wake if from == State::Retrying => "job_retry",
        Event::Reoffer => "job_reoffer",
        Event::Rescue => "job_rescue",
        Event::Abandon => "job_abandon",
        Event::Poison => "job_quarantine",
        Event::CutShort | Event::TimeOut => "job_time_out",
        Event::Expire => "job_expire",
        _ => return None,
    })
}

/// The audit entry of a transition, if a loop caused it. Its id consists of the job and the version that the transition
/// led to.
pub fn of_transition(id: JobId, spec: &JobSpec, from: State, head: &Head) -> Option<Act> {
    let action = action_of(head.last_event?, from)?;
    let act = Act::by_system(format!("job:{id}:{}", head.version), head.since, spec.tenant.as_str(), action);
    let act = Act { old_status: Some(from.to_string()), new_status: Some(head.state().to_string()), ..act };
    Some(act.standing(id, spec, head))
}

/// The audit entry of a job's last transition, if a loop caused it. The process that moves the job on writes the entry
/// again, because the loop may have died before it could.
pub fn owed(id: JobId, spec: &JobSpec, head: &Head, history: &[Transition]) -> Option<Act> {
    let from = history.iter().rev().nth(1)?.to;
    of_transition(id, spec, from, head)
}

/// The audit entries of all retries that the job's history still contains, equal to those written when the retries
/// happened.
pub fn retries(id: JobId, spec: &JobSpec, head: &Head, history: &[Transition]) -> Vec<Act> {
    let steps = history.windows(2).rev().zip((0..=head.version).rev());
    let is_retry = |(pair, version): (&[Transition], u32)| {
        let (before, line) = (&pair[0], &pair[1]);
        if line.event != Some(Event::Wake) || before.to != State::Retrying {
            return None;
        }
        let id_of = format!("job:{id}:{version}");
        let act = Act::by_system(id_of, line.at, spec.tenant.as_str(), "job_retry");
        let act = Act { old_status: Some(before.to.to_string()), new_status: Some(line.to.to_string()), ..act };
        Some(Act { attempt: Some(line.attempt), ..act.standing(id, spec, head) })
    };
    steps.filter_map(is_retry).collect()
}

/// The audit entry for help that a loop gave a job without moving it; one entry for each version of the job.
pub fn of_help(id: JobId, spec: &JobSpec, head: &Head, what: &str, at: Time) -> Act {
    let act =
        Act::by_system(format!("job:{id}:{}:{what}", head.version), at, spec.tenant.as_str(), &format!("job_{what}"));
    Act { old_status: Some(head.state().to_string()), ..act }.standing(id, spec, head)
}

/// The audit entry for recreating a job that Redis had lost; one entry, however often the job is recreated.
pub fn of_recreation(id: JobId, spec: &JobSpec, at: Time) -> Act {
    let act = Act::by_system(format!("job:{id}:1:recreate"), at, spec.tenant.as_str(), "job_recreate");
    Act { new_status: Some(State::Pending.to_string()), ..act }.job(id).with("topic", spec.topic.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, Tenant, Topic};

    fn spec() -> JobSpec {
        JobSpec::new(Tenant::parse("acme").unwrap(), Topic::parse("t").unwrap())
    }

    fn head(version: u32, event: Event, since: Time) -> Head {
        Head {
            version,
            attempt: 2,
            max_attempts: 5,
            lost: 0,
            released: 0,
            timeout: None,
            fence: 9,
            since,
            deadline: None,
            start_by: None,
            started_at: None,
            created_at: Time(1),
            last_event: Some(event),
            attempt_ended_by: None,
            last_worker: None,
            phase: Phase::Pending { run_at: Time::NONE },
        }
    }

    fn line(event: Option<Event>, to: State, at: u64, attempt: u16) -> Transition {
        Transition { event, to, at: Time(at), attempt, note: String::new() }
    }

    fn story() -> Vec<Transition> {
        vec![
            line(None, State::Pending, 1, 0),
            line(Some(Event::Dispatch), State::Dispatched, 2, 0),
            line(Some(Event::Start), State::Running, 3, 1),
            line(Some(Event::Retry), State::Retrying, 4, 1),
            line(Some(Event::Wake), State::Pending, 5, 1),
            line(Some(Event::Dispatch), State::Dispatched, 6, 1),
            line(Some(Event::Start), State::Running, 7, 2),
            line(Some(Event::Retry), State::Retrying, 8, 2),
            line(Some(Event::Wake), State::Pending, 9, 2),
        ]
    }

    #[test]
    fn a_retry_is_told_the_same_by_whoever_tells_it() {
        let (id, now) = (JobId::mint(3), head(9, Event::Wake, Time(9)));
        let act = of_transition(id, &spec(), State::Retrying, &now).unwrap();
        assert_eq!(act.id, format!("job:{id}:9"));
        assert_eq!((act.actor.as_str(), act.actor_type, act.action.as_str()), (SYSTEM, ActorType::System, "job_retry"));
        assert_eq!((act.old_status.as_deref(), act.new_status.as_deref()), (Some("retrying"), Some("pending")));
        assert_eq!((act.attempt, act.max_attempts), (Some(2), Some(5)));
        assert_eq!(owed(id, &spec(), &now, &story()), Some(act.clone()));
        let all = retries(id, &spec(), &now, &story());
        assert_eq!(all[0], act);
        assert_eq!((all.len(), all[1].id.as_str(), all[1].attempt), (2, format!("job:{id}:5").as_str(), Some(1)));
    }

    #[test]
    fn a_story_that_lost_its_middle_still_names_the_right_versions() {
        let (id, now) = (JobId::mint(3), head(209, Event::Wake, Time(9)));
        let ids: Vec<String> = retries(id, &spec(), &now, &story()).into_iter().map(|act| act.id).collect();
        assert_eq!(ids, [format!("job:{id}:209"), format!("job:{id}:205")]);
    }

    #[test]
    fn what_the_path_of_a_healthy_job_does_is_not_told() {
        let id = JobId::mint(3);
        for (event, from) in
            [(Event::Wake, State::Scheduled), (Event::Dispatch, State::Pending), (Event::Hold, State::Pending)]
        {
            assert_eq!(of_transition(id, &spec(), from, &head(2, event, Time(2))), None, "{event}");
        }
    }
}
