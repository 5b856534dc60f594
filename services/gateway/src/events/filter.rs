//! Which events a watcher sees: events of its tenant, on topics that its key covers, that match its request.

use muster_domain::{JobId, RunId, State, Topic};
use muster_engine::{
    definition::check_event_type,
    run::{RunState, StepState},
};
use muster_wire::v1::{JobEvent, ProgressNotice, RunEvent};

use super::item::Report;
use crate::auth::Caller;

/// A kind of event, as its `type` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A job has reached this state.
    State(State),
    /// A worker has reported progress of a job.
    Progress,
    /// A run has reached this state.
    Run(RunState),
    /// A step of a run has reached this state.
    Step(StepState),
    /// A user's event, which a run emits.
    Own(String),
    /// Events are missing. Every watcher gets these, requested or not.
    Gap,
}

impl Kind {
    /// Parses `muster.job.<state>`, `muster.job.progress`, `muster.run.<state>`, `muster.step.<state>`, `muster.gap`, or
    /// a type of the user's.
    pub(crate) fn parse(text: &str) -> Option<Kind> {
        let Some(ours) = text.strip_prefix("muster.") else {
            return check_event_type(text).ok().map(|()| Kind::Own(text.to_owned()));
        };
        match ours.split_once('.') {
            None => (ours == "gap").then_some(Kind::Gap),
            Some(("job", "progress")) => Some(Kind::Progress),
            Some(("job", state)) => State::parse(state).map(Kind::State),
            Some(("run", state)) => RunState::parse(state).map(Kind::Run),
            Some(("step", state)) => StepState::parse(state).map(Kind::Step),
            Some(_) => None,
        }
    }

    fn names(&self, report: Report<'_>) -> bool {
        match (self, report) {
            (Kind::Run(wanted), Report::Run(state)) => *wanted == state,
            (Kind::Step(wanted), Report::Step(state)) => *wanted == state,
            (Kind::Own(wanted), Report::Own(own)) => wanted == own,
            _ => false,
        }
    }
}

/// What a watcher requested, and the caller that limits it.
pub(crate) struct Filter {
    pub(crate) caller: Caller,
    pub(crate) topic: Option<Topic>,
    pub(crate) job: Option<JobId>,
    /// A run, and its text. Notices of progress name no run.
    pub(crate) run: Option<(RunId, String)>,
    /// Empty means every kind.
    pub(crate) kinds: Vec<Kind>,
}

impl Filter {
    fn takes(&self, kind: &Kind, tenant: &str, topic: &str, job: &[u8], run: &str) -> bool {
        tenant == self.caller.tenant.as_str()
            && (self.kinds.is_empty() || self.kinds.contains(kind))
            && self.topic.as_ref().is_none_or(|wanted| wanted.as_str() == topic)
            && self.job.is_none_or(|wanted| wanted.as_bytes() == job)
            && self.run.as_ref().is_none_or(|(_, wanted)| wanted == run)
            && self.caller.covers(topic)
    }

    /// The state that an event reports, if the watcher sees the event. `None` for a state that this version does not
    /// know.
    pub(super) fn event(&self, event: &JobEvent) -> Option<State> {
        let state = u8::try_from(event.state).ok().and_then(State::from_code)?;
        self.takes(&Kind::State(state), &event.tenant, &event.topic, &event.job_id, &event.run_id).then_some(state)
    }

    /// What an event of a run reports, if the watcher sees the event. A run has no topic and is no job, so a watcher of
    /// one topic or one job sees none, nor does a key for some topics.
    pub(super) fn run_event<'e>(&self, event: &'e RunEvent) -> Option<Report<'e>> {
        let report = Report::of(event)?;
        let seen = event.tenant == self.caller.tenant.as_str()
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind.names(report)))
            && self.topic.is_none()
            && self.job.is_none()
            && self.run.as_ref().is_none_or(|(wanted, _)| wanted.as_bytes()[..] == event.run_id[..])
            && self.caller.covers_all();
        seen.then_some(report)
    }

    /// Whether the watcher sees a progress notice.
    pub(super) fn progress(&self, notice: &ProgressNotice) -> bool {
        self.takes(&Kind::Progress, &notice.tenant, &notice.topic, &notice.job_id, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_one_of_ours_or_one_that_a_definition_may_have() {
        assert_eq!(Kind::parse("muster.job.failed"), Some(Kind::State(State::Failed)));
        assert_eq!(Kind::parse("muster.job.progress"), Some(Kind::Progress));
        assert_eq!(Kind::parse("muster.run.timed_out"), Some(Kind::Run(RunState::TimedOut)));
        assert_eq!(Kind::parse("muster.step.skipped"), Some(Kind::Step(StepState::Skipped)));
        assert_eq!(Kind::parse("muster.gap"), Some(Kind::Gap));
        assert_eq!(Kind::parse("order.failed"), Some(Kind::Own("order.failed".into())));
        for strange in ["", "muster", "muster.", "muster.run", "muster.run.started", "muster.x.y", "-a", "a b", "é"] {
            assert_eq!(Kind::parse(strange), None, "{strange:?}");
        }
    }
}
