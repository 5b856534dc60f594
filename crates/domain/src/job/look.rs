//! *The look*: decides what a job needs when its home is due, and when the next look must be.
//!
//! A pure function: (head, spec, now, view of the bus) → an action and the next look. The reconciler carries out the
//! action. `lua/job/look.lua` repeats [`latest_look`] for the scripts, and a test compares the two.

use std::time::Duration;

use super::{
    head::{Head, Phase},
    retry::{FailedAttempt, after_lost_lease, after_time_out},
    spec::{JobError, JobSpec},
    state::Event,
};
use crate::{JobErrorCode, JobId, Time};

/// The time to the first look at a pending job. The job's submit counts as lost only if it is this much older than the
/// oldest known message.
pub const PENDING_LOOK: Duration = Duration::from_secs(30);
/// The longest time between two looks at a pending job; the looks get rarer up to this.
pub const PENDING_LOOK_MAX: Duration = Duration::from_secs(300);
/// The time between two looks at an offered job. The job's offer counts as lost only if it is this much older than the
/// oldest offer on its subject.
pub const DISPATCHED_LOOK: Duration = Duration::from_secs(30);
/// The time between two looks at a job in the backlog, plus or minus a half.
pub const QUEUED_LOOK: Duration = Duration::from_secs(15 * 60);

/// If a moment lies further in the future than possible by more than this, a clock ran ahead when it was written.
pub const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// The longest time to the next look at a job whose lease has run out while silence is not proven. It must be short:
/// scripts take the end of the lease for the latest look of a running job, so they would not forward a home that lies
/// far behind it.
const SILENCE_LOOK: Duration = Duration::from_secs(1);

/// What is known about the oldest message of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The bus gave no answer, so nothing may be concluded.
    Unknown,
    /// There is no message.
    Empty,
    /// The oldest message carries this Redis time.
    Oldest(Time),
}

impl Known {
    /// Whether a message that was published at `since` must have been lost.
    fn has_lost(self, since: Time, now: Time, margin: Duration) -> bool {
        // A clock ran ahead and was corrected. If the oldest message carries a time of the corrected clock, messages
        // published before the correction are gone.
        if since > now + CLOCK_SLACK {
            return match self {
                Known::Unknown => false,
                Known::Empty => true,
                Known::Oldest(oldest) => oldest <= now + CLOCK_SLACK,
            };
        }
        match self {
            Known::Unknown => false,
            Known::Empty => (since + margin).reached(now),
            Known::Oldest(oldest) => since + margin < oldest,
        }
    }
}

/// What the reconciler knows about the bus at the time of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusView {
    /// The oldest submit that no scheduler has handled.
    pub submits: Known,
    /// The oldest offer on this job's subject.
    pub offers: Known,
    /// `None` if a lease that has run out may be ended for silence; otherwise the time at which to ask again: after an
    /// outage, or while the stream holds results that no scheduler has handled.
    pub silence_unproven_until: Option<Time>,
}

/// What a job needs when its home is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing now.
    Nothing,
    /// Publish its submit again.
    Resubmit,
    /// Its `run_at` has come: make it pending and publish its submit.
    Wake,
    /// Put its queue entry back if it is gone.
    Requeue,
    /// Offer it again, under a new version.
    Reoffer,
    /// Apply this event, with this wait and error.
    Apply(FailedAttempt),
    /// Repeat the effects of its end, and remove its home.
    Finish,
}

/// An action, and the time of the next look if the action changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// What to do.
    pub action: Action,
    /// When to look again.
    pub next: Time,
}

/// Decides what this job needs now.
pub fn look(id: JobId, head: &Head, spec: &JobSpec, now: Time, bus: &BusView) -> Look {
    let next = next_look(head, now);
    let act = |action| Look { action, next };
    if let Some(action) = out_of_time(head, now) {
        return act(action);
    }
    match &head.phase {
        Phase::Pending { .. } if bus.submits.has_lost(head.since, now, PENDING_LOOK) => act(Action::Resubmit),
        Phase::Scheduled { run_at } | Phase::Retrying { run_at } if run_at.reached(now) => act(Action::Wake),
        Phase::Queued => act(Action::Requeue),
        Phase::Dispatched if bus.offers.has_lost(head.since, now, DISPATCHED_LOOK) => act(Action::Reoffer),
        Phase::Running { attempt_end: Some(end), .. } if end.reached(now) => {
            act(Action::Apply(after_time_out(id, head, &spec.retry)))
        }
        Phase::Running { lease, .. } if lease.until.reached(now) => match bus.silence_unproven_until {
            None => act(Action::Apply(after_lost_lease(head, spec))),
            Some(later) => {
                let soon = later.clamp(now + Duration::from_millis(50), now + SILENCE_LOOK);
                Look { action: Action::Nothing, next: bounded(head, soon) }
            }
        },
        Phase::Ended { .. } => act(Action::Finish),
        _ => act(Action::Nothing),
    }
}

