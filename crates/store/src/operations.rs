//! Bulk operations: what they do to which jobs or runs, how far they are, and which process carries them out.
//!
//! An operation is one hash. Its carrier claims it for a while and stores its progress under a fence, so that a carrier
//! that was considered dead changes nothing. Before jobs are touched, their ids are stored as the current batch: the
//! carrier that continues after a crash repeats that whole batch. Two more keys only help to find operations: the
//! running ones, and those of a tenant. Both are written first, so that an operation that was answered is always in
//! them.

use std::{collections::HashMap, time::Duration};

use muster_domain::{JobId, OperationId, RunId, Tenant, Time, time::micros};

use crate::{
    Store, StoreError, keys,
    router::Command,
    script::{flat, list, pairs},
    scripts,
};

/// How long an operation is kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// After this long, an entry without an operation belongs to an operation that was never stored.
const ORPHAN: Duration = Duration::from_secs(60);

/// What is done to each job, or to each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a new job from each ended one.
    Retry,
    /// Cancel the job.
    Cancel,
    /// Delete the job.
    Delete,
    /// Cancel the run.
    CancelRuns,
    /// Pause the run.
    PauseRuns,
    /// Create a new run from each ended one.
    RerunRuns,
}

impl Action {
    /// All actions on jobs.
    pub const OF_JOBS: [Action; 3] = [Action::Retry, Action::Cancel, Action::Delete];
    /// All actions on runs.
    pub const OF_RUNS: [Action; 3] = [Action::CancelRuns, Action::PauseRuns, Action::RerunRuns];

    /// The name that people write.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Retry => "retry",
            Action::Cancel | Action::CancelRuns => "cancel",
            Action::Delete => "delete",
            Action::PauseRuns => "pause",
            Action::RerunRuns => "rerun",
        }
    }

    /// Whether it is done to runs, not to jobs.
    pub fn is_of_runs(self) -> bool {
        Action::OF_RUNS.contains(&self)
    }

    /// Reads the name of an action on jobs.
    pub fn parse(text: &str) -> Option<Action> {
        Action::OF_JOBS.into_iter().find(|action| action.as_str() == text)
    }

    /// Reads the name of an action on runs.
    pub fn parse_of_runs(text: &str) -> Option<Action> {
        Action::OF_RUNS.into_iter().find(|action| action.as_str() == text)
    }

    /// The name in the record.
    fn stored(self) -> String {
        if self.is_of_runs() { format!("{}_runs", self.as_str()) } else { self.as_str().to_owned() }
    }

    fn read(stored: &str) -> Option<Action> {
        match stored.strip_suffix("_runs") {
            Some(name) => Action::parse_of_runs(name),
            None => Action::parse(stored),
        }
    }
}

/// The status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    /// The operation is not over.
    Running,
    /// Every match was handled.
    Done,
    /// As many matches were handled as the canary allows.
    Canary,
    /// A caller cancelled the operation.
    Cancelled,
    /// The operation cannot continue.
    Failed,
}

impl OperationStatus {
    /// All statuses.
    pub const ALL: [OperationStatus; 5] = [
        OperationStatus::Running,
        OperationStatus::Done,
        OperationStatus::Canary,
        OperationStatus::Cancelled,
        OperationStatus::Failed,
    ];

    /// The name that people read.
    pub fn as_str(self) -> &'static str {
        match self {
            OperationStatus::Running => "running",
            OperationStatus::Done => "done",
            OperationStatus::Canary => "canary",
            OperationStatus::Cancelled => "cancelled",
            OperationStatus::Failed => "failed",
        }
    }

    fn parse(text: &str) -> Option<OperationStatus> {
        OperationStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// The number of jobs by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Jobs that have matched the filter so far.
    pub matched: u64,
    /// Jobs that were handled.
    pub done: u64,
    /// Jobs that needed or allowed nothing any more.
    pub skipped: u64,
    /// Jobs that could not be handled.
    pub failed: u64,
}

/// The position of an operation's walk over the jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Walk {
    /// At this cursor of the list; none is its beginning.
    At(Option<String>),
    /// No further match is left.
    Over,
}

/// An operation to be stored.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// The id, minted or derived from the client's idempotency key.
    pub id: OperationId,
    /// The tenant that owns the jobs.
    pub tenant: Tenant,
    /// What is done to the jobs.
    pub action: Action,
    /// The filter for the jobs: JSON, as the client wrote it.
    pub filter: String,
    /// The topic patterns of the API key that requested the operation; empty means every topic.
    pub topics: Vec<String>,
    /// The API key that requested the operation.
    pub principal: String,
    /// The most jobs per second.
    pub rate: u32,
    /// The most jobs in all; 0 = no limit.
    pub canary: u64,
    /// The hash of the request.
    pub hash: [u8; 16],
}

