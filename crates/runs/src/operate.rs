//! Applies what somebody asks of a run.
//!
//! The order: read the run and the records of its open jobs; forward the home; save; publish; check that the save still
//! stands; forward the home; answer. A failover between save and publish loses the operation, and then it must not be
//! answered: hence the check. Whoever repeats an operation that the run knows publishes and checks it again.

use std::time::Duration;

use muster_domain::{RunId, Tenant};
use muster_engine::run::{Event, Outcome, Refusal};
use tokio::sync::{Mutex, MutexGuard};

use crate::{Ask, Kept, Runs, RunsError};

/// How often a save is tried again after another process saved the run.
const TRIES: u32 = 30;
/// How many runs may be operated on at once. Two runs that share a turn wait for each other.
const TURNS: usize = 1024;
/// The longest pause before the next try.
const PAUSE_MS: u64 = 20;

/// The operations of one process on one run come one after the other, so that many at once do not make each other
/// repeat. Between processes the version of the run decides.
pub(crate) struct Turns(Vec<Mutex<()>>);

impl Default for Turns {
    fn default() -> Turns {
        Turns((0..TURNS).map(|_| Mutex::default()).collect())
    }
}

impl Turns {
    async fn of(&self, run: RunId) -> MutexGuard<'_, ()> {
        let [.., byte, last] = run.as_bytes();
        self.0[(usize::from(*byte) << 4 | usize::from(*last >> 4)) % TURNS].lock().await
    }
}

/// What became of an operation.
#[derive(Debug)]
pub struct Operated {
    /// The run, as it is after the operation.
    pub kept: Kept,
    /// Whether the run knew the operation already, or there was nothing to do.
    pub before: bool,
}

/// Why an operation was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OperateRefused {
    /// The tenant has no such run.
    #[error("there is no such run")]
    NotFound,
    /// The run is in a state in which this cannot be done.
    #[error("the run is in a state in which this cannot be done")]
    Refused {
        /// Why.
        why: Refusal,
        /// The run.
        kept: Box<Kept>,
    },
    /// The run could not be read or saved.
    #[error(transparent)]
    Fault(#[from] RunsError),
}

impl From<muster_store::StoreError> for OperateRefused {
    fn from(fault: muster_store::StoreError) -> OperateRefused {
        OperateRefused::Fault(fault.into())
    }
}

impl Runs {
    /// Applies an operation to a run of the tenant. The same id twice is one operation.
    pub async fn operate(
        &self,
        tenant: &Tenant,
        id: RunId,
        op_id: &str,
        ask: &Ask,
    ) -> Result<Operated, OperateRefused> {
        let _turn = self.turns.of(id).await;
        // Whether this call has saved the operation, and what it did.
        let mut saved = None;
        for tries in 0..TRIES {
            if tries > 0 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=PAUSE_MS))).await;
            }
            let Some((mut kept, now)) = self.read(id).await? else { return Err(OperateRefused::NotFound) };
            if kept.run.about().tenant != *tenant {
                return Err(OperateRefused::NotFound);
            }
            let at = now.max(kept.run.now());
            let ends = self.job_ends(&kept, &[]).await?;
            kept.apply_all(ends.events.into_iter().filter(|end| end.at <= at).collect())?;
            kept.pass_time(at)?;
            let applied = kept.apply(&Event { at, what: ask.event(op_id) })?;
            let op = ask.unpublished(op_id, at);
            match applied.outcome {
                Outcome::Refused(why) => {
                    // Ends that were found on the way are found again by the next look.
                    return Err(OperateRefused::Refused { why, kept: Box::new(kept) });
                }
                Outcome::Nothing if saved.is_some() || !kept.is_changed() => {
                    self.publish_operation(&kept, &op).await;
                    self.wake(id, Duration::ZERO).await?;
                    return Ok(Operated { kept, before: saved.unwrap_or(true) });
                }
                // An operation that does nothing is remembered too: read from the bus later, it might do something.
                Outcome::Nothing | Outcome::Applied => {}
            }
            let before = saved.unwrap_or(applied.outcome == Outcome::Nothing);
            kept.notes.publish(op.clone());
            self.flow.store.forward_homes(&[(id, Duration::ZERO)]).await?;
            muster_flow::failpoint!("run.operate.before_save");
            if !self.save(&mut kept).await? {
                continue;
            }
            muster_flow::failpoint!("run.operate.after_save");
            self.publish_operation(&kept, &op).await;
            muster_flow::failpoint!("run.operate.after_publish");
            if self.version(id).await? != Some(kept.version()) {
                // Another process built on this save, or a failover lost it: what is stored tells.
                saved = Some(before);
                continue;
            }
            self.wake(id, Duration::ZERO).await?;
            return Ok(Operated { kept, before });
        }
        Err(RunsError::Contended(id).into())
    }
}

impl Runs {
    /// Tells a run something that another run knows, and makes the run due. A run that is gone hears nothing. Repeating
    /// is harmless.
    pub async fn deliver(&self, id: RunId, what: &muster_engine::run::What) -> Result<(), RunsError> {
        for tries in 0..TRIES {
            if tries > 0 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=PAUSE_MS))).await;
            }
            let Some((mut kept, now)) = self.read(id).await? else { return Ok(()) };
            let at = now.max(kept.run.now());
            kept.pass_time(at)?;
            if kept.apply(&Event { at, what: what.clone() })?.outcome == Outcome::Applied {
                self.flow.store.forward_homes(&[(id, Duration::ZERO)]).await?;
                if !self.save(&mut kept).await? {
                    continue;
                }
                muster_flow::failpoint!("run.deliver.after_save");
            }
            self.wake(id, Duration::ZERO).await?;
            return Ok(());
        }
        Err(RunsError::Contended(id))
    }
}
