//! A job's hash as bytes. The layout of the packed field is that of `lua/job/head.lua`, of a job that is whole that of
//! `lua/job/raw.lua`; nobody else takes them apart.

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

/// What a job returned.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StoredResult {
    /// JSON, verbatim; empty if there is none or it was too large.
    pub json: Bytes,
    /// Whether it was too large to keep.
    pub truncated: bool,
    /// Bytes of the whole, where it was too large.
    pub size: u64,
    /// Its beginning, where it was too large.
    pub preview: String,
}

/// Which of the large fields to read along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The payload.
    pub payload: bool,
    /// The result.
    pub result: bool,
}

impl Fields {
    /// Neither.
    pub const NONE: Fields = Fields { payload: false, result: false };
    /// The payload only: what an offer needs.
    pub const PAYLOAD: Fields = Fields { payload: true, result: false };
    /// Both.
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
    /// Which.
    pub id: JobId,
    /// Where it stands.
    pub head: Head,
    /// What was asked for.
    pub spec: JobSpec,
    /// JSON, verbatim; none if there is none or it was not asked for.
    pub payload: Option<Bytes>,
    /// Of the request, if its id was derived; read along with the payload.
    pub body_hash: Option<[u8; 16]>,
    /// What it returned, if it was asked for.
    pub result: Option<StoredResult>,
    /// Why its last failed attempt failed.
    pub error: Option<JobError>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// Its story: the first and the last 63 transitions.
    pub history: Vec<Transition>,
    /// The job that is its retry.
    pub retried_as: Option<JobId>,
    /// Deleted; kept only to hold its idempotency key.
    pub deleted: bool,
    /// Where the listing names it; an entry anywhere else is a leftover of a repeated submit.
    pub place: Option<Place>,
    /// The version under which it was last admitted to a concurrency slot.
    pub slot: Option<u32>,
    /// Under that version it was admitted to a place of its topic, too or alone.
    pub placed: bool,
    /// The end of its last lease, where its attempt was ended from outside before that.
    pub lease_until: Option<Time>,
}

impl Record {
    /// What a concurrency slot is judged by.
    pub fn holder(&self) -> Holder<'_> {
        Holder { head: &self.head, slot: self.slot, lease_until: self.lease_until }
    }
}

fn wrong(what: &str) -> StoreError {
    StoreError::Decode(what.to_owned())
}

/// A fault that a command on one job's record met: told, and called what it is, where it is the record's own.
pub(crate) fn fault_of(job: JobId, fault: StoreError) -> StoreError {
    let what = match fault {
        StoreError::Decode(what) => what,
        StoreError::Server { code, .. } if code == "WRONGTYPE" => "not a hash".to_owned(),
        // A script that could not take the head apart; it had not written anything.
        StoreError::Server { message, .. } if message.starts_with("user_script:") => message,
        other => return other,
    };
    UnreadableRecord { job: &job, detail: &what }.emit();
    StoreError::Unreadable { job, what }
}

/// Length of the head without the worker's name.
const FIXED: usize = 91;
/// Length of a place, and of what stands before the spec of a job that is whole; as in `lua/job/raw.lua`.
const PLACE: usize = 8;
const WHOLE: usize = 8 + 2 + 4 + PLACE + 2;
/// Most bytes of a job that is one field: a longer one would take a hash out of its compact form.
const MOST_WHOLE: usize = 512;
/// Where the lease's end stands in it.
const LEASE: std::ops::Range<usize> = 42..50;

/// Reads a head; what follows it stays in `raw`.
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

/// The head of a job that nothing has happened to yet and that has no moments of its own.
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

/// A job accepted at `at`, whole, as its field `j`, and where it stands; none if it is too large for that, or has
/// moments of its own.
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

/// What a job that was written whole says of itself.
#[derive(Default)]
struct Whole {
    /// Where it stood then.
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

/// Every story begins when its job was created: that line is not stored, the head has it all.
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

/// Reads what HMGET of [`Fields::names`] gave; `None` if there is no such job.
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
    // A job that was written whole, and what was written since, which goes before.
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

/// `<version>`, and a mark where a place of the topic goes with it; as `lua/job/apply.lua` writes it.
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