/// Checks the deadline and start-by, which apply in every living state.
fn out_of_time(head: &Head, now: Time) -> Option<Action> {
    if head.state().is_end() {
        return None;
    }
    let end = |event, code: JobErrorCode, text: &str| {
        let error = JobError::new(code.as_str(), text, false);
        Some(Action::Apply(FailedAttempt { event, wait: Duration::ZERO, error }))
    };
    if head.deadline.is_some_and(|d| d.reached(now)) {
        let event = if head.was_started() { Event::TimeOut } else { Event::Expire };
        return end(event, JobErrorCode::DeadlineExceeded, "the job's deadline passed");
    }
    if !head.was_started() && head.start_by.is_some_and(|s| s.reached(now)) {
        return end(Event::Expire, JobErrorCode::StartByPassed, "the job had not started by its start_by");
    }
    match head.phase {
        Phase::AwaitingApproval { expires } if expires.reached(now) => {
            end(Event::Expire, JobErrorCode::DeadlineExceeded, "the job was not approved in time")
        }
        _ => None,
    }
}

/// When the next look at a job must be, after a look at `now`.
pub fn next_look(head: &Head, now: Time) -> Time {
    let plain = match &head.phase {
        Phase::Pending { .. } => now + now.since(head.since).clamp(PENDING_LOOK, PENDING_LOOK_MAX),
        Phase::Queued => now + QUEUED_LOOK,
        Phase::Dispatched => now + DISPATCHED_LOOK,
        _ => fixed_look(head, now),
    };
    bounded(head, plain)
}

/// The latest moment at which the home of a job with this head can be due. A transition's script compares it with the
/// new head, to learn whether the home must be forwarded.
pub fn latest_look(head: &Head, now: Time) -> Time {
    let plain = match &head.phase {
        Phase::Pending { .. } if now.since(head.since) < PENDING_LOOK => head.since + PENDING_LOOK,
        Phase::Pending { .. } => now + PENDING_LOOK_MAX,
        Phase::Queued => now + QUEUED_LOOK + QUEUED_LOOK / 2,
        Phase::Dispatched => now + DISPATCHED_LOOK,
        _ => fixed_look(head, now),
    };
    bounded(head, plain)
}

/// Whether a home with this due time is later than this living job allows. Such a home was written by hand, or while a
/// clock ran ahead. A home that is due soon never is: a check may have put it off for a while.
pub fn is_too_late(head: &Head, due: Time, now: Time) -> bool {
    let plain = match &head.phase {
        Phase::Pending { .. } => now + PENDING_LOOK_MAX,
        Phase::Queued => now + QUEUED_LOOK + QUEUED_LOOK / 2,
        Phase::Dispatched => now + DISPATCHED_LOOK,
        _ => fixed_look(head, now),
    };
    due > bounded(head, plain).max(now) + CLOCK_SLACK
}

fn fixed_look(head: &Head, now: Time) -> Time {
    match &head.phase {
        Phase::Scheduled { run_at } | Phase::Retrying { run_at } => *run_at,
        Phase::AwaitingApproval { expires } => *expires,
        Phase::Running { lease, attempt_end } => attempt_end.map_or(lease.until, |end| lease.until.min(end)),
        _ => now,
    }
}

