//! Carries bulk operations out: retry, cancel or delete every job that passes a filter.
//!
//! Knows: how an operation walks the list, in batches at its rate. Promises: an operation that was
//! answered ends, whoever dies: its carrier claims it for [`HOLD`], and any other gateway goes on
//! where it stopped. The ids of a batch are noted before they are touched, and what is done to a
//! job may be done twice without harm, so a batch that was cut off is done again, whole, and
//! counted once. Only jobs that were there when the operation was asked for are touched, so a
//! retry is never retried by its own operation. Leaves to others: reading the request
//! (`routes/bulk`), what is done to one job (`act`).

mod act;
mod filter;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::{Act, JobId, Time};
use muster_flow::failpoint;
use muster_store::{
    Action, Claimed, Fields, ListError, ListFilter, Operation, OperationStatus, PAGE_WORK, StoreError, Walk,
};

use crate::{
    Gateway,
    access::Scopes,
    auth::{Caller, Key},
};

pub(crate) use act::skips;
pub(crate) use filter::read_filter;

/// How long a claim holds without progress: so long it takes until another gateway goes on.
const HOLD: Duration = Duration::from_secs(10);
/// Operations that are looked at in one pass.
const MOST_OPEN: usize = 100;
/// Jobs that are dealt with between two notes of progress.
const LARGEST_BATCH: u32 = 250;
/// When a store is away, or a limit is reached.
const AGAIN: Duration = Duration::from_secs(1);

/// The loop.
pub(crate) struct Bulk {
    gateway: Gateway,
    /// This process, as others see it in a claim.
    owner: String,
    /// When an operation may go on, by its rate.
    next: HashMap<JobId, Instant>,
}

impl Bulk {
    pub(crate) fn new(gateway: Gateway) -> Bulk {
        // A successor with the same name is somebody else.
        let owner = format!("{}/{}", gateway.instance, JobId::mint(0));
        Bulk { gateway, owner, next: HashMap::new() }
    }

    /// One batch. Says when the operation may go on; none if there is nothing to do here.
    async fn carry(&self, id: JobId, counts: &mut Counts) -> Result<Option<Duration>, StoreError> {
        let store = &self.gateway.flow.store;
        let Claimed::Ours(mut operation) = store.claim_operation(id, &self.owner, HOLD).await? else {
            return Ok(None);
        };
        let began = Instant::now();
        if operation.batch.is_empty() {
            match self.plan(&mut operation).await? {
                Planned::Batch => {}
                Planned::NothingYet => return Ok(Some(Duration::ZERO)),
                Planned::Over => return Ok(None),
            }
        }
        failpoint!("bulk.before_act");
        let batch = std::mem::take(&mut operation.batch);
        let size = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let who = carrier(&operation);
        store.audit(&batch.iter().map(|job| act_on(&operation, *job, store.now())).collect::<Vec<_>>()).await?;
        failpoint!("bulk.after_audit");
        let deeds = act::all(&self.gateway, &who, operation.asked.action, batch).await;
        for (job, deed) in deeds {
            match deed {
                act::Deed::Done => operation.tally.done += 1,
                act::Deed::Skipped => operation.tally.skipped += 1,
                act::Deed::Failed(why) => {
                    operation.tally.failed += 1;
                    operation.detail = format!("job {job}: {why}");
                }
                act::Deed::Later => operation.batch.push(job),
            }
        }
        failpoint!("bulk.after_act");
        let put_off = !operation.batch.is_empty();
        counts.add("jobs", u64::from(size) - operation.batch.len() as u64);
        let status = ended(&operation);
        let stands = store.note_operation(&operation, status, HOLD).await?;
        if stands != Some(OperationStatus::Running) {
            return Ok(None);
        }
        let paced = Duration::from_secs(1) * size / operation.asked.rate.max(1);
        Ok(Some(if put_off { AGAIN } else { paced.saturating_sub(began.elapsed()) }))
    }

    /// Looks at one page for the next jobs and notes them: a filter that matches little must not hold up
    /// other operations.
    async fn plan(&self, operation: &mut Operation) -> Result<Planned, StoreError> {
        let store = &self.gateway.flow.store;
        let Walk::At(cursor) = &operation.walk else { return self.note(operation, ended(operation)).await };
        let filter = match filter_of(operation) {
            Ok(filter) => filter,
            Err(why) => return self.give_up(operation, why).await,
        };
        let (tenant, size) = (&operation.asked.tenant, batch_size(operation));
        let page = match store.list(tenant, cursor.as_deref(), size, &filter, Fields::NONE).await {
            Ok(page) => page,
            Err(ListError::Store(away @ StoreError::Unavailable { .. })) => return Err(away),
            Err(fault) => return self.give_up(operation, fault.to_string()).await,
        };
        let who = carrier(operation);
        for record in page.items.iter().filter(|record| who.may_touch(&record.spec.topic).is_ok()) {
            operation.tally.matched += 1;
            if skips(operation.asked.action, record) {
                operation.tally.skipped += 1;
            } else {
                operation.batch.push(record.id);
            }
        }
        operation.walk = page.next_cursor.map_or(Walk::Over, |cursor| Walk::At(Some(cursor)));
        self.note(operation, ended(operation)).await
    }

