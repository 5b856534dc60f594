//! Which events a watcher sees: its tenant's, of topics that its key covers, and of those what it asked for.

use muster_domain::{JobId, State, Topic};
use muster_wire::v1::{JobEvent, ProgressNotice};

use crate::auth::Caller;

/// A kind of event, as its `type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A job has come to this state.
    State(State),
    /// A job has told how far it is.
    Progress,
    /// Something was missed. Told to everybody, asked for or not.
    Gap,
}

impl Kind {
    /// Reads `muster.job.<state>`, `muster.job.progress` or `muster.gap`.
    pub(crate) fn parse(text: &str) -> Option<Kind> {
        match text.strip_prefix("muster.")? {
            "gap" => Some(Kind::Gap),
            "job.progress" => Some(Kind::Progress),
            other => State::parse(other.strip_prefix("job.")?).map(Kind::State),
        }
    }
}

/// What a watcher wants of what it may see.
pub(crate) struct Filter {
    pub(crate) caller: Caller,
    pub(crate) topic: Option<Topic>,
    pub(crate) job: Option<JobId>,
    /// Empty: every kind.
    pub(crate) kinds: Vec<Kind>,
}

impl Filter {
    fn takes(&self, kind: Kind, tenant: &str, topic: &str, job: &[u8]) -> bool {
        tenant == self.caller.tenant.as_str()
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
            && self.topic.as_ref().is_none_or(|wanted| wanted.as_str() == topic)
            && self.job.is_none_or(|wanted| wanted.as_bytes() == job)
            && self.caller.covers(topic)
    }

    /// The state that an event tells of, if it is to be seen. One that this version does not know is not.
    pub(super) fn event(&self, event: &JobEvent) -> Option<State> {
        let state = u8::try_from(event.state).ok().and_then(State::from_code)?;
        self.takes(Kind::State(state), &event.tenant, &event.topic, &event.job_id).then_some(state)
    }

    /// Whether a notice of progress is to be seen.
    pub(super) fn progress(&self, notice: &ProgressNotice) -> bool {
        self.takes(Kind::Progress, &notice.tenant, &notice.topic, &notice.job_id)
    }
}
