//! Reads messages of the bus again when Redis may have lost their effects.
//!
//! A primary that has failed over or restarted may have lost its last writes. Then this loop reads again all submits,
//! cancels and results since one minute before the nodes were last seen without loss. It creates a job again that has
//! neither record nor stub, applies a lost cancel, and applies a result whose attempt still runs by its record.
//! Anything that was not lost is skipped after one read. Cancels come before results, because an answered cancel was
//! stored before any later message of its worker.
//!
//! Promises: a deleted job does not come back. A pass may be repeated at any time; if a leader dies during one, the
//! next leader begins it again, because the mark moves only after a complete pass. The loop works only half of the
//! time. Leaves to others: indexes (`scrub`), what a job needs afterwards (`dispatch`, `settle`, `reconciler`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_bus::{RereadFrom, Subject, subjects};
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::{JobId, JobSpec, Phase, Tenant, Time};
use muster_replica::{LoopOf, Member};
use muster_store::{Fields, KnownMark, LeaderLock, Lease, NewJob, Record, RereadMark};
use muster_telemetry::{Counter, count};
use muster_wire::{
    Body, job_id,
    v1::{Cancel, Result as Report, Submit},
};

use crate::{context::Context, intake::Work, settle::Settle};

/// How long before the last mark writes may have been lost.
const BEFORE: Duration = Duration::from_secs(60);
/// Messages read at once; each may have hundreds of jobs.
const MESSAGES: usize = 16;
/// Jobs read in one pipeline.
const BATCH: usize = 500;
/// Pause before a pass is repeated in which something could not be reached.
const AFTER_A_FAULT: Duration = Duration::from_secs(2);

/// The subjects that are read, in this order.
const STAGES: [fn() -> Subject; 3] = [subjects::submit, subjects::cancel, subjects::result];

pub(super) struct Reread {
    context: Arc<Context>,
    pass: Option<Pass>,
}

/// An unfinished pass.
struct Pass {
    /// The mark when the pass began, and the mark to set when it is complete.
    known: KnownMark,
    mark: RereadMark,
    /// Where each stage begins, and the sequence at which it ends.
    from: RereadFrom,
    until: u64,
    stage: usize,
    /// Where this stage continues.
    next: RereadFrom,
    reader: Option<muster_bus::Reread>,
    /// Something could not be read or applied.
    faulty: bool,
}

impl Pass {
    fn new(known: KnownMark, mark: RereadMark, until: u64) -> Pass {
        let from = beginning(&known.mark);
        Pass { known, mark, from, until, stage: 0, next: from, reader: None, faulty: false }
    }
}

/// One minute before the mark, by the stream's own clock; the start of the stream if there is no mark.
fn beginning(known: &RereadMark) -> RereadFrom {
    known.whole_at().map_or(RereadFrom::Start, |at| RereadFrom::Time(at.before(BEFORE)))
}

impl LoopOf<Arc<Context>> for Reread {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Reread> {
        Some(Reread { context: context.clone(), pass: None })
    }
}

impl Reread {
    /// Begins a pass if a primary may have lost writes since the last mark. Otherwise moves the mark to now.
    async fn look(&self, lease: &Lease) -> anyhow::Result<Option<Pass>> {
        let store = self.context.store();
        let known = store.reread_mark().await?;
        let met = store.lives().await?;
        // Asked after the nodes, so that the pass includes every message from before a node's restart.
        let end = self.context.bus().sys_end().await?;
        let mark = known.mark.after(&met, end.at);
        if met.may_have_forgotten(&known.mark) {
            self.tell_emptied().await?;
            let pass = Pass::new(known, mark, end.sequence);
            tracing::info!(
                event = "reread",
                from = ?pass.from,
                until = end.sequence,
                "a Redis primary may have lost writes; reading the bus again"
            );
            return Ok(Some(pass));
        }
        if mark != known.mark {
            store.move_reread_mark(lease, &known, &mark).await?;
        }
        Ok(None)
    }

    /// Logs, and notes for the doctor, that Redis has none of the jobs that the bus remembers. The pass creates these
    /// again; jobs older than the stream are gone.
    async fn tell_emptied(&self) -> anyhow::Result<()> {
        if let Some(emptied) = self.context.flow.emptied().await? {
            tracing::error!(event = "redis_emptied", detail = %emptied, "Redis lacks jobs that the streams still have");
            self.context.store().note_emptied(&emptied.to_string()).await?;
        }
        Ok(())
    }