    /// Notes where the operation stands, and whether there is something to do.
    async fn note(&self, operation: &Operation, status: OperationStatus) -> Result<Planned, StoreError> {
        let stands = self.gateway.flow.store.note_operation(operation, status, HOLD).await?;
        Ok(match (stands, operation.batch.is_empty()) {
            (Some(OperationStatus::Running), false) => Planned::Batch,
            (Some(OperationStatus::Running), true) => Planned::NothingYet,
            _ => Planned::Over,
        })
    }

    async fn give_up(&self, operation: &mut Operation, why: String) -> Result<Planned, StoreError> {
        operation.detail = why;
        self.note(operation, OperationStatus::Failed).await
    }
}

/// What a page of the list brought.
enum Planned {
    /// Jobs to deal with.
    Batch,
    /// No match so far.
    NothingYet,
    /// The operation has ended, or another gateway carries it.
    Over,
}

impl Loop for Bulk {
    const NAME: &'static str = "bulk";
    const SAFE: Safety = Safety::Claim {
        why: "an operation is claimed by a script and its progress noted under a fence",
        duplicate_costs: "a batch done twice: what is done to a job may be repeated, and is counted once",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        let open = self.gateway.flow.store.open_operations(MOST_OPEN).await?;
        self.next.retain(|id, _| open.contains(id));
        counts.add("open", open.len() as u64);
        counts.add("jobs", 0);
        for id in open {
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                break;
            }
            let wait = self.next.get(&id).map(|at| at.saturating_duration_since(Instant::now()));
            if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
                counts.due_in(wait);
                continue;
            }
            let next = match self.carry(id, &mut counts).await {
                Ok(next) => next,
                Err(fault) => {
                    tracing::warn!(event = "bulk_waits", operation = %id, detail = %fault, "a bulk operation waits");
                    Some(AGAIN)
                }
            };
            match next {
                Some(wait) => {
                    self.next.insert(id, Instant::now() + wait);
                    counts.due_in(wait);
                }
                None => {
                    self.next.remove(&id);
                }
            }
        }
        Ok(counts)
    }
}

/// How many jobs at once: a quarter of a second's worth, and no more than the canary allows.
fn batch_size(operation: &Operation) -> usize {
    let usual = (operation.asked.rate / 4).clamp(1, LARGEST_BATCH) as usize;
    match operation.asked.canary {
        0 => usual,
        canary => usual.min(usize::try_from(canary.saturating_sub(touched(operation))).unwrap_or(usize::MAX)).max(1),
    }
}

fn touched(operation: &Operation) -> u64 {
    operation.tally.done + operation.tally.failed
}

/// Where an operation stands by what it has done.
fn ended(operation: &Operation) -> OperationStatus {
    let canary = operation.asked.canary;
    match operation.batch.is_empty() {
        false => OperationStatus::Running,
        true if canary > 0 && touched(operation) >= canary => OperationStatus::Canary,
        true if operation.walk == Walk::Over => OperationStatus::Done,
        true => OperationStatus::Running,
    }
}

/// Who acts: the key that asked, with its topics.
fn carrier(operation: &Operation) -> Caller {
    let asked = &operation.asked;
    let key = Key {
        id: asked.principal.clone(),
        name: String::new(),
        tenant: Some(asked.tenant.clone()),
        scopes: Scopes::default(),
        topics: asked.topics.clone(),
        expires_at: None,
    };
    Caller { tenant: asked.tenant.clone(), named: true, key: Arc::new(key) }
}

/// What the audit log says of one job of an operation; the same if its batch is done again.
fn act_on(operation: &Operation, job: JobId, now: Time) -> Act {
    let asked = &operation.asked;
    let action = match asked.action {
        Action::Retry => "job_retry_by_hand",
        Action::Cancel => "job_cancel",
        Action::Delete => "job_delete",
    };
    let id = format!("operation:{}:{job}", asked.id);
    let act = Act::by_key(id, now, &asked.principal, asked.tenant.as_str(), action);
    act.job(job).with("operation", asked.id.to_string())
}

/// Which jobs: those that pass, and were there when it was asked for.
fn filter_of(operation: &Operation) -> Result<ListFilter, String> {
    let filter = filter::parse(&operation.asked.filter, operation.asked.action).map_err(|p| p.detail.into_owned())?;
    let created = operation.created_at;
    let before = filter.created_before.map_or(created, |before| before.min(created));
    Ok(ListFilter { created_before: Some(before), ..filter })
}

/// Jobs that an operation would match, as far as a few pages of the list tell.
pub(crate) struct Outlook {
    pub(crate) matched: u64,
    pub(crate) skipped: u64,
    /// There was more to look at.
    pub(crate) more: bool,
}

/// Pages of [`PAGE_WORK`] records that a dry run reads at most.
const DRY_PAGES: usize = 5;

/// Counts without touching.
pub(crate) async fn dry_run(
    gateway: &Gateway,
    caller: &Caller,
    action: Action,
    filter: &ListFilter,
) -> Result<Outlook, ListError> {
    let mut outlook = Outlook { matched: 0, skipped: 0, more: false };
    let mut cursor: Option<String> = None;
    for _ in 0..DRY_PAGES {
        let store = &gateway.flow.store;
        let page = store.list(&caller.tenant, cursor.as_deref(), PAGE_WORK, filter, Fields::NONE).await?;
        for record in page.items.iter().filter(|record| caller.may_touch(&record.spec.topic).is_ok()) {
            outlook.matched += 1;
            outlook.skipped += u64::from(skips(action, record));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(outlook);
        }
    }
    outlook.more = true;
    Ok(outlook)
}
