//! Stable error codes: what a client may match on. Every code has a page in `docs/errors/`.

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
        /// A field has a value that it may not have.
        InvalidRequest = "invalid_request",
        /// A field nobody knows.
        UnknownField = "unknown_field",
        /// A field that this version does not honour yet.
        UnsupportedField = "unsupported_field",
        /// Body or payload over its limit.
        PayloadTooLarge = "payload_too_large",
        /// No key, or one that is not known.
        Unauthorized = "unauthorized",
        /// The key is known but may not do this.
        MissingScope = "missing_scope",
        /// No such thing, or not yours.
        NotFound = "not_found",
        /// The path exists, the method does not.
        MethodNotAllowed = "method_not_allowed",
        /// The body is not declared as JSON.
        UnsupportedMediaType = "unsupported_media_type",
        /// The job has ended already.
        JobDone = "job_done",
        /// The job has not ended yet.
        JobNotDone = "job_not_done",
        /// The idempotency key was used with another body.
        IdempotencyMismatch = "idempotency_mismatch",
        /// The job was retried before with other overrides.
        AlreadyRetried = "already_retried",
        /// Somebody else has written since the version that the caller names.
        PreconditionFailed = "precondition_failed",
        /// Over the tenant's rate.
        RateLimited = "rate_limited",
        /// Too many jobs of this topic wait already.
        BacklogFull = "backlog_full",
        /// The gateway has too much in flight.
        Overloaded = "overloaded",
        /// Redis does not answer.
        StoreUnavailable = "store_unavailable",
        /// The job's record is damaged.
        JobUnreadable = "job_unreadable",
        /// A fault of ours.
        Internal = "internal",
    }
}

codes! {
    /// Why an attempt or a job ended badly, where muster itself says so. Workers may use codes of their own.
    JobErrorCode {
        /// The handler failed and named no code.
        HandlerError = "handler_error",
        /// One attempt ran longer than `timeout_ms`.
        AttemptTimeout = "attempt_timeout",
        /// The job's deadline passed.
        DeadlineExceeded = "deadline_exceeded",
        /// The job had not started by `start_by`.
        StartByPassed = "start_by_passed",
        /// Its worker fell silent and the lease ran out.
        StaleTimeout = "stale_timeout",
        /// The offer could not be read by its worker.
        Undecodable = "undecodable",
        /// Whoever has a say in it said no.
        Denied = "denied",
    }
}
