//! The state machines of runs and of steps: tables of (state, event) → state.
//!
//! The docs' diagrams and the tests come from [`RUNS`] and [`STEPS`]; there is no second copy. A pair that is not
//! listed is illegal, and the engine ignores it.

/// Values with the number that records hold.
macro_rules! numbered {
    ($(#[$doc:meta])* $vis:vis $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        $vis enum $name { $($(#[$vdoc])* $variant = $code,)* }
        impl $name {
            /// The number that records hold.
            $vis fn code(self) -> u8 { self as u8 }
            /// Reads the number.
            $vis fn from_code(code: u8) -> Option<$name> { match code { $($code => Some($name::$variant),)* _ => None } }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> { to.serialize_u8(self.code()) }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let code = <u8 as serde::Deserialize>::deserialize(from)?;
                $name::from_code(code).ok_or_else(|| serde::de::Error::custom(concat!("no such ", stringify!($name))))
            }
        }
    };
}

/// Values with a number, and a name that people see.
macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $crate::run::state::numbered! { $(#[$doc])* pub $name { $($(#[$vdoc])* $variant = $code,)* } }
        impl $name {
            /// All values, in the order of their codes.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The name that people see.
            pub fn as_str(self) -> &'static str { match self { $($name::$variant => $text,)* } }
            /// Reads the name.
            pub fn parse(text: &str) -> Option<$name> { match text { $($text => Some($name::$variant),)* _ => None } }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}

pub(crate) use {coded, numbered};

coded! {
    /// The state of a run. States with codes up to 5 are alive, from 6 on ended.
    RunState {
        /// Waits for its slot.
        Queued = 1 "queued",
        /// Its steps start and end.
        Running = 2 "running",
        /// Takes results, and starts nothing.
        Paused = 3 "paused",
        /// Failed, timed out or was cancelled, and waits for the steps that still run.
        Stopping = 4 "stopping",
        /// Undoes what its steps did.
        Compensating = 5 "compensating",
        /// Ended well.
        Succeeded = 6 "succeeded",
        /// Ended because a step failed.
        Failed = 7 "failed",
        /// Was cancelled.
        Cancelled = 8 "cancelled",
        /// Ran out of time.
        TimedOut = 9 "timed_out",
    }
}

impl RunState {
    /// Whether a run in this state never moves again.
    pub fn is_end(self) -> bool {
        self.code() >= RunState::Succeeded.code()
    }
}

coded! {
    /// The state of a step, of an item of a for-each, and of an iteration.
    StepState {
        /// Has not started.
        Waiting = 0 "waiting",
        /// Started, and has not ended.
        Running = 1 "running",
        /// Ended well.
        Succeeded = 2 "succeeded",
        /// Ended with an error and no attempt left.
        Failed = 3 "failed",
        /// Ran out of time.
        TimedOut = 4 "timed_out",
        /// Was stopped with its scope.
        Cancelled = 5 "cancelled",
        /// Never did its work, or was skipped by hand.
        Skipped = 6 "skipped",
    }
}

impl StepState {
    /// Whether a step in this state never moves again.
    pub fn is_end(self) -> bool {
        self.code() >= StepState::Succeeded.code()
    }

    /// Whether this end is a failure for `run_if`.
    pub fn is_failure(self) -> bool {
        matches!(self, StepState::Failed | StepState::TimedOut | StepState::Cancelled)
    }
}

coded! {
    /// What happens to a run.
    RunMove {
        /// It has its slot, or needs none.
        Start = 1 "start",
        /// Somebody pauses it.
        Pause = 2 "pause",
        /// Somebody resumes it.
        Resume = 3 "resume",
        /// A failure, the time-out or somebody's cancel stops it.
        Stop = 4 "stop",
        /// Its compensations begin.
        Compensate = 5 "compensate",
        /// Every step has ended, and none failed it.
        Succeed = 6 "succeed",
        /// It ends after a failure.
        Fail = 7 "fail",
        /// It ends after a cancel.
        Cancel = 8 "cancel",
        /// It ends after its time-out.
        TimeOut = 9 "time_out",
    }
}

coded! {
    /// What happens to a step.
    StepMove {
        /// It starts.
        Start = 1 "start",
        /// A new attempt of it starts.
        Repeat = 2 "repeat",
        /// It ends well.
        Succeed = 3 "succeed",
        /// It ends with an error.
        Fail = 4 "fail",
        /// It ran out of time.
        TimeOut = 5 "time_out",
        /// It is stopped.
        Cancel = 6 "cancel",
        /// It is passed over, by its conditions or by hand.
        Skip = 7 "skip",
    }
}

macro_rules! transitions {
    ($(#[$doc:meta])* $table:ident: $states:ident, $moves:ident { $($from:ident + $event:ident => $to:ident;)* }) => {
        $(#[$doc])*
        pub const $table: &[($states, $moves, $states)] = &[$(($states::$from, $moves::$event, $states::$to),)*];
        impl $states {
            /// The state that a move leads to, if it is legal.
            pub fn after(self, event: $moves) -> Option<$states> {
                $table.iter().find(|(f, e, _)| *f == self && *e == event).map(|(_, _, to)| *to)
            }
        }
    };
}

transitions! {
    /// Every legal move of a run, in the order of its life.
    RUNS: RunState, RunMove {
        Queued + Start => Running;
        Queued + Fail => Failed;
        Queued + Cancel => Cancelled;

        Running + Pause => Paused;
        Running + Stop => Stopping;
        Running + Succeed => Succeeded;

        Paused + Resume => Running;
        Paused + Stop => Stopping;

        Stopping + Compensate => Compensating;
        Stopping + Fail => Failed;
        Stopping + Cancel => Cancelled;
        Stopping + TimeOut => TimedOut;

        Compensating + Fail => Failed;
        Compensating + Cancel => Cancelled;
        Compensating + TimeOut => TimedOut;
    }
}

transitions! {
    /// Every legal move of a step, in the order of its life.
    STEPS: StepState, StepMove {
        Waiting + Start => Running;
        Waiting + Fail => Failed;
        Waiting + Skip => Skipped;

        Running + Repeat => Running;
        Running + Succeed => Succeeded;
        Running + Fail => Failed;
        Running + TimeOut => TimedOut;
        Running + Cancel => Cancelled;
        Running + Skip => Skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_is_listed_twice() {
        for (i, (from, event, _)) in RUNS.iter().enumerate() {
            assert!(!RUNS[..i].iter().any(|(f, e, _)| f == from && e == event), "{from} + {event}");
        }
        for (i, (from, event, _)) in STEPS.iter().enumerate() {
            assert!(!STEPS[..i].iter().any(|(f, e, _)| f == from && e == event), "{from} + {event}");
        }
    }

    #[test]
    fn an_end_is_an_end_and_everything_else_is_left() {
        for &state in RunState::ALL {
            assert_eq!(RUNS.iter().any(|(from, _, _)| *from == state), !state.is_end(), "{state}");
        }
        for &state in StepState::ALL {
            assert_eq!(STEPS.iter().any(|(from, _, _)| *from == state), !state.is_end(), "{state}");
        }
    }

    #[test]
    fn every_state_but_the_first_can_be_reached() {
        for &state in &RunState::ALL[1..] {
            assert!(RUNS.iter().any(|(_, _, to)| *to == state), "{state}");
        }
        for &state in &StepState::ALL[1..] {
            assert!(STEPS.iter().any(|(_, _, to)| *to == state), "{state}");
        }
    }

    #[test]
    fn every_run_that_still_starts_steps_can_be_stopped() {
        for &state in RunState::ALL {
            let starts = state.after(RunMove::Stop).is_some();
            assert_eq!(starts, matches!(state, RunState::Running | RunState::Paused), "{state}");
        }
    }

    #[test]
    fn names_and_codes_round_trip() {
        for &state in RunState::ALL {
            assert_eq!(
                (RunState::parse(state.as_str()), RunState::from_code(state.code())),
                (Some(state), Some(state))
            );
        }
        for &state in StepState::ALL {
            assert_eq!(
                (StepState::parse(state.as_str()), StepState::from_code(state.code())),
                (Some(state), Some(state))
            );
        }
    }
}
