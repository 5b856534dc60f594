//! Carries out bulk operations: retry, cancel or delete every job that matches a filter; cancel, pause or rerun every run.
//!
//! Knows: how an operation walks the list of jobs, in batches and at its rate. Promises: an accepted operation ends
//! even if the gateway that carries it out dies. That gateway claims the operation for [`HOLD`], and any other
//! gateway continues where it stopped. The ids of a batch are stored before the jobs are touched, and repeating an
//! action on a job is harmless. So an interrupted batch is repeated as a whole and counted once. Only jobs that
//! existed when the operation was requested are touched, so an operation never retries its own retries. Leaves to
//! others: reading the request (`routes/bulk`), and the action on one job (`act`).

mod act;
mod filter;
pub(crate) mod runs;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::{Act, JobId, OperationId, Time};
use muster_flow::failpoint;
use muster_replica::{LoopOf, Member};
use muster_runs::{ListRefused, RunsError};
use muster_store::{
    Action, Claimed, Fields, ListError, ListFilter, Operation, OperationStatus, PAGE_WORK, Record, StoreError, Walk,
};

use crate::{
    access::Scopes,
    auth::{Caller, Key},
    state::Gateway,
};

pub(crate) use filter::read_filter;

/// How long a claim holds without progress. After this time another gateway continues the operation.
const HOLD: Duration = Duration::from_secs(10);
/// The most operations that one pass looks at.
const MOST_OPEN: usize = 100;
/// The most jobs that are handled between two updates of the stored progress.
const LARGEST_BATCH: u32 = 250;
/// The pause after a store did not answer or a limit was reached.
const AGAIN: Duration = Duration::from_secs(1);

/// The loop that carries out bulk operations.
pub(crate) struct Bulk {
    gateway: Gateway,
    /// Names this process in a claim.
    owner: String,
    /// When each operation may continue, by its rate.
    next: HashMap<OperationId, Instant>,
}

impl LoopOf<Gateway> for Bulk {
    fn make(_: &Member, gateway: &Gateway) -> Option<Bulk> {
        // A later process with the same instance name must not share its claims.
        let owner = format!("{}/{}", gateway.instance, OperationId::mint(0));
        Some(Bulk { gateway: gateway.clone(), owner, next: HashMap::new() })
    }
}

