//! The state machine: one table of (state, event) → state.
//!
//! The Lua that moves jobs, the diagram in the docs and the conformance tests are generated from [`TABLE`]; there is no
//! second copy. A pair that is not listed is illegal.

macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code,)* }
        impl $name {
            /// All values, in the order of their codes.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The name that people see.
            pub fn as_str(self) -> &'static str { match self { $($name::$variant => $text,)* } }
            /// The byte that records hold.
            pub fn code(self) -> u8 { self as u8 }
            /// Reads the byte.
            pub fn from_code(code: u8) -> Option<$name> { match code { $($code => Some($name::$variant),)* _ => None } }
            /// Reads the name.
            pub fn parse(text: &str) -> Option<$name> { match text { $($text => Some($name::$variant),)* _ => None } }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}

coded! {
    /// The state of a job. States with codes up to 7 are alive, from 8 on ended.
    State {
        /// Accepted, but not yet decided; or offered without a write to its record (on a hot topic).
        Pending = 1 "pending",
        /// Waiting for its `run_at`.
        Scheduled = 2 "scheduled",
        /// Waiting for the backoff after a failed attempt.
        Retrying = 3 "retrying",
        /// Waiting for a person's approval.
        AwaitingApproval = 4 "awaiting_approval",
        /// Admitted, but held back by a limit, a pause or a full window.
        Queued = 5 "queued",
        /// Offered on the bus.
        Dispatched = 6 "dispatched",
        /// A worker won the start and holds the lease.
        Running = 7 "running",
        /// Ended well.
        Succeeded = 8 "succeeded",
        /// Ended with an error and no attempt left.
        Failed = 9 "failed",
        /// Ran out of time.
        TimedOut = 10 "timed_out",
        /// Cancelled.
        Cancelled = 11 "cancelled",
        /// Denied by the decider or a person.
        Denied = 12 "denied",
        /// The deadline, start-by or approval ran out before the job ever started.
        Expired = 13 "expired",
        /// The lease ran out in every attempt, or the output policy held the result back.
        Quarantined = 14 "quarantined",
    }
}

impl State {
    /// Whether a job in this state never moves again.
    pub fn is_end(self) -> bool {
        self.code() >= State::Succeeded.code()
    }

    /// Whether a job with this end gets a dead letter.
    pub fn is_bad_end(self) -> bool {
        self.is_end() && !matches!(self, State::Succeeded | State::Cancelled)
    }
}

coded! {
    /// How a job ended: the [`State`]s in which a job never moves again, under the same codes and names.
    Ending {
        /// Ended well.
        Succeeded = 8 "succeeded",
        /// Ended with an error and no attempt left.
        Failed = 9 "failed",
        /// Ran out of time.
        TimedOut = 10 "timed_out",
        /// Cancelled.
        Cancelled = 11 "cancelled",
        /// Denied by the decider or a person.
        Denied = 12 "denied",
        /// The deadline, start-by or approval ran out before the job ever started.
        Expired = 13 "expired",
        /// The lease ran out in every attempt, or the output policy held the result back.
        Quarantined = 14 "quarantined",
    }
}

impl From<Ending> for State {
    fn from(end: Ending) -> State {
        match end {
            Ending::Succeeded => State::Succeeded,
            Ending::Failed => State::Failed,
            Ending::TimedOut => State::TimedOut,
            Ending::Cancelled => State::Cancelled,
            Ending::Denied => State::Denied,
            Ending::Expired => State::Expired,
            Ending::Quarantined => State::Quarantined,
        }
    }
}

impl TryFrom<State> for Ending {
    /// The state, which is not an end.
    type Error = State;

    fn try_from(state: State) -> Result<Ending, State> {
        Ending::from_code(state.code()).ok_or(state)
    }
}