fn bounded(head: &Head, plain: Time) -> Time {
    let start_by = head.start_by.filter(|_| !head.was_started());
    [head.deadline, start_by].into_iter().flatten().fold(plain, Time::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Ending, StartId, Tenant, Topic, WorkerId,
        job::{Lease, transition},
    };

    const NOW: Time = Time(1_800_000_000_000_000);
    const S: Duration = Duration::from_secs(1);
    const QUIET: BusView = BusView { submits: Known::Empty, offers: Known::Empty, silence_unproven_until: None };

    fn head(phase: Phase, age: Duration) -> Head {
        Head {
            version: 3,
            attempt: 1,
            max_attempts: 2,
            lost: 0,
            released: 0,
            timeout: None,
            fence: 9,
            since: NOW.before(age),
            deadline: None,
            start_by: None,
            started_at: None,
            created_at: NOW.before(age),
            last_event: None,
            attempt_ended_by: None,
            last_worker: None,
            phase,
        }
    }

    fn running(lease_left: i64, attempt_left: Option<i64>) -> Head {
        let at = |left: i64| Time(NOW.0.wrapping_add_signed(left * 1_000_000));
        let lease = Lease { worker: WorkerId::trusted("w"), start_id: StartId([0; 8]), until: at(lease_left) };
        let mut head = head(Phase::Running { lease, attempt_end: attempt_left.map(at) }, S);
        head.started_at = Some(head.since);
        head
    }

    fn looked(head: &Head, bus: &BusView) -> Look {
        let spec = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
        look(JobId::mint(0), head, &spec, NOW, bus)
    }

    fn event(look: &Look) -> Option<Event> {
        match &look.action {
            Action::Apply(failed) => Some(failed.event),
            _ => None,
        }
    }

    #[test]
    fn what_a_clock_that_ran_ahead_put_on_the_bus_is_judged_by_the_clock_that_is_right() {
        let hour = 3_600 * S;
        for phase in [Phase::Pending { run_at: Time::NONE }, Phase::Dispatched] {
            let ahead = Head { since: NOW + hour, ..head(phase, S) };
            let acts = |known| looked(&ahead, &BusView { submits: known, offers: known, ..QUIET }).action;
            assert_ne!(acts(Known::Empty), Action::Nothing, "nothing is there");
            assert_ne!(acts(Known::Oldest(NOW.before(S))), Action::Nothing, "all that is there came later");
            assert_eq!(acts(Known::Oldest(NOW + hour)), Action::Nothing, "it may still be there");
            assert_eq!(acts(Known::Unknown), Action::Nothing);
        }
    }

    #[test]
    fn a_home_is_too_late_when_no_look_could_have_put_it_there() {
        let hour = 3_600 * S;
        let pending = head(Phase::Pending { run_at: Time::NONE }, S);
        assert!(!is_too_late(&pending, NOW + PENDING_LOOK_MAX, NOW));
        assert!(is_too_late(&pending, NOW + hour, NOW));
        assert!(is_too_late(&Head { since: NOW + hour, ..pending }, NOW + hour, NOW), "a clock ran ahead");
        let queued = head(Phase::Queued, S);
        assert!(
            !is_too_late(&queued, NOW + QUEUED_LOOK + QUEUED_LOOK / 2, NOW) && is_too_late(&queued, NOW + hour, NOW)
        );
        assert!(is_too_late(&head(Phase::Dispatched, S), NOW + hour, NOW));
        let due = head(Phase::Retrying { run_at: NOW.before(hour) }, hour);
        assert!(!is_too_late(&due, NOW + 10 * S, NOW) && is_too_late(&due, NOW + hour, NOW), "it was put off");
        assert!(
            !is_too_late(&running(30, None), NOW + 30 * S, NOW) && is_too_late(&running(30, None), NOW + hour, NOW)
        );
        let scheduled = head(Phase::Scheduled { run_at: NOW + hour }, S);
        assert!(!is_too_late(&scheduled, NOW + hour, NOW) && is_too_late(&scheduled, NOW + 2 * hour, NOW));
        let bound = Head { deadline: Some(NOW + 10 * S), ..scheduled };
        assert!(is_too_late(&bound, NOW + hour, NOW), "its deadline comes first");
    }

    #[test]
    fn pending_is_published_again_only_when_its_submit_must_be_lost() {
        let young = head(Phase::Pending { run_at: Time::NONE }, 29 * S);
        let old = head(Phase::Pending { run_at: Time::NONE }, 31 * S);
        assert_eq!(looked(&young, &QUIET).action, Action::Nothing);
        assert_eq!(looked(&old, &QUIET).action, Action::Resubmit);
        let lag = |t| BusView { submits: Known::Oldest(t), ..QUIET };
        assert_eq!(looked(&old, &lag(NOW.before(5 * S))).action, Action::Nothing, "within 30 s of the oldest");
        assert_eq!(looked(&old, &lag(NOW)).action, Action::Resubmit, "older than the oldest by more than 30 s");
        assert_eq!(looked(&old, &BusView { submits: Known::Unknown, ..QUIET }).action, Action::Nothing);
    }

    #[test]
    fn looks_at_a_pending_job_double_up_to_five_minutes() {
        let next = |age| looked(&head(Phase::Pending { run_at: Time::NONE }, age), &QUIET).next.remaining(NOW);
        assert_eq!(next(S), 30 * S);
        assert_eq!(next(100 * S), 100 * S);
        assert_eq!(next(10_000 * S), 300 * S);
    }

    #[test]
    fn waiting_for_a_time_means_waiting_for_just_that() {
        for phase in [Phase::Scheduled { run_at: NOW + S }, Phase::Retrying { run_at: NOW + S }] {
            assert_eq!(looked(&head(phase, S), &QUIET), Look { action: Action::Nothing, next: NOW + S });
        }
        for phase in [Phase::Scheduled { run_at: NOW }, Phase::Retrying { run_at: NOW }] {
            assert_eq!(looked(&head(phase, S), &QUIET).action, Action::Wake);
        }
    }

    #[test]
    fn a_queued_job_has_its_entry_checked() {
        let look = looked(&head(Phase::Queued, S), &QUIET);
        assert_eq!(look, Look { action: Action::Requeue, next: NOW + QUEUED_LOOK });
    }

    #[test]
    fn an_offer_is_lost_only_when_the_subject_says_so() {
        let old = head(Phase::Dispatched, 31 * S);
        assert_eq!(looked(&old, &QUIET).action, Action::Reoffer);
        assert_eq!(looked(&old, &BusView { offers: Known::Unknown, ..QUIET }).action, Action::Nothing);
        let oldest = |t| BusView { offers: Known::Oldest(t), ..QUIET };
        assert_eq!(looked(&old, &oldest(NOW.before(31 * S))).action, Action::Nothing, "it may be that very one");
        assert_eq!(looked(&old, &oldest(NOW)).action, Action::Reoffer);
        assert_eq!(looked(&head(Phase::Dispatched, 5 * S), &QUIET).action, Action::Nothing);
        assert_eq!(looked(&old, &QUIET).next, NOW + DISPATCHED_LOOK);
    }

    #[test]
    fn a_running_job_is_left_alone_while_its_lease_holds() {
        assert_eq!(looked(&running(10, None), &QUIET), Look { action: Action::Nothing, next: NOW + 10 * S });
        assert_eq!(looked(&running(10, Some(4)), &QUIET).next, NOW + 4 * S);
    }

    #[test]
    fn a_silent_worker_loses_its_job_once_silence_is_proven() {
        assert_eq!(event(&looked(&running(0, None), &QUIET)), Some(Event::Rescue));
        let unproven = |later| BusView { silence_unproven_until: Some(later), ..QUIET };
        let soon = NOW + S / 2;
        assert_eq!(looked(&running(0, None), &unproven(soon)), Look { action: Action::Nothing, next: soon });
        let look = looked(&running(0, None), &unproven(NOW + 7 * S));
        assert_eq!(look, Look { action: Action::Nothing, next: NOW + S }, "never far behind the lease's end");
    }

    #[test]
    fn the_last_lost_lease_quarantines_if_all_were_lost_and_fails_otherwise() {
        let mut last = running(-1, None);
        (last.attempt, last.lost) = (2, 1);
        assert_eq!(event(&looked(&last, &QUIET)), Some(Event::Poison));
        last.lost = 0;
        assert_eq!(event(&looked(&last, &QUIET)), Some(Event::Abandon));
        (last.attempt, last.max_attempts) = (1, 1);
        assert_eq!(event(&looked(&last, &QUIET)), Some(Event::Poison), "the only attempt was lost");
    }

    #[test]
    fn an_attempt_that_takes_too_long_is_cut_short_or_times_out() {
        assert_eq!(event(&looked(&running(10, Some(0)), &QUIET)), Some(Event::CutShort));
        let mut last = running(10, Some(0));
        last.attempt = 2;
        assert_eq!(event(&looked(&last, &QUIET)), Some(Event::TimeOut));
    }

    #[test]
    fn deadlines_bind_in_every_living_state() {
        let phases = [
            Phase::Pending { run_at: Time::NONE },
            Phase::Scheduled { run_at: NOW + 60 * S },
            Phase::Queued,
            Phase::Dispatched,
            Phase::AwaitingApproval { expires: NOW + 60 * S },
        ];
        for phase in phases {
            let mut waiting = head(phase, S);
            waiting.deadline = Some(NOW + 2 * S);
            assert_eq!(looked(&waiting, &QUIET).next, NOW + 2 * S);
            waiting.deadline = Some(NOW);
            assert_eq!(event(&looked(&waiting, &QUIET)), Some(Event::Expire), "{:?}", waiting.state());
            waiting.deadline = None;
            waiting.start_by = Some(NOW);
            assert_eq!(event(&looked(&waiting, &QUIET)), Some(Event::Expire), "{:?}", waiting.state());
            waiting.started_at = Some(NOW.before(S));
            assert_eq!(event(&looked(&waiting, &QUIET)), None, "start_by binds only before the first start");
            waiting.deadline = Some(NOW);
            assert_eq!(event(&looked(&waiting, &QUIET)), Some(Event::TimeOut));
            assert!(transition(waiting.state(), Event::TimeOut).is_some(), "{:?}", waiting.state());
        }
        let mut run = running(10, None);
        run.deadline = Some(NOW);
        assert_eq!(event(&looked(&run, &QUIET)), Some(Event::TimeOut));
    }

    #[test]
    fn an_approval_expires() {
        assert_eq!(event(&looked(&head(Phase::AwaitingApproval { expires: NOW }, S), &QUIET)), Some(Event::Expire));
    }

    #[test]
    fn an_ended_job_has_its_effects_finished_whatever_its_deadline() {
        let mut ended = head(Phase::Ended { end: Ending::Failed, lease_end: None }, S);
        ended.deadline = Some(NOW.before(S));
        assert_eq!(looked(&ended, &QUIET).action, Action::Finish);
    }
}