    /// Handles the next messages of the pass. False if there are no more.
    async fn step(&mut self, counts: &mut Counts) -> anyhow::Result<bool> {
        let Some(pass) = &mut self.pass else { return Ok(false) };
        let Some(subject) = STAGES.get(pass.stage) else { return Ok(false) };
        let mut reader = match pass.reader.take() {
            Some(reader) => reader,
            None => self.context.bus().reread(&subject(), pass.next, pass.until).await?,
        };
        let messages = reader.next(MESSAGES).await?;
        let Some((last, _)) = messages.last() else {
            reader.close().await;
            (pass.stage, pass.next) = (pass.stage + 1, pass.from);
            return Ok(true);
        };
        let next = RereadFrom::Sequence(last + 1);
        let mut items = Items::default();
        messages.into_iter().for_each(|(_, body)| items.add(body));
        pass.faulty |= !items.handle(&self.context, counts).await;
        (pass.next, pass.reader) = (next, Some(reader));
        Ok(true)
    }

    /// Ends the pass: moves the mark, or repeats a faulty pass soon.
    async fn end(&mut self, lease: &Lease, counts: &mut Counts) -> anyhow::Result<()> {
        let Some(pass) = self.pass.take() else { return Ok(()) };
        if pass.faulty {
            counts.add("faults", 1);
            counts.due_in(AFTER_A_FAULT);
            return Ok(());
        }
        counts.add("passes", 1);
        if !self.context.store().move_reread_mark(lease, &pass.known, &pass.mark).await? {
            // Another process has changed the mark meanwhile: look again at once.
            counts.due_in(Duration::ZERO);
        }
        Ok(())
    }
}

impl Loop for Reread {
    const NAME: &'static str = "reread";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Reread.as_str(),
        why: "the script that creates a job refuses one that exists; cancels and results are applied like duplicates",
        duplicate_costs: "the last minutes of the bus are read twice",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        if self.pass.is_none() {
            self.pass = self.look(lease).await?;
        }
        while self.pass.is_some() {
            lease.leads(LeaderLock::Reread)?;
            let began = Instant::now();
            if !self.step(&mut counts).await? {
                self.end(lease, &mut counts).await?;
                return Ok(counts);
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(counts);
            }
            tokio::time::sleep(began.elapsed()).await;
        }
        Ok(counts)
    }
}

/// The contents of a batch of messages.
#[derive(Default)]
struct Items {
    submits: Vec<Submit>,
    cancels: Vec<Cancel>,
    results: Vec<Report>,
}

impl Items {
    fn add(&mut self, body: Body) {
        match body {
            Body::Submit(group) => self.submits.extend(group.items),
            Body::Cancel(group) => self.cancels.extend(group.items),
            Body::Result(group) => self.results.extend(group.items),
            _ => {}
        }
    }

    /// Returns false if something could not be reached.
    async fn handle(self, context: &Context, counts: &mut Counts) -> bool {
        let read = self.submits.len() + self.cancels.len() + self.results.len();
        counts.add("read", read as u64);
        let mut whole = true;
        for chunk in self.submits.chunks(BATCH) {
            let done = context.flow.recreate(chunk).await;
            tell("reread_submit", done.made, counts);
            whole &= done.fault.is_none();
        }
        for chunk in self.cancels.chunks(BATCH) {
            whole &= cancel_again(context, chunk, counts).await;
        }
        for chunk in self.results.chunks(BATCH) {
            whole &= settle_again(context, chunk, counts).await;
        }
        whole
    }
}

fn tell(action: &'static str, n: u64, counts: &mut Counts) {
    counts.add(action, n);
    if n > 0 {
        count(Counter::Reconciled, &[("action", action)], n);
        tracing::warn!(event = "reread", action, n, "restored from the bus what Redis had lost");
    }
}