coded! {
    /// The events that can happen to a job.
    Event {
        /// The job's `run_at` lies in the future.
        Schedule = 1 "schedule",
        /// The job's `run_at` has come.
        Wake = 2 "wake",
        /// The job has to wait in the backlog.
        Hold = 3 "hold",
        /// The job is offered on the bus.
        Dispatch = 4 "dispatch",
        /// The job's offer was lost, and the job is offered again.
        Reoffer = 5 "reoffer",
        /// The job's offer is taken back, and the job is decided again.
        Recall = 6 "recall",
        /// The decider asks for a person's approval.
        AskApproval = 7 "ask_approval",
        /// A person approved the job.
        Approve = 8 "approve",
        /// The decider or a person denied the job.
        Deny = 9 "deny",
        /// A worker starts the job: counts the attempt, mints the fence.
        Start = 10 "start",
        /// The worker could not read the offer.
        Reject = 11 "reject",
        /// The worker reports success.
        Succeed = 12 "succeed",
        /// The worker reports failure, and an attempt is left.
        Retry = 13 "retry",
        /// The worker reports failure, and the job is not tried again.
        Fail = 14 "fail",
        /// The worker drains and releases the attempt.
        Release = 15 "release",
        /// The output policy holds the result back.
        Quarantine = 16 "quarantine",
        /// The lease ran out, and an attempt is left.
        Rescue = 17 "rescue",
        /// The lease ran out, and the job is not tried again.
        Abandon = 18 "abandon",
        /// The lease ran out in the last attempt, as in every attempt before.
        Poison = 19 "poison",
        /// The attempt took too long, and an attempt is left.
        CutShort = 20 "cut_short",
        /// The last attempt took too long, or the deadline passed after a start.
        TimeOut = 21 "time_out",
        /// The deadline, start-by or approval ran out before a start.
        Expire = 22 "expire",
        /// A caller cancelled the job.
        Cancel = 23 "cancel",
    }
}

coded! {
    /// The answer of a transition's script.
    Outcome {
        /// The job moved.
        Applied = 1 "applied",
        /// The same holder applied this event before; the answer repeats the same values.
        Already = 2 "already",
        /// The caller's version or fence is no longer that of the job.
        Stale = 3 "stale",
        /// The table has no such pair of state and event.
        Illegal = 4 "illegal",
        /// There is no such job.
        Missing = 5 "missing",
        /// The moment that this event requires has not come.
        Early = 6 "early",
    }
}

/// What a caller must have read for its event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The record's version, for offers and looks.
    Version,
    /// The attempt's fence, for reports of a worker about its own attempt.
    Fence,
    /// Nothing: the event applies to the job in whatever state it is.
    Any,
}

/// The moment that must have come for an event. The script checks it with its own node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No moment.
    Always,
    /// `run_at`.
    RunAt,
    /// The end of the lease.
    LeaseEnd,
    /// The time-out of the attempt.
    AttemptEnd,
    /// The deadline, or the time-out of the attempt.
    AnyTimeOut,
    /// The deadline, start-by if the job has not started, or the expiry of the approval.
    AnyExpiry,
}

impl Event {
    /// What a caller of this event must have read.
    pub fn seen(self) -> Seen {
        use Event::{Cancel, Fail, Quarantine, Release, Retry, Succeed};
        match self {
            Succeed | Retry | Fail | Release | Quarantine => Seen::Fence,
            Cancel => Seen::Any,
            _ => Seen::Version,
        }
    }

    /// The moment that must have come for this event.
    pub fn due(self) -> Due {
        match self {
            Event::Wake => Due::RunAt,
            Event::Rescue | Event::Abandon | Event::Poison => Due::LeaseEnd,
            Event::CutShort => Due::AttemptEnd,
            Event::TimeOut => Due::AnyTimeOut,
            Event::Expire => Due::AnyExpiry,
            _ => Due::Always,
        }
    }
}

macro_rules! transitions {
    ($($from:ident + $event:ident => $to:ident;)*) => {
        /// Every legal transition, in the order of a job's life.
        pub const TABLE: &[(State, Event, State)] = &[$((State::$from, Event::$event, State::$to),)*];
    };
}

