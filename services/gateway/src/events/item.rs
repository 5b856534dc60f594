//! One event of a message, whether of a job or of a run.

use std::borrow::Cow;

use bytes::Bytes;
use muster_bus::Items;
use muster_engine::run::{RunState, StepState};
use muster_wire::v1::{JobEvent, RunEvent};

/// One event, in its message or on its own.
#[derive(Clone, Debug)]
pub(super) enum Item<'a> {
    Job(Cow<'a, JobEvent>),
    Run(Cow<'a, RunEvent>),
}

impl<'a> Item<'a> {
    /// The event at this place of a message.
    pub(super) fn of(items: &'a Items, place: usize) -> Option<Item<'a>> {
        match items {
            Items::Jobs(items) => items.get(place).map(|event| Item::Job(Cow::Borrowed(event))),
            Items::Runs(items) => items.get(place).map(|event| Item::Run(Cow::Borrowed(event))),
        }
    }

    /// How many events this one counts as: the data of a user's event takes memory too.
    pub(super) fn weight(&self) -> usize {
        match self {
            Item::Job(_) => 1,
            Item::Run(event) => weight_of(event),
        }
    }

    /// A copy that does not keep the whole message in memory: ids and data are slices of it.
    pub(super) fn detached(&self) -> Item<'static> {
        let copied = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        match self {
            Item::Job(event) => {
                Item::Job(Cow::Owned(JobEvent { job_id: copied(&event.job_id), ..event.as_ref().clone() }))
            }
            Item::Run(event) => {
                let (run_id, data) = (copied(&event.run_id), copied(&event.data));
                Item::Run(Cow::Owned(RunEvent { run_id, data, ..event.as_ref().clone() }))
            }
        }
    }
}

/// How many events a message counts as.
pub(super) fn weight(items: &Items) -> usize {
    match items {
        Items::Jobs(items) => items.len(),
        Items::Runs(items) => items.iter().map(weight_of).sum(),
    }
}

/// The bytes of data that count as one more event: about as many as an event takes in memory.
const BYTES_OF_ONE: usize = 256;

fn weight_of(event: &RunEvent) -> usize {
    1 + event.data.len() / BYTES_OF_ONE
}

/// What an event of a run reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report<'a> {
    /// The run has reached this state.
    Run(RunState),
    /// A step of the run has reached this state.
    Step(StepState),
    /// A user's event of this type.
    Own(&'a str),
}

impl Report<'_> {
    /// Reads an event; `None` for a state that this version does not know.
    pub(super) fn of(event: &RunEvent) -> Option<Report<'_>> {
        let code = |code: u32| u8::try_from(code).ok();
        match (event.kind.as_str(), event.step_state) {
            ("", _) => RunState::from_code(code(event.state)?).map(Report::Run),
            // A user's event may have this type too, and has no state of a step.
            (STEP, 1..) => StepState::from_code(code(event.step_state)?).map(Report::Step),
            (own, _) => Some(Report::Own(own)),
        }
    }
}

/// The kind of an event about a step.
const STEP: &str = "step";

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, step_state: u32) -> RunEvent {
        RunEvent { kind: kind.into(), state: RunState::Running.code().into(), step_state, ..Default::default() }
    }

    #[test]
    fn an_event_of_a_run_says_what_it_reports() {
        assert_eq!(Report::of(&event("", 0)), Some(Report::Run(RunState::Running)));
        assert_eq!(Report::of(&event("step", 2)), Some(Report::Step(StepState::Succeeded)));
        assert_eq!(Report::of(&event("step", 0)), Some(Report::Own("step")), "a user's type");
        assert_eq!(Report::of(&event("order.failed", 0)), Some(Report::Own("order.failed")));
        for unknown in [event("step", 77), event("step", 777), RunEvent { state: 77, ..event("", 0) }] {
            assert_eq!(Report::of(&unknown), None);
        }
    }

    #[test]
    fn data_counts() {
        let with = |data: usize| RunEvent { data: vec![b'1'; data].into(), ..event("x", 0) };
        assert_eq!(weight(&Items::Runs(vec![with(0), with(255), with(2_560)])), 1 + 1 + 11);
        assert_eq!(weight(&Items::Jobs(vec![JobEvent::default(); 3])), 3);
    }
}