/// An operation as stored.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The request.
    pub asked: NewOperation,
    /// The status of the operation.
    pub status: OperationStatus,
    /// The number of jobs by result.
    pub tally: Tally,
    /// The position of the walk.
    pub walk: Walk,
    /// The current batch of jobs, or of runs ([`Operation::runs`]).
    pub batch: Vec<JobId>,
    /// Changes with the carrier.
    pub fence: u64,
    /// The process that carries out the operation, or did last.
    pub owner: Option<String>,
    /// When the operation was stored.
    pub created_at: Time,
    /// When the operation ended.
    pub finished_at: Option<Time>,
    /// The last error.
    pub detail: String,
}

impl Operation {
    /// The current batch, of an operation on runs.
    pub fn runs(&self) -> Vec<RunId> {
        self.batch.iter().filter_map(|id| RunId::from_slice(id.as_bytes())).collect()
    }

    /// Sets the current batch of an operation on runs.
    pub fn set_runs(&mut self, runs: &[RunId]) {
        self.batch = runs.iter().filter_map(|id| JobId::from_slice(id.as_bytes())).collect();
    }
}

/// The result of a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The caller holds the operation for a while.
    Ours(Box<Operation>),
    /// Another replica carries out the operation.
    Theirs,
    /// The operation is over.
    Over,
}

fn wrong(what: &str) -> StoreError {
    StoreError::Decode(format!("operation: {what}"))
}

fn read(id: OperationId, raw: &[Vec<u8>]) -> Result<Operation, StoreError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields: HashMap<String, &[u8]> = raw.chunks_exact(2).map(|pair| (text(&pair[0]), pair[1].as_slice())).collect();
    let word = |name: &str| fields.get(name).map(|bytes| text(bytes)).unwrap_or_default();
    let number = |name: &str| word(name).parse::<u64>().unwrap_or_default();
    let asked = NewOperation {
        id,
        tenant: Tenant::parse(&word("tenant")).map_err(|_| wrong("tenant"))?,
        action: Action::read(&word("action")).ok_or_else(|| wrong("action"))?,
        filter: word("filter"),
        topics: word("topics").split_whitespace().map(str::to_owned).collect(),
        principal: word("principal"),
        rate: word("rate").parse().map_err(|_| wrong("rate"))?,
        canary: number("canary"),
        hash: fields.get("hash").and_then(|hash| (*hash).try_into().ok()).unwrap_or_default(),
    };
    let ids = fields.get("batch").copied().unwrap_or_default();
    let walk = match word("walk") {
        over if over == "over" => Walk::Over,
        start if start.is_empty() => Walk::At(None),
        cursor => Walk::At(Some(cursor)),
    };
    Ok(Operation {
        asked,
        status: OperationStatus::parse(&word("status")).ok_or_else(|| wrong("status"))?,
        tally: Tally {
            matched: number("matched"),
            done: number("done"),
            skipped: number("skipped"),
            failed: number("failed"),
        },
        walk,
        batch: ids.chunks_exact(16).filter_map(JobId::from_slice).collect(),
        fence: number("fence"),
        owner: Some(word("owner")).filter(|owner| !owner.is_empty()),
        created_at: Time(number("created_at")),
        finished_at: Time(number("finished_at")).some(),
        detail: word("detail"),
    })
}

