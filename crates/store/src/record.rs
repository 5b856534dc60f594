//! The encoding of a job's hash. `lua/job/head.lua` defines the layout of the packed head (field `s`),
//! `lua/job/raw.lua` that of a job that was written whole (field `j`). Only this file and these scripts parse the two.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use muster_domain::{
    Ending, Event, Head, JobError, JobId, JobSpec, Phase, Progress, StartId, State, Time, WorkerId,
    job::{Lease, Transition},
    slot::Holder,
};
use muster_telemetry::{Emit, events::UnreadableRecord};
use muster_wire::v1;
use redis::Value;

use crate::{NewJob, StoreError, place::Place, script::bytes};

/// The result that a job returned.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StoredResult {
    /// JSON, verbatim; empty if there is no result or it was too large.
    pub json: Bytes,
    /// Whether the result was too large to keep.
    pub truncated: bool,
    /// The size of the whole result in bytes, if it was too large.
    pub size: u64,
    /// The beginning of the result, if it was too large.
    pub preview: String,
}

/// The large fields to read with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The payload.
    pub payload: bool,
    /// The result.
    pub result: bool,
}

impl Fields {
    /// No large field.
    pub const NONE: Fields = Fields { payload: false, result: false };
    /// The payload only: what an offer needs.
    pub const PAYLOAD: Fields = Fields { payload: true, result: false };
    /// Both large fields.
    pub const ALL: Fields = Fields { payload: true, result: true };

    pub(crate) fn names(self) -> Vec<&'static str> {
        let mut names = vec!["s", "j", "d", "e", "g", "n", "x", "l", "c"];
        if self.payload {
            names.extend(["p", "k"]);
        }
        names.extend(self.result.then_some("r"));
        names
    }
}

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The id of the job.
    pub id: JobId,
    /// The job's state and counters.
    pub head: Head,
    /// The request.
    pub spec: JobSpec,
    /// JSON, verbatim; none if the job has no payload or the caller did not ask for it.
    pub payload: Option<Bytes>,
    /// The hash of the request, if the id was derived; read together with the payload.
    pub body_hash: Option<[u8; 16]>,
    /// The result, if the job has one and the caller asked for it.
    pub result: Option<StoredResult>,
    /// The error of the last failed attempt.
    pub error: Option<JobError>,
    /// The progress that the worker last reported.
    pub progress: Option<Progress>,
    /// The history: the submit and the last 63 transitions.
    pub history: Vec<Transition>,
    /// The id of the job that retries this one.
    pub retried_as: Option<JobId>,
    /// Whether the job was deleted: what is left is the stub, which holds the idempotency key and keeps the job from
    /// being created again.
    pub deleted: bool,
    /// The job's place in the listing. An entry at any other place is left over from a repeated submit.
    pub place: Option<Place>,
    /// The version under which the job was last admitted to a concurrency slot or a place.
    pub slot: Option<u32>,
    /// Whether the job was admitted to a place of its topic under that version, alone or with a concurrency slot.
    pub placed: bool,
    /// The end of the current lease, or of the last one if a cancel or the clock ended its attempt.
    pub lease_until: Option<Time>,
}

impl Record {
    /// What `domain::slot` needs to judge a concurrency slot.
    pub fn holder(&self) -> Holder<'_> {
        Holder { head: &self.head, slot: self.slot, lease_until: self.lease_until }
    }
}

fn wrong(what: &str) -> StoreError {
    StoreError::Decode(what.to_owned())
}

/// Turns a fault of a command on one job's record into [`StoreError::Unreadable`] and logs it, if the record causes the
/// fault. Returns every other fault unchanged.
pub(crate) fn fault_of(job: JobId, fault: StoreError) -> StoreError {
    let what = match fault {
        StoreError::Decode(what) => what,
        StoreError::Server { code, .. } if code == "WRONGTYPE" => "not a hash".to_owned(),
        // The script could not parse the head; it has not written anything.
        StoreError::Server { message, .. } if message.starts_with("user_script:") => message,
        other => return other,
    };
    UnreadableRecord { job: &job, detail: &what }.emit();
    StoreError::Unreadable { job, what }
}

/// The length of the head without the worker's name.
const FIXED: usize = 91;
/// The length of a place, and of everything before the spec in a job that was written whole; the same as in
/// `lua/job/raw.lua`.
const PLACE: usize = 8;
const WHOLE: usize = 8 + 2 + 4 + PLACE + 2;
/// The most bytes of a job that is written whole: with a longer field, Redis would no longer store the hash in its
/// compact form.
const MOST_WHOLE: usize = 512;
/// The bytes of the head that hold the end of the lease.
const LEASE: std::ops::Range<usize> = 42..50;

