//! Which events a watcher sees: events of its tenant, on topics that its key covers, that match its request.

use muster_domain::{JobId, State, Topic};
use muster_wire::v1::{JobEvent, ProgressNotice};

use crate::auth::Caller;

/// A kind of event, as its `type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A job has reached this state.
    State(State),
    /// A worker has reported progress of a job.
    Progress,
    /// Events are missing. Every watcher gets these, requested or not.
    Gap,
}

impl Kind {
    /// Parses `muster.job.<state>`, `muster.job.progress` or `muster.gap`.
    pub(crate) fn parse(text: &str) -> Option<Kind> {
        match text.strip_prefix("muster.")? {
            "gap" => Some(Kind::Gap),
            "job.progress" => Some(Kind::Progress),
            other => State::parse(other.strip_prefix("job.")?).map(Kind::State),
        }
    }
}

/// What a watcher requested, and the caller that limits it.
pub(crate) struct Filter {
    pub(crate) caller: Caller,
    pub(crate) topic: Option<Topic>,
    pub(crate) job: Option<JobId>,
    /// The text of a run's id. Notices of progress name no run.
    pub(crate) run: Option<String>,
    /// Empty means every kind.
    pub(crate) kinds: Vec<Kind>,
}

impl Filter {
    fn takes(&self, kind: Kind, tenant: &str, topic: &str, job: &[u8], run: &str) -> bool {
        tenant == self.caller.tenant.as_str()
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
            && self.topic.as_ref().is_none_or(|wanted| wanted.as_str() == topic)
            && self.job.is_none_or(|wanted| wanted.as_bytes() == job)
            && self.run.as_deref().is_none_or(|wanted| wanted == run)
            && self.caller.covers(topic)
    }

    /// The state that an event reports, if the watcher sees the event. `None` for a state that this version does not
    /// know.
    pub(super) fn event(&self, event: &JobEvent) -> Option<State> {
        let state = u8::try_from(event.state).ok().and_then(State::from_code)?;
        self.takes(Kind::State(state), &event.tenant, &event.topic, &event.job_id, &event.run_id).then_some(state)
    }

    /// Whether the watcher sees a progress notice.
    pub(super) fn progress(&self, notice: &ProgressNotice) -> bool {
        self.takes(Kind::Progress, &notice.tenant, &notice.topic, &notice.job_id, "")
    }
}
