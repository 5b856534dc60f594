//! Decides what happens to a pending job. Pure, so that it can be read, tested and replaced.
//!
//! Knows: when a job may go straight onto the bus and when it has to wait. Promises: the same question gets the same
//! answer. The answer is one event; the script that applies it compares the job's times again with its node's clock.
//! Leaves to others: reading the windows (`route_state`) and carrying the answer out (`dispatch`).
//!
//! A policy outside this process, which may take long to answer, is asked before this (`counsel`, `consult`).

use muster_domain::{Event, Time};

/// One pending job, as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// Redis time before which the job must not run; none if it may run at once.
    pub(crate) run_at: Option<Time>,
    /// Redis time, as this replica estimates it.
    pub(crate) now: Time,
    /// The job needs a concurrency slot, which is taken when it leaves the backlog.
    pub(crate) limited: bool,
}

/// The state of the job's route in this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicView {
    /// How many of the route's jobs wait in Redis.
    pub(crate) waiting: u64,
    /// How many more offers the window takes.
    pub(crate) room: u64,
    /// Paused, or released by a limit only: no job skips the backlog.
    pub(crate) held: bool,
}

/// What happens to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Publish an offer on the bus.
    Dispatch,
    /// Put the job into the backlog.
    Hold,
    /// Wait until `run_at`.
    Schedule,
}

impl Decision {
    /// The event that carries the decision out.
    pub(crate) fn event(self) -> Event {
        match self {
            Decision::Dispatch => Event::Dispatch,
            Decision::Hold => Event::Hold,
            Decision::Schedule => Event::Schedule,
        }
    }
}

/// A decision from this replica's own knowledge, without a call to another process.
pub(crate) trait Decide: Send + Sync {
    fn decide(&self, question: &Question, view: TopicView) -> Decision;
}

/// Decides by time, window, backlog and the topic's run-time settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByWindow;

impl Decide for ByWindow {
    fn decide(&self, question: &Question, view: TopicView) -> Decision {
        if question.run_at.is_some_and(|at| !at.reached(question.now)) {
            return Decision::Schedule;
        }
        // Waiting jobs go first: while there is a backlog, a new job does not get a free place in the window.
        let held = question.limited || view.held;
        if held || view.waiting > 0 || view.room == 0 { Decision::Hold } else { Decision::Dispatch }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Time(1_800_000_000_000_000);

    fn decided(run_at: Option<Time>, waiting: u64, room: u64) -> Decision {
        ByWindow.decide(&Question { run_at, now: NOW, limited: false }, TopicView { waiting, room, held: false })
    }

    #[test]
    fn a_topic_that_was_told_to_hold_lets_nobody_through() {
        let view = TopicView { waiting: 0, room: 100, held: true };
        assert_eq!(ByWindow.decide(&Question { run_at: None, now: NOW, limited: false }, view), Decision::Hold);
        let ahead = Some(NOW + Duration::from_secs(1));
        assert_eq!(ByWindow.decide(&Question { run_at: ahead, now: NOW, limited: false }, view), Decision::Schedule);
    }

    #[test]
    fn a_job_that_meets_no_backlog_goes_straight_through() {
        assert_eq!(decided(None, 0, 1), Decision::Dispatch);
        assert_eq!(decided(Some(NOW), 0, 1), Decision::Dispatch, "its time has come");
    }

    #[test]
    fn a_full_window_or_a_backlog_holds_it() {
        assert_eq!(decided(None, 0, 0), Decision::Hold);
        assert_eq!(decided(None, 1, 100), Decision::Hold, "whoever waits goes first");
        let limited = Question { run_at: None, now: NOW, limited: true };
        assert_eq!(
            ByWindow.decide(&limited, TopicView { waiting: 0, room: 9, held: false }),
            Decision::Hold,
            "it needs a slot"
        );
    }

    #[test]
    fn a_time_ahead_schedules_it_whatever_the_window() {
        for (waiting, room) in [(0, 1), (0, 0), (5, 1)] {
            assert_eq!(decided(Some(NOW + Duration::from_micros(1)), waiting, room), Decision::Schedule);
        }
    }

    #[test]
    fn every_decision_is_a_legal_step_of_a_pending_job() {
        for decision in [Decision::Dispatch, Decision::Hold, Decision::Schedule] {
            assert!(muster_domain::job::transition(muster_domain::State::Pending, decision.event()).is_some());
        }
    }
}