/// The records of these items that exist, and whether all nodes answered.
async fn records<'a, T>(context: &Context, items: &'a [T], id: impl Fn(&T) -> &[u8]) -> (Vec<(&'a T, Record)>, bool) {
    let read = items.iter().filter_map(|item| Some((item, job_id(id(item)).ok()?)));
    let (items, ids): (Vec<&T>, Vec<JobId>) = read.unzip();
    let (mut found, mut whole) = (Vec::new(), true);
    for (item, record) in items.into_iter().zip(context.store().read(&ids, Fields::NONE).await) {
        match record {
            Ok(Some(record)) if !record.deleted => found.push((item, record)),
            Ok(_) => {}
            // An unreadable record stays unreadable, so it is no reason to repeat the pass.
            Err(fault) => whole &= fault.is_unreadable(),
        }
    }
    (found, whole)
}

/// The job that a run cancelled, if the cancel says what is needed to create the job as cancelled.
fn forestalled(item: &Cancel) -> Option<NewJob> {
    let (id, spec) = (job_id(&item.job_id).ok()?, JobSpec::try_from(item.spec.clone()?).ok()?);
    let body_hash = <[u8; 16]>::try_from(item.body_hash.as_ref()).ok();
    Some(NewJob { id, spec, payload: Bytes::new(), body_hash, place: None, at: None })
}

/// Applies answered cancels of jobs that have not ended nevertheless. A cancel of a run that came before the submit of
/// its job creates the job as cancelled, if Redis has no trace of it.
async fn cancel_again(context: &Context, items: &[Cancel], counts: &mut Counts) -> bool {
    let (runs, items): (Vec<Cancel>, Vec<Cancel>) = items.iter().cloned().partition(|item| item.spec.is_some());
    let mut whole = forestall_again(context, &runs, counts).await;
    let (found, read) = records(context, &items, |item: &Cancel| &item.job_id).await;
    whole &= read;
    let lost = |item: &Cancel, record: &Record| {
        // Another job may have the id by now.
        !record.head.state().is_end() && Time(item.created_at) == record.head.created_at
    };
    let lost: Vec<_> = found.into_iter().filter(|(item, record)| lost(item, record)).collect();
    let cancels = lost.iter().filter_map(|(item, record)| {
        let tenant = Tenant::parse(&item.tenant).ok()?;
        Some(async move { context.flow.cancel(&tenant, record.id, &item.reason).await })
    });
    let done = join_all(cancels).await;
    tell("reread_cancel", done.iter().filter(|done| done.is_ok()).count() as u64, counts);
    whole &= done.iter().all(|done| done.as_ref().map_or_else(|fault| fault.is_unreadable(), |_| true));
    whole
}

/// The same for cancels of runs: no other job ever has their ids.
async fn forestall_again(context: &Context, items: &[Cancel], counts: &mut Counts) -> bool {
    let jobs: Vec<(&Cancel, NewJob)> = items.iter().filter_map(|item| Some((item, forestalled(item)?))).collect();
    let ids: Vec<JobId> = jobs.iter().map(|(_, job)| job.id).collect();
    let (mut whole, mut lost) = (true, Vec::new());
    for ((item, job), record) in jobs.into_iter().zip(context.store().read(&ids, Fields::NONE).await) {
        match record {
            Ok(Some(record)) if record.head.state().is_end() => {}
            Ok(_) => lost.push(async move { context.flow.cancel_or_create(job, &item.reason).await }),
            Err(fault) => whole &= fault.is_unreadable(),
        }
    }
    let done = join_all(lost).await;
    tell("reread_cancel", done.iter().filter(|done| done.is_ok()).count() as u64, counts);
    whole && done.iter().all(|done| done.as_ref().map_or_else(|fault| fault.is_unreadable(), |_| true))
}

/// Settles attempts that still run by their records.
async fn settle_again(context: &Context, items: &[Report], counts: &mut Counts) -> bool {
    let (found, whole) = records(context, items, |item: &Report| &item.job_id).await;
    let runs = |item: &Report, record: &Record| {
        matches!(record.head.phase, Phase::Running { .. }) && record.head.fence == item.fence
    };
    let lost: Vec<Report> = found.into_iter().filter(|(item, r)| runs(item, r)).map(|(item, _)| item.clone()).collect();
    if lost.is_empty() {
        return whole;
    }
    let n = lost.len();
    let failed = Settle::handle(context, lost, true).await;
    tell("reread_result", n.saturating_sub(failed.len()) as u64, counts);
    whole && failed.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_begins_a_minute_before_all_was_last_whole_or_with_all_that_there_is() {
        assert_eq!(beginning(&RereadMark::default()), RereadFrom::Start);
        let whole = RereadMark::default().after(&muster_store::Lives::default(), Time(100_000_000));
        assert_eq!(beginning(&whole), RereadFrom::Time(Time(40_000_000)));
    }
}
