//! What becomes of a pending job: pure, so that it can be read, tested and replaced.
//!
//! Knows: when a job may go straight onto the bus and when it has to wait. Promises: the same
//! question gets the same answer; the answer is one event, applied by one script that judges the
//! job's own moments again by its node's clock. Leaves to others: reading the windows (`routes`)
//! and carrying the answer out (`dispatch`).
//!
//! A policy outside this process, which may take long to answer, is asked before this (`counsel`, `consult`).

use muster_domain::{Event, Time};

/// What is asked about one pending job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// Redis time before which it must not run; none if it may run at once.
    pub(crate) run_at: Option<Time>,
    /// Redis time, as this replica estimates it.
    pub(crate) now: Time,
    /// It needs a concurrency slot, which is taken on the way out of the backlog.
    pub(crate) limited: bool,
}

/// What this replica knows of the job's topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicView {
    /// How many jobs of the topic wait in Redis.
    pub(crate) waiting: u64,
    /// How many more offers its window takes.
    pub(crate) room: u64,
    /// Paused, or released by a limit only: nobody goes straight through.
    pub(crate) held: bool,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Offered on the bus.
    Dispatch,
    /// Into the backlog.
    Hold,
    /// Not before its time.
    Schedule,
}

impl Decision {
    /// The event that carries it out.
    pub(crate) fn event(self) -> Event {
        match self {
            Decision::Dispatch => Event::Dispatch,
            Decision::Hold => Event::Hold,
            Decision::Schedule => Event::Schedule,
        }
    }
}

/// Who decides from what this replica knows, without asking anybody.
pub(crate) trait Decide: Send + Sync {
    /// What becomes of this job.
    fn decide(&self, question: &Question, view: TopicView) -> Decision;
}

/// By time, window, backlog and what the topic was told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByWindow;

impl Decide for ByWindow {
    fn decide(&self, question: &Question, view: TopicView) -> Decision {
        if question.run_at.is_some_and(|at| !at.reached(question.now)) {
            return Decision::Schedule;
        }
        // Whoever waits already goes first: with a backlog even a free place is not for newcomers.
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