transitions! {
    Pending + Schedule => Scheduled;
    Pending + AskApproval => AwaitingApproval;
    Pending + Deny => Denied;
    Pending + Hold => Queued;
    Pending + Dispatch => Dispatched;
    Pending + Recall => Pending;
    Pending + Start => Running;
    Pending + Reject => Failed;
    Pending + Expire => Expired;
    Pending + TimeOut => TimedOut;
    Pending + Cancel => Cancelled;

    Scheduled + Wake => Pending;
    Scheduled + Expire => Expired;
    Scheduled + TimeOut => TimedOut;
    Scheduled + Cancel => Cancelled;

    Retrying + Wake => Pending;
    Retrying + TimeOut => TimedOut;
    Retrying + Cancel => Cancelled;

    AwaitingApproval + Approve => Pending;
    AwaitingApproval + Deny => Denied;
    AwaitingApproval + Expire => Expired;
    AwaitingApproval + TimeOut => TimedOut;
    AwaitingApproval + Cancel => Cancelled;

    Queued + Hold => Queued;
    Queued + Dispatch => Dispatched;
    Queued + Deny => Denied;
    Queued + Expire => Expired;
    Queued + TimeOut => TimedOut;
    Queued + Cancel => Cancelled;

    Dispatched + Reoffer => Dispatched;
    Dispatched + Recall => Pending;
    Dispatched + Start => Running;
    Dispatched + Reject => Failed;
    Dispatched + Expire => Expired;
    Dispatched + TimeOut => TimedOut;
    Dispatched + Cancel => Cancelled;

    Running + Succeed => Succeeded;
    Running + Retry => Retrying;
    Running + Fail => Failed;
    Running + Release => Scheduled;
    Running + Quarantine => Quarantined;
    Running + Rescue => Retrying;
    Running + Abandon => Failed;
    Running + Poison => Quarantined;
    Running + CutShort => Retrying;
    Running + TimeOut => TimedOut;
    Running + Cancel => Cancelled;
}

/// How a job comes to be: by its submit, or by an event that comes before its submit. The submit then finds a job that
/// has ended.
pub const BIRTHS: &[(Option<Event>, State)] = &[(None, State::Pending), (Some(Event::Cancel), State::Cancelled)];

/// The state of a job that an event creates before its submit, if the event may do so.
pub fn birth(event: Event) -> Option<State> {
    BIRTHS.iter().find(|(by, _)| *by == Some(event)).map(|(_, to)| *to)
}

/// The state that an event leads to, if the event is legal.
pub fn transition(from: State, event: Event) -> Option<State> {
    TABLE.iter().find(|(f, e, _)| *f == from && *e == event).map(|(_, _, to)| *to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_is_listed_twice() {
        for (i, (from, event, _)) in TABLE.iter().enumerate() {
            assert!(!TABLE[..i].iter().any(|(f, e, _)| f == from && e == event), "{from} + {event}");
        }
    }

    #[test]
    fn a_job_that_an_event_creates_has_ended_as_if_the_event_had_come_after_the_submit() {
        assert_eq!(BIRTHS[0], (None, State::Pending), "a submit");
        for (event, to) in BIRTHS.iter().filter_map(|(by, to)| Some(((*by)?, *to))) {
            assert!(to.is_end(), "{event}");
            assert_eq!((transition(State::Pending, event), event.seen()), (Some(to), Seen::Any), "{event}");
            assert_eq!(birth(event), Some(to));
        }
        assert_eq!(birth(Event::Start), None);
    }

    #[test]
    fn an_end_is_an_end() {
        assert!(TABLE.iter().all(|(from, _, _)| !from.is_end()));
    }

    #[test]
    fn endings_are_the_states_that_the_table_never_leaves() {
        for &state in State::ALL {
            let left = TABLE.iter().any(|(from, _, _)| *from == state);
            assert_eq!((Ending::try_from(state).is_err(), state.is_end()), (left, !left), "{state}");
        }
        for &end in Ending::ALL {
            let state = State::from(end);
            assert_eq!((Ending::try_from(state), state.code()), (Ok(end), end.code()));
            assert_eq!(state.as_str(), end.as_str());
        }
    }

    #[test]
    fn every_living_state_can_be_reached_left_and_cancelled() {
        for &state in State::ALL {
            if state != State::Pending {
                assert!(TABLE.iter().any(|(f, _, to)| *to == state && *f != state), "{state} cannot be reached");
            }
            if !state.is_end() {
                assert_eq!(transition(state, Event::Cancel), Some(State::Cancelled), "{state}");
            }
        }
    }

    #[test]
    fn names_and_codes_round_trip() {
        for &s in State::ALL {
            assert_eq!(State::parse(s.as_str()), Some(s));
            assert_eq!(State::from_code(s.code()), Some(s));
        }
        for &e in Event::ALL {
            assert_eq!(Event::from_code(e.code()), Some(e));
        }
        assert_eq!(State::from_code(0), None);
    }
}