/// Reads a head and leaves the bytes after it in `raw`.
pub(crate) fn read_head(raw: &mut &[u8]) -> Result<Head, StoreError> {
    if raw.len() < FIXED {
        return Err(wrong("head cut short"));
    }
    let state = State::from_code(raw.get_u8()).ok_or_else(|| wrong("unknown state"))?;
    let version = raw.get_u32();
    let (attempt, max_attempts, lost) = (raw.get_u16(), raw.get_u16(), raw.get_u16());
    let released = raw.get_u8();
    let (last_event, attempt_ended_by) = (Event::from_code(raw.get_u8()), Event::from_code(raw.get_u8()));
    let timeout_ms = raw.get_u32();
    let fence = raw.get_u64();
    let mut moment = || Time(raw.get_u64());
    let (since, due, lease_until, deadline, start_by, started_at, created_at) =
        (moment(), moment(), moment(), moment(), moment(), moment(), moment());
    let mut start_id = [0; 8];
    raw.copy_to_slice(&mut start_id);
    let length = usize::from(raw.get_u8());
    if raw.len() < length {
        return Err(wrong("worker cut short"));
    }
    let worker = String::from_utf8_lossy(&raw[..length]).into_owned();
    raw.advance(length);
    let phase = match state {
        State::Pending => Phase::Pending { run_at: due },
        State::Scheduled => Phase::Scheduled { run_at: due },
        State::Retrying => Phase::Retrying { run_at: due },
        State::AwaitingApproval => Phase::AwaitingApproval { expires: due },
        State::Queued => Phase::Queued,
        State::Dispatched => Phase::Dispatched,
        State::Running => Phase::Running {
            lease: Lease { worker: WorkerId::trusted(worker.clone()), start_id: StartId(start_id), until: lease_until },
            attempt_end: due.some(),
        },
        over => {
            Phase::Ended { end: Ending::try_from(over).map_err(|_| wrong("no end"))?, lease_end: lease_until.some() }
        }
    };
    Ok(Head {
        version,
        attempt,
        max_attempts,
        lost,
        released,
        timeout: limit(timeout_ms),
        fence,
        since,
        deadline: deadline.some(),
        start_by: start_by.some(),
        started_at: started_at.some(),
        created_at,
        last_event,
        attempt_ended_by,
        last_worker: (!worker.is_empty()).then(|| WorkerId::trusted(worker)),
        phase,
    })
}

/// The head of a job without transitions and without `run_at`, `start_by` and `deadline`.
fn fresh(accepted: Time, max_attempts: u16, timeout_ms: u32) -> Head {
    Head {
        version: 1,
        attempt: 0,
        max_attempts,
        lost: 0,
        released: 0,
        timeout: limit(timeout_ms),
        fence: 0,
        since: accepted,
        deadline: None,
        start_by: None,
        started_at: None,
        created_at: accepted,
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase: Phase::Pending { run_at: Time::NONE },
    }
}

/// The field `j` of a job that is accepted at `at` and written whole, and the job's head. None if the job is too large
/// or has a `run_at`, `start_by` or `deadline`.
pub(crate) fn write_whole(job: &NewJob, place: Place, at: Time) -> Option<(Vec<u8>, Head)> {
    let JobSpec { run_at: None, start_by: None, deadline: None, timeout_ms, ref retry, .. } = job.spec else {
        return None;
    };
    let spec = v1::Spec::from(&job.spec).into_bytes();
    let length = WHOLE + spec.len() + job.payload.len();
    if length > MOST_WHOLE {
        return None;
    }
    let mut whole = Vec::with_capacity(length);
    whole.put_u64(at.0);
    whole.put_u16(retry.max_attempts);
    whole.put_u32(timeout_ms);
    whole.put_slice(&place.to_bytes());
    whole.put_u16(u16::try_from(spec.len()).ok()?);
    whole.put_slice(&spec);
    whole.put_slice(&job.payload);
    Some((whole, fresh(at, retry.max_attempts, timeout_ms)))
}

/// The content of the field `j`.
#[derive(Default)]
struct Whole {
    /// The head at the time of the submit.
    head: Option<Head>,
    place: Option<Vec<u8>>,
    spec: Option<Vec<u8>>,
    payload: Option<Bytes>,
}

fn read_whole(raw: Vec<u8>) -> Result<Whole, StoreError> {
    let mut raw = Bytes::from(raw);
    if raw.len() < WHOLE {
        return Err(wrong("the whole is cut short"));
    }
    let head = fresh(Time(raw.get_u64()), raw.get_u16(), raw.get_u32());
    let place = raw.split_to(PLACE).to_vec();
    let length = usize::from(raw.get_u16());
    if raw.len() < length {
        return Err(wrong("the whole is cut short"));
    }
    let spec = raw.split_to(length).to_vec();
    let payload = Some(raw).filter(|payload| !payload.is_empty());
    Ok(Whole { head: Some(head), place: Some(place), spec: Some(spec), payload })
}

