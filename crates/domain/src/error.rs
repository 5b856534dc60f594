//! Stable error codes that clients may match on. Every code has a page in `docs/errors/`.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every code, in the order of the docs.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The code as clients see it.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}

codes! {
    /// Why a request was refused.
    ProblemCode {
        /// The body is not JSON.
        InvalidJson = "invalid_json",
        /// The headers of the request contradict each other.
        MalformedRequest = "malformed_request",
        /// A field has a value that is not allowed.
        InvalidRequest = "invalid_request",
        /// The request contains an unknown field.
        UnknownField = "unknown_field",
        /// A field that this version does not honour yet.
        UnsupportedField = "unsupported_field",
        /// The body or the payload exceeds its limit.
        PayloadTooLarge = "payload_too_large",
        /// The request has no API key, or an unknown one.
        Unauthorized = "unauthorized",
        /// The API key is known but lacks the required scope.
        MissingScope = "missing_scope",
        /// The resource does not exist, or belongs to another tenant.
        NotFound = "not_found",
        /// The path exists, but not with this method.
        MethodNotAllowed = "method_not_allowed",
        /// The body is not plain JSON, by its declared type or encoding.
        UnsupportedMediaType = "unsupported_media_type",
        /// The job has ended already.
        JobDone = "job_done",
        /// The job has not ended yet.
        JobNotDone = "job_not_done",
        /// The job belongs to a run of a workflow that is kept.
        JobInRun = "job_in_run",
        /// The idempotency key was used with another body.
        IdempotencyMismatch = "idempotency_mismatch",
        /// The job was retried before with other overrides.
        AlreadyRetried = "already_retried",
        /// The run has not ended yet.
        RunNotDone = "run_not_done",
        /// The run has ended already.
        RunDone = "run_done",
        /// As many runs of the workflow go on as its concurrency allows.
        ConcurrencyFull = "concurrency_full",
        /// The run holds as many unread signals as it may.
        SignalsFull = "signals_full",
        /// The run or the step is in a state in which this cannot be done.
        WrongState = "wrong_state",
        /// The resource has changed since the version that the caller names.
        PreconditionFailed = "precondition_failed",
        /// The tenant exceeds its rate.
        RateLimited = "rate_limited",
        /// Too many jobs of this topic are already waiting.
        BacklogFull = "backlog_full",
        /// The gateway has too much in flight.
        Overloaded = "overloaded",
        /// Redis does not answer.
        StoreUnavailable = "store_unavailable",
        /// The job's record is damaged.
        JobUnreadable = "job_unreadable",
        /// A fault in Muster itself.
        Internal = "internal",
    }
}

codes! {
    /// Why an attempt or a job ended badly, for endings that Muster decides. Workers may use codes of their own.
    JobErrorCode {
        /// The handler failed and named no code.
        HandlerError = "handler_error",
        /// One attempt ran longer than `timeout_ms`.
        AttemptTimeout = "attempt_timeout",
        /// The job's deadline passed.
        DeadlineExceeded = "deadline_exceeded",
        /// The job had not started by `start_by`.
        StartByPassed = "start_by_passed",
        /// The worker sent nothing until the lease ran out.
        StaleTimeout = "stale_timeout",
        /// The worker could not read the offer.
        Undecodable = "undecodable",
        /// The decider denied the job.
        Denied = "denied",
    }
}