fn digits(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

impl Store {
    /// Stores an operation, so that every carrier finds it. Returns whether it is new, and the stored operation: a
    /// derived id may exist already. Repeating is harmless.
    pub async fn create_operation(&self, new: &NewOperation) -> Result<(bool, Operation), StoreError> {
        let now = self.now();
        let (open, tenants) = (keys::open_operations(), keys::operations(&new.tenant));
        let add = |key: &keys::Key| {
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(key.as_bytes()).arg("NX").arg(now.0).arg(new.id.to_string());
            Command::plain(cmd)
        };
        let mut trim = redis::cmd("ZREMRANGEBYSCORE");
        trim.arg(tenants.as_bytes()).arg("-inf").arg(now.before(KEPT).0);
        for reply in self.router().many(vec![add(&open), add(&tenants), Command::plain(trim)]).await {
            reply?;
        }
        let fields = pairs([
            ("tenant", new.tenant.as_str().into()),
            ("action", new.action.stored().into_bytes()),
            ("filter", new.filter.clone().into_bytes()),
            ("topics", new.topics.join(" ").into_bytes()),
            ("principal", new.principal.clone().into_bytes()),
            ("rate", digits(new.rate.into())),
            ("canary", digits(new.canary)),
            ("hash", new.hash.to_vec()),
        ]);
        let ttl_ms = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        let reply = self.run(scripts::operation::Create { key: keys::operation(new.id), ttl_ms, fields }).await?;
        Ok((reply.created == 1, read(new.id, &reply.fields)?))
    }

    /// Reads one operation.
    pub async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        Ok(self.operations(&[id]).await?.pop())
    }

    async fn operations(&self, ids: &[OperationId]) -> Result<Vec<Operation>, StoreError> {
        let command = |id: &OperationId| {
            let mut cmd = redis::cmd("HGETALL");
            cmd.arg(keys::operation(*id).as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(command).collect()).await;
        let mut found = Vec::with_capacity(ids.len());
        for (id, reply) in ids.iter().zip(replies) {
            let raw = flat(reply?)?;
            if !raw.is_empty() {
                found.push(read(*id, &raw)?);
            }
        }
        Ok(found)
    }

    /// A tenant's operations, newest first, below the cursor; and the next cursor.
    pub async fn list_operations(
        &self,
        tenant: &Tenant,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Operation>, Option<String>), crate::ListError> {
        let key = keys::operations(tenant);
        let (names, next) = self.newest_below(&key, "o", cursor, limit).await?;
        let ids: Vec<OperationId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        Ok((self.operations(&ids).await?, next))
    }

    /// The operations that may need a carrier, oldest first.
    pub async fn open_operations(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        let key = keys::open_operations();
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(key.as_bytes()).arg(0).arg(limit.saturating_sub(1));
        let names = list(self.router().call(Command::plain(cmd)).await?)?;
        Ok(names.iter().filter_map(|name| std::str::from_utf8(name).ok()?.parse().ok()).collect())
    }

    /// Claims an operation for this carrier in one step. The holder may repeat it, which prolongs the claim. An
    /// operation that is over is removed from the open ones.
    pub async fn claim_operation(&self, id: OperationId, owner: &str, hold: Duration) -> Result<Claimed, StoreError> {
        let call = scripts::operation::Claim {
            key: keys::operation(id),
            owner: owner.as_bytes().to_vec(),
            hold: micros(hold),
        };
        let reply = self.run(call).await?;
        match reply.outcome {
            1 => return Ok(Claimed::Ours(Box::new(read(id, &reply.fields)?))),
            2 => return Ok(Claimed::Theirs),
            3 => self.close_operation(id, None).await?,
            // The operation may be about to be stored: its entry is written first.
            _ => self.close_operation(id, Some(self.now().before(ORPHAN))).await?,
        }
        Ok(Claimed::Over)
    }

    /// Removes an operation from the open ones, if it was added before `before`.
    async fn close_operation(&self, id: OperationId, before: Option<Time>) -> Result<(), StoreError> {
        let key = keys::open_operations();
        if let Some(before) = before {
            let mut cmd = redis::cmd("ZSCORE");
            cmd.arg(key.as_bytes()).arg(id.to_string());
            let score = self.router().call(Command::plain(cmd)).await?;
            let entered =
                crate::script::bytes(score).ok().and_then(|raw| String::from_utf8(raw).ok()?.parse::<f64>().ok());
            if entered.is_none_or(|at| at as u64 >= before.0) {
                return Ok(());
            }
        }
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(key.as_bytes()).arg(id.to_string());
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }

    /// Stores an operation's tally, walk, batch and detail, and its status if it is to end, provided that the caller
    /// still holds it. Returns the stored status; none if another replica holds the operation. Repeating is harmless.
    pub async fn note_operation(
        &self,
        operation: &Operation,
        status: OperationStatus,
        hold: Duration,
    ) -> Result<Option<OperationStatus>, StoreError> {
        let tally = operation.tally;
        let walk = match &operation.walk {
            Walk::At(cursor) => cursor.clone().unwrap_or_default(),
            Walk::Over => "over".to_owned(),
        };
        let fields = pairs([
            ("matched", digits(tally.matched)),
            ("done", digits(tally.done)),
            ("skipped", digits(tally.skipped)),
            ("failed", digits(tally.failed)),
            ("walk", walk.into_bytes()),
            ("batch", operation.batch.iter().flat_map(|id| *id.as_bytes()).collect()),
            ("detail", operation.detail.clone().into_bytes()),
        ]);
        let call = scripts::operation::Note {
            key: keys::operation(operation.asked.id),
            fence: operation.fence,
            hold: micros(hold),
            status: status.as_str().into(),
            fields,
        };
        let reply = self.run(call).await?;
        Ok(std::str::from_utf8(&reply.status).ok().and_then(OperationStatus::parse))
    }

    /// Cancels a running operation; none if there is no such operation. Repeating is harmless, and an operation that
    /// ended before stays unchanged.
    pub async fn cancel_operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        let reply = self.run(scripts::operation::Cancel { key: keys::operation(id) }).await?;
        if reply.outcome == 0 { Ok(None) } else { read(id, &reply.fields).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_survives_its_name() {
        for action in Action::OF_JOBS.into_iter().chain(Action::OF_RUNS) {
            assert_eq!(Action::read(&action.stored()), Some(action));
            let (of_jobs, of_runs) = (Action::parse(action.as_str()), Action::parse_of_runs(action.as_str()));
            assert_eq!(if action.is_of_runs() { of_runs } else { of_jobs }, Some(action));
        }
        // Records of earlier versions have the names of actions on jobs.
        assert_eq!(["retry", "cancel", "delete"].map(Action::read), Action::OF_JOBS.map(Some));
        assert_eq!((Action::read("delete_runs"), Action::read("pause")), (None, None));
    }
}
