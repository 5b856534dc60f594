-- @generated from crates/domain/src/job/state.rs by muster-codegen. Do not edit.
-- The state table: TABLE at (state - 1) * EVENTS + event is where it leads, 0 = illegal.
local PENDING, SCHEDULED, RETRYING, AWAITING_APPROVAL, QUEUED, DISPATCHED, RUNNING = 1, 2, 3, 4, 5, 6, 7
local SUCCEEDED, FAILED, TIMED_OUT, CANCELLED, DENIED, EXPIRED, QUARANTINED = 8, 9, 10, 11, 12, 13, 14
local APPLIED, ALREADY, STALE, ILLEGAL, MISSING, EARLY = 1, 2, 3, 4, 5, 6
local SCHEDULE, HOLD, DISPATCH, START, RELEASE, CUT_SHORT, TIME_OUT = 1, 3, 4, 10, 15, 20, 21
local CANCEL = 23
local EVENTS = 23
local TABLE = '\2\0\5\6\0\1\4\0\12\7\9\0\0\0\0\0\0\0\0\0\10\13\11\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\0\11\0\0\0\0\0\0\0\1\12\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\0\5\6\0\0\0\0\12\0\0\0\0\0\0\0\0\0\0\0\10\13\11\0\0\0\0\6\1\0\0\0\7\9\0\0\0\0\0\0\0\0\0\10\13\11\0\0\0\0\0\0\0\0\0\0\0\8\3\9\2\14\3\9\14\3\10\0\11\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- The state of a job that an event creates before its submit, 0 = it creates none.
local BORN = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\11'
-- What the caller of each event must have seen, and which moment must have come for it.
local BY_VERSION, BY_FENCE = 1, 2
local SEEN = '\1\1\1\1\1\1\1\1\1\1\1\2\2\2\2\2\1\1\1\1\1\1\3'
local DUE_RUN_AT, DUE_LEASE_END, DUE_ATTEMPT_END, DUE_ANY_TIME_OUT, DUE_ANY_EXPIRY = 1, 2, 3, 4, 5
local DUE = '\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\2\2\3\4\5\0'
