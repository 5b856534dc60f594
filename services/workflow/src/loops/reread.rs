//! Reads operations on runs from the bus again when Redis may have lost their saves.
//!
//! A primary that has failed over or restarted may have lost its last writes. The schedulers restore jobs first; then
//! this loop reads again the starts, signals, cancels and other operations since one minute before the nodes were last
//! seen without loss, in the order in which they were published. What was not lost changes nothing. Then it gives each
//! run that goes on a home again, if the home was lost. Until the pass is complete, no run has a turn (`calm`).
//!
//! Promises: a pass may be repeated at any time; if a leader dies during one, the next leader begins it again, because
//! the mark moves only after a complete pass. The loop works only half of the time. Leaves to others: what an operation
//! does (`runs`), what the run needs afterwards (`turn`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_bus::{RereadFrom, subjects};
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::Time;
use muster_replica::{LoopOf, Member};
use muster_runs::{AGE_FIELDS, Restored, run_age};
use muster_store::{KnownMark, LeaderLock, Lease, RereadMark, RunScan, StoreError};
use muster_wire::{Body, v1};

use crate::context::Context;

/// How long before the last mark writes may have been lost.
const BEFORE: Duration = Duration::from_secs(60);
/// Messages read at once.
const MESSAGES: usize = 64;
/// Keys scanned at once.
const KEYS: usize = 500;
/// How long after its end a run may have something left to do.
const EFFECTS: Duration = Duration::from_secs(3600);
/// Pause before the loop looks again whether the jobs are there again, or repeats a faulty pass.
const SOON: Duration = Duration::from_millis(500);

pub(super) struct Reread {
    context: Arc<Context>,
    pass: Option<Pass>,
}

/// An unfinished pass.
struct Pass {
    /// The mark when the pass began, and the mark to set when it is complete.
    known: KnownMark,
    mark: RereadMark,
    /// Where the pass continues, and the sequence at which it ends.
    next: RereadFrom,
    until: u64,
    reader: Option<muster_bus::Reread>,
    /// The operations were read; this is how far the runs were scanned.
    scan: Option<RunScan>,
    /// Something could not be read or applied.
    faulty: bool,
}

impl LoopOf<Arc<Context>> for Reread {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Reread> {
        Some(Reread { context: context.clone(), pass: None })
    }
}

impl Reread {
    /// Begins a pass if a primary may have lost writes since the last mark. Otherwise moves the mark to now.
    async fn look(&self, lease: &Lease, counts: &mut Counts) -> anyhow::Result<Option<Pass>> {
        let flow = &self.context.runs.flow;
        let known = flow.store.run_reread_mark().await?;
        let jobs = flow.store.reread_mark().await?;
        let met = flow.store.lives().await?;
        // Asked after the nodes, so that the pass includes every message from before a node's restart.
        let end = flow.bus.sys_end().await?;
        let mark = known.mark.after(&met, end.at);
        if met.may_have_forgotten(&known.mark) {
            if met.may_have_forgotten(&jobs.mark) {
                // An operation is applied after the ends of jobs that were before it: these come first.
                counts.due_in(SOON);
                return Ok(None);
            }
            let next = known.mark.whole_at().map_or(RereadFrom::Start, |at| RereadFrom::Time(at.before(BEFORE)));
            tracing::info!(event = "reread", from = ?next, until = end.sequence, "reading operations on runs again");
            return Ok(Some(Pass { known, mark, next, until: end.sequence, reader: None, scan: None, faulty: false }));
        }
        if mark != known.mark {
            flow.store.move_run_reread_mark(lease, &known, &mark).await?;
        }
        Ok(None)
    }

    /// Handles the next messages of the pass. False if there are no more.
    async fn step(&mut self, counts: &mut Counts) -> anyhow::Result<bool> {
        let Some(pass) = &mut self.pass else { return Ok(false) };
        if let Some(scan) = &mut pass.scan {
            let given = give_homes(&self.context, scan, counts).await;
            if given.is_err() {
                *scan = RunScan::default();
            }
            return Ok(given?);
        }
        let mut reader = match pass.reader.take() {
            Some(reader) => reader,
            None => self.context.runs.flow.bus.reread(&subjects::run_op(), pass.next, pass.until).await?,
        };
        let messages = reader.next(MESSAGES).await?;
        let Some((last, _)) = messages.last() else {
            reader.close().await;
            pass.scan = Some(RunScan::default());
            return Ok(true);
        };
        let next = RereadFrom::Sequence(last + 1);
        let mut ops: Vec<v1::RunOp> = Vec::new();
        for (_, body) in messages {
            if let Body::RunOp(group) = body {
                ops.extend(group.items);
            }
        }
        // A late publish comes behind operations that were answered later.
        ops.sort_by_key(|op| Time(op.at));
        for op in ops {
            counts.add("read", 1);
            match self.context.runs.restore(&op).await {
                Ok(Restored::Applied) => {
                    counts.add("reread_run", 1);
                    tracing::warn!(event = "reread", kind = op.kind, id = op.id, "an operation on a run was lost");
                }
                Ok(Restored::Known | Restored::Impossible) => {}
                Err(fault) if fault.is_retryable() => pass.faulty = true,
                Err(fault) => {
                    tracing::error!(event = "reread", kind = op.kind, id = op.id, %fault, "an operation on a run is lost");
                }
            }
        }
        (pass.next, pass.reader) = (next, Some(reader));
        Ok(true)
    }

    /// Ends the pass: moves the mark, or repeats a faulty pass soon.
    async fn end(&mut self, lease: &Lease, counts: &mut Counts) -> anyhow::Result<()> {
        let Some(pass) = self.pass.take() else { return Ok(()) };
        if pass.faulty {
            counts.add("faults", 1);
            counts.due_in(SOON);
            return Ok(());
        }
        counts.add("passes", 1);
        if !self.context.runs.flow.store.move_run_reread_mark(lease, &pass.known, &pass.mark).await? {
            // Another process has changed the mark meanwhile: look again at once.
            counts.due_in(Duration::ZERO);
        }
        Ok(())
    }
}

/// Gives runs of the next page their homes again. False if there are no more.
async fn give_homes(context: &Context, scan: &mut RunScan, counts: &mut Counts) -> Result<bool, StoreError> {
    let store = &context.runs.flow.store;
    let Some(ids) = store.homeless_runs(scan, KEYS).await? else { return Ok(false) };
    let mut lost = Vec::new();
    for (id, run) in ids.iter().zip(store.read_runs(&ids, &AGE_FIELDS).await) {
        let run = match run {
            Err(fault) if fault.is_retryable() => return Err(fault),
            run => run.ok().flatten(),
        };
        let age = run.as_ref().and_then(run_age);
        if age.is_some_and(|age| age.ended == Time::NONE || !(age.ended + EFFECTS).reached(store.now())) {
            lost.push(*id);
        }
    }
    if !lost.is_empty() {
        counts.add("homes", lost.len() as u64);
        store.set_homes(&lost, Duration::ZERO).await?;
    }
    Ok(true)
}

impl Loop for Reread {
    const NAME: &'static str = "run reread";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::RunReread.as_str(),
        why: "a run that exists is not created again, and it remembers the ids of its operations",
        duplicate_costs: "the last minutes of the bus are read twice",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        if self.pass.is_none() {
            self.pass = self.look(lease, &mut counts).await?;
        }
        while self.pass.is_some() {
            lease.leads(LeaderLock::RunReread)?;
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