impl Bulk {
    /// Handles one batch. Returns how long to wait before the next batch, or `None` if this gateway has nothing to do
    /// for the operation.
    async fn carry(&self, id: OperationId, counts: &mut Counts) -> Result<Option<Duration>, StoreError> {
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
        let size = u32::try_from(operation.batch.len()).unwrap_or(u32::MAX);
        let who = carrier(&operation);
        if operation.asked.action.is_of_runs() {
            self.act_on_runs(&mut operation, &who).await?;
        } else {
            self.act_on_jobs(&mut operation, &who).await?;
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

    /// Acts on the jobs of the current batch, and leaves in it those that must wait.
    async fn act_on_jobs(&self, operation: &mut Operation, who: &Caller) -> Result<(), StoreError> {
        let (store, batch) = (&self.gateway.flow.store, std::mem::take(&mut operation.batch));
        store.audit(&batch.iter().map(|job| act_on(operation, *job, store.now())).collect::<Vec<_>>()).await?;
        failpoint!("bulk.after_audit");
        let deeds = act::all(&self.gateway, who, operation.asked.action, batch).await;
        for (job, deed) in deeds {
            if !tally(operation, deed, || format!("job {job}")) {
                operation.batch.push(job);
            }
        }
        Ok(())
    }

    /// The same for runs.
    async fn act_on_runs(&self, operation: &mut Operation, who: &Caller) -> Result<(), StoreError> {
        let store = &self.gateway.flow.store;
        let acts: Vec<Act> =
            operation.runs().into_iter().map(|run| runs::act_on(operation, run, store.now())).collect();
        store.audit(&acts).await?;
        failpoint!("bulk.after_audit");
        let mut later = Vec::new();
        for (run, deed) in runs::all(&self.gateway, who, operation).await {
            if !tally(operation, deed, || format!("run {run}")) {
                later.push(run);
            }
        }
        operation.set_runs(&later);
        Ok(())
    }

    /// Searches one page of the list for the next jobs and stores their ids. It reads only one page, so that a filter
    /// with few matches does not hold up other operations.
    async fn plan(&self, operation: &mut Operation) -> Result<Planned, StoreError> {
        let store = &self.gateway.flow.store;
        let Walk::At(cursor) = &operation.walk else { return self.note(operation, ended(operation)).await };
        if operation.asked.action.is_of_runs() {
            let cursor = cursor.clone();
            return self.plan_runs(operation, cursor).await;
        }
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
        let matched: Vec<&Record> =
            page.items.iter().filter(|record| who.may_touch(&record.spec.topic).is_ok()).collect();
        let skipped = act::skipped(store, operation.asked.action, &matched).await?;
        operation.tally.matched += matched.len() as u64;
        operation.tally.skipped += skipped.len() as u64;
        operation.batch.extend(matched.iter().map(|record| record.id).filter(|id| !skipped.contains(id)));
        operation.walk = page.next_cursor.map_or(Walk::Over, |cursor| Walk::At(Some(cursor)));
        self.note(operation, ended(operation)).await
    }

    /// The same for runs.
    async fn plan_runs(&self, operation: &mut Operation, cursor: Option<String>) -> Result<Planned, StoreError> {
        let (who, size) = (carrier(operation), batch_size(operation));
        let (found, next) = match runs::page(self, operation, &who, cursor.as_deref(), size).await {
            Ok(page) => page,
            Err(ListRefused::Fault(RunsError::Store(away @ StoreError::Unavailable { .. }))) => return Err(away),
            Err(fault) => return self.give_up(operation, fault.to_string()).await,
        };
        operation.tally.matched += found.len() as u64;
        operation.set_runs(&found);
        operation.walk = next.map_or(Walk::Over, |cursor| Walk::At(Some(cursor)));
        self.note(operation, ended(operation)).await
    }

    /// Stores the progress of the operation, and returns whether there are jobs to handle.
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

/// The result of reading one page of the list.
enum Planned {
    /// The page has jobs to handle.
    Batch,
    /// No job on the page matches.
    NothingYet,
    /// The operation has ended, or another gateway carries it out.
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

/// Counts the result of an action. False: it is to be tried again.
fn tally(operation: &mut Operation, deed: act::Deed, name: impl Fn() -> String) -> bool {
    match deed {
        act::Deed::Done => operation.tally.done += 1,
        act::Deed::Skipped => operation.tally.skipped += 1,
        act::Deed::Failed(why) => {
            operation.tally.failed += 1;
            operation.detail = format!("{}: {why}", name());
        }
        act::Deed::Later => return false,
    }
    true
}

/// The number of jobs in a batch: as many as the rate allows in a quarter of a second, and no more than the canary
/// allows.
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

/// The status of an operation, derived from its progress.
fn ended(operation: &Operation) -> OperationStatus {
    let canary = operation.asked.canary;
    match operation.batch.is_empty() {
        false => OperationStatus::Running,
        true if canary > 0 && touched(operation) >= canary => OperationStatus::Canary,
        true if operation.walk == Walk::Over => OperationStatus::Done,
        true => OperationStatus::Running,
    }
}

/// The caller on whose behalf the operation acts: the key that requested it, with its topics.
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

/// The audit entry for one job of an operation. A repeated batch writes the same entry.
fn act_on(operation: &Operation, job: JobId, now: Time) -> Act {
    let asked = &operation.asked;
    let action = match asked.action {
        Action::Retry => "job_retry_by_hand",
        Action::Delete => "job_delete",
        // Runs have entries of their own (`runs`).
        Action::Cancel | Action::CancelRuns | Action::PauseRuns | Action::RerunRuns => "job_cancel",
    };
    let id = format!("operation:{}:{job}", asked.id);
    let act = Act::by_key(id, now, &asked.principal, asked.tenant.as_str(), action);
    act.job(job).with("operation", asked.id.to_string())
}

/// The operation's filter, restricted to jobs that existed when the operation was requested.
fn filter_of(operation: &Operation) -> Result<ListFilter, String> {
    let filter = filter::parse(&operation.asked.filter, operation.asked.action).map_err(|p| p.detail.into_owned())?;
    let created = operation.created_at;
    let before = filter.created_before.map_or(created, |before| before.min(created));
    Ok(ListFilter { created_before: Some(before), ..filter })
}

/// The number of jobs that an operation would match, counted on a few pages of the list.
pub(crate) struct Outlook {
    pub(crate) matched: u64,
    pub(crate) skipped: u64,
    /// Whether the list goes on after the counted pages.
    pub(crate) more: bool,
}

/// The most pages, of [`PAGE_WORK`] records each, that a dry run reads.
const DRY_PAGES: usize = 5;

/// Counts the matching jobs without touching them.
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
        let matched: Vec<&Record> =
            page.items.iter().filter(|record| caller.may_touch(&record.spec.topic).is_ok()).collect();
        outlook.matched += matched.len() as u64;
        outlook.skipped += act::skipped(store, action, &matched).await?.len() as u64;
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(outlook);
        }
    }
    outlook.more = true;
    Ok(outlook)
}