fn limit(timeout_ms: u32) -> Option<Duration> {
    (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()))
}

/// The first entry of every history. It is not stored, because the head holds all of it.
fn accepted(at: Time) -> Transition {
    Transition { event: None, to: State::Pending, at, attempt: 0, note: String::new() }
}

fn read_history(mut raw: &[u8], created_at: Time) -> Result<Vec<Transition>, StoreError> {
    if raw.len() < 2 {
        return Err(wrong("history cut short"));
    }
    let count = usize::from(raw.get_u16());
    let mut lines = Vec::with_capacity(1 + count.min(63));
    lines.push(accepted(created_at));
    while raw.has_remaining() {
        let length = usize::from(raw.get_u8());
        if length < 12 || raw.len() < length {
            return Err(wrong("history cut short"));
        }
        let (mut line, rest) = raw.split_at(length);
        raw = rest;
        lines.push(Transition {
            event: Event::from_code(line.get_u8()),
            to: State::from_code(line.get_u8()).ok_or_else(|| wrong("unknown state in history"))?,
            at: Time(line.get_u64()),
            attempt: line.get_u16(),
            note: String::from_utf8_lossy(line).into_owned(),
        });
    }
    if lines.len() != 1 + count {
        return Err(wrong("lines of history are missing"));
    }
    Ok(lines)
}

/// Reads the reply to HMGET of [`Fields::names`]; `None` if there is no such job.
pub(crate) fn read_record(id: JobId, fields: Fields, reply: Value) -> Result<Option<Record>, StoreError> {
    let Value::Array(values) = reply else { return Err(wrong("not a list of fields")) };
    if values.iter().all(|value| *value == Value::Nil) {
        return Ok(None);
    }
    let mut values = values.into_iter();
    let mut field = || match values.next() {
        None | Some(Value::Nil) => Ok(None),
        Some(value) => bytes(value).map(Some),
    };
    let wire = |e: muster_wire::WireError| wrong(&e.to_string());
    // If the job was written whole, fields that were written later override `j`.
    let (packed, whole) = (field()?, field()?.map(read_whole).transpose()?.unwrap_or_default());
    let spec = field()?.or(whole.spec).ok_or_else(|| wrong("no spec"))?;
    let (head, history, lease_until) = match (packed, whole.head) {
        (Some(packed), _) => {
            let mut raw = packed.as_slice();
            let head = read_head(&mut raw)?;
            let history = read_history(raw, head.created_at)?;
            let lease_until = packed.get(LEASE).and_then(|raw| Time(u64::from_be_bytes(raw.try_into().ok()?)).some());
            (head, history, lease_until)
        }
        (None, Some(head)) => {
            let history = vec![accepted(head.created_at)];
            (head, history, None)
        }
        (None, None) => return Err(wrong("no head")),
    };
    let error = field()?.map(|b| v1::Failure::from_bytes(&b)).transpose().map_err(wire)?;
    let progress = field()?.map(|b| v1::Progress::from_bytes(&b)).transpose().map_err(wire)?;
    let retried_as = field()?.and_then(|b| JobId::from_slice(&b));
    let deleted = field()?.is_some();
    let place = field()?.or(whole.place).and_then(|b| Place::from_bytes(&b));
    let (slot, placed) = field()?.map_or((None, false), |b| read_slot(&b));
    let (payload, body_hash) = match fields.payload {
        true => (field()?.map(Bytes::from).or(whole.payload), field()?.and_then(|b| b.try_into().ok())),
        false => (None, None),
    };
    let result = if fields.result { field()?.map(|b| read_result(&b)).transpose()? } else { None };
    Ok(Some(Record {
        id,
        history,
        head,
        spec: v1::Spec::from_bytes(&spec).map_err(wire)?,
        payload,
        body_hash,
        result,
        error,
        progress,
        retried_as,
        deleted,
        place,
        slot,
        placed,
        lease_until,
    }))
}

/// Parses `<version>`, followed by `t` if the job also has a place of its topic, as `lua/job/apply.lua` writes it.
fn read_slot(raw: &[u8]) -> (Option<u32>, bool) {
    let text = std::str::from_utf8(raw).unwrap_or_default();
    let version = text.strip_suffix('t').unwrap_or(text);
    (version.parse().ok(), version.len() < text.len())
}

pub(crate) fn write_result(result: &StoredResult) -> Vec<u8> {
    v1::Success {
        result: result.json.clone(),
        truncated: result.truncated,
        size: result.size,
        preview: result.preview.clone(),
    }
    .to_bytes()
}

fn read_result(raw: &[u8]) -> Result<StoredResult, StoreError> {
    let s = v1::Success::from_bytes(raw).map_err(|e| wrong(&e.to_string()))?;
    Ok(StoredResult { json: s.result, truncated: s.truncated, size: s.size, preview: s.preview })
}
