//! One turn of a run: everything that is known to have happened is applied and saved, and what the run asks for is
//! carried out.
//!
//! Promises: a command is carried out only after the save that has it in the outbox; a turn may stop anywhere and be
//! repeated; if another process saved the run, the turn begins again with what it saved. That a command was carried out
//! may stay in memory until the next save: whoever does not know it carries the command out once more.

use std::{sync::Arc, time::Duration};

use muster_domain::{JobId, RunId, Time};
use muster_engine::run::{Event, RunState, What};
use muster_runs::{Kept, Runs, RunsError, Slot};
use muster_telemetry::metrics::{Histogram, observe};

use crate::{carry, context::Context};

/// How often a save is tried again after another process saved the run.
const TRIES: u32 = 30;
/// The most commands that are carried out at once.
const COMMANDS: usize = 512;
/// The most rounds of commands in one turn, so that a run with many items lets others have their turn.
const ROUNDS: u32 = 64;
/// When a turn is tried again that cannot go on because Redis may have forgotten something.
const UNTIL_CALM: Duration = Duration::from_secs(1);

/// Why a run has a turn.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// Its home is due: anything may have happened.
    Due,
    /// These jobs have ended.
    Ended(Vec<JobId>),
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is no such run.
    Gone,
    /// The run has ended, and nothing of it is left to do.
    Over,
    /// The run waits, and must be looked at again after this time.
    Waits(Duration),
}

/// Handles one run. After an error, the turn must be repeated.
pub(crate) async fn take_turn(context: &Arc<Context>, id: RunId, cause: Cause) -> Result<Turn, RunsError> {
    if !context.calm.is_calm(&context.runs.flow.store).await {
        return wait_for_calm(context, id, &cause).await;
    }
    let seat = context.hot.seat(id);
    let mut kept = seat.lock().await;
    let done = attempt(context, id, &cause, &mut kept).await;
    if !matches!(done, Ok(Turn::Waits(_))) {
        *kept = None;
        drop(kept);
        context.hot.forget(id);
    }
    done
}

/// Handles the run later.
async fn wait_for_calm(context: &Context, id: RunId, cause: &Cause) -> Result<Turn, RunsError> {
    if matches!(cause, Cause::Ended(_)) {
        // The home finds the ends when all is calm again.
        context.runs.flow.store.forward_homes(&[(id, UNTIL_CALM)]).await?;
    }
    Ok(Turn::Waits(UNTIL_CALM))
}

async fn attempt(context: &Arc<Context>, id: RunId, cause: &Cause, hot: &mut Option<Kept>) -> Result<Turn, RunsError> {
    let runs = &context.runs;
    for tries in 0..TRIES {
        if tries > 0 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await;
            // Nobody may have saved the run: a failover brings back an old version of it.
            if !context.calm.look(&runs.flow.store).await {
                return wait_for_calm(context, id, cause).await;
            }
        }
        let was_hot = hot.is_some();
        let Some((mut kept, now)) = current(runs, id, cause, hot.take()).await? else { return Ok(Turn::Gone) };
        match happened(context, &mut kept, now, cause).await? {
            Happened::Conflict => continue,
            // News that changes nothing may be news to a run that another process has saved since.
            Happened::Nothing if was_hot && matches!(cause, Cause::Ended(_)) => {
                if runs.version(id).await? != Some(kept.version()) {
                    continue;
                }
            }
            Happened::Nothing | Happened::Applied => {}
        }
        let Some(later) = carry_out(context, &mut kept).await? else { continue };
        runs.list_timeline(&mut kept).await;
        let now = runs.flow.store.now();
        let turn = if kept.run.state().is_end() && later.is_none() && !undoes(&kept) && !kept.has_unpublished() {
            // What only memory knows is not known to the next look.
            if !runs.save(&mut kept).await? {
                continue;
            }
            muster_flow::failpoint!("run.turn.over");
            // Its command freed its slot; but it may have been cancelled before it had one, or a failover gave it back.
            runs.free_slot(&kept).await?;
            Turn::Over
        } else {
            let usual = Runs::next_look(&kept, now);
            Turn::Waits(later.map_or(usual, |later| later.min(usual)))
        };
        match (turn, cause) {
            // The look re-scores the home by compare.
            (_, Cause::Due) => {}
            (Turn::Over, _) => runs.flow.store.forward_homes(&[(id, Duration::ZERO)]).await?,
            (Turn::Waits(after), _) if later.is_some() || kept.run.next_look().is_some() => {
                runs.wake(id, after).await?;
            }
            _ => {}
        }
        *hot = Some(kept);
        return Ok(turn);
    }
    Err(RunsError::Contended(id))
}

/// The run as it is now. What is in memory is enough for news: a save would find out if it is old. A look asks for the
/// version, because it may be about something that another process saved.
async fn current(runs: &Runs, id: RunId, cause: &Cause, hot: Option<Kept>) -> Result<Option<(Kept, Time)>, RunsError> {
    if let Some(kept) = hot {
        let fresh = match cause {
            Cause::Ended(_) => true,
            Cause::Due => runs.version(id).await? == Some(kept.version()),
        };
        if fresh {
            return Ok(Some((kept, runs.flow.store.now())));
        }
    }
    runs.read(id).await
}

/// What became of what has happened.
enum Happened {
    /// It changed the run, and is saved.
    Applied,
    /// It changed nothing.
    Nothing,
    /// Another process saved the run.
    Conflict,
}

/// Applies what has happened and saves it.
async fn happened(context: &Arc<Context>, kept: &mut Kept, now: Time, cause: &Cause) -> Result<Happened, RunsError> {
    let runs = &context.runs;
    let mut events = Vec::new();
    if kept.run.state() == RunState::Queued && runs.take_slot(kept).await? == Slot::Held {
        events.push(Event { at: now, what: What::Start });
    }
    if !kept.run.state().is_end() || undoes(kept) {
        let known = match cause {
            Cause::Due => &[][..],
            Cause::Ended(jobs) => jobs,
        };
        let ends = runs.job_ends(kept, known).await?;
        events.extend(ends.events);
        if matches!(cause, Cause::Due) {
            events.extend(runs.sub_run_ends(kept).await?);
            if !ends.absent.is_empty() {
                events.extend(lost(context, kept, now).await?);
            }
        }
    }
    if let Some(due) = kept.run.next_look().filter(|at| at.reached(now)) {
        observe(Histogram::RunTimerLag, &[], now.since(due).as_secs_f64());
        events.push(Event { at: now, what: What::Timer });
    }
    let applied = kept.apply_all(events)?;
    if applied {
        muster_flow::failpoint!("run.turn.before_save");
        if !runs.save(kept).await? {
            return Ok(Happened::Conflict);
        }
        muster_flow::failpoint!("run.turn.after_save");
    }
    if kept.has_unpublished() {
        runs.publish_operations(kept).await;
    }
    Ok(if applied { Happened::Applied } else { Happened::Nothing })
}

/// Jobs that were confirmed and have no record, although no failover hides them: asked once more, after it is known
/// that all is calm.
async fn lost(context: &Arc<Context>, kept: &Kept, now: Time) -> Result<Vec<Event>, RunsError> {
    if !context.calm.look(&context.runs.flow.store).await {
        return Ok(Vec::new());
    }
    let absent = context.runs.job_ends(kept, &[]).await?.absent;
    let lost = |(task, job): (String, JobId)| {
        tracing::warn!(event = "job_lost", run = %kept.id, %job, task, "a job of a run is gone without an end");
        Event { at: now, what: What::JobLost { task, job } }
    };
    Ok(absent.into_iter().map(lost).collect())
}

/// Carries out what the run asks for, until nothing is left or what is left must wait. Returns when to try the rest
/// again, if there is a rest; none instead if another process saved the run.
async fn carry_out(context: &Arc<Context>, kept: &mut Kept) -> Result<Option<Option<Duration>>, RunsError> {
    let runs = &context.runs;
    for _ in 0..ROUNDS {
        let unread = |_| RunsError::Unreadable { run: kept.id, fault: "not read as a whole".into() };
        let commands = kept.run.outbox(COMMANDS).map_err(unread)?;
        if commands.is_empty() {
            return Ok(Some(None));
        }
        // A command may be carried out only after it was saved.
        if kept.is_changed() && !runs.save(kept).await? {
            return Ok(None);
        }
        muster_flow::failpoint!("run.carry.before");
        let carried = carry::out(context, kept, commands).await;
        muster_flow::failpoint!("run.carry.after");
        let none_done = carried.events.is_empty();
        kept.apply_all(carried.events)?;
        if let Some(later) = carried.later.filter(|_| none_done) {
            return Ok(Some(Some(later)));
        }
    }
    Ok(Some(Some(Duration::ZERO)))
}

/// Whether compensations run that were asked for after the run's end.
fn undoes(kept: &Kept) -> bool {
    kept.run.waits_for(1).is_ok_and(|waits| !waits.is_empty())
}
