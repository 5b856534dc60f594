//! Whether Redis may have forgotten something that the bus still has.
//!
//! After a failover or a restart, a primary may lack its last writes until they are restored from the bus: jobs by the
//! loop `reread` of the schedulers, then operations on runs by the loop `run reread`. Until then nothing may be concluded from what Redis holds: a job that is absent may come
//! back, and a run that continues could do something twice. So turns wait.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_store::Store;

/// How long an answer is valid. A run that another process saved is looked at with a new answer: what was read may be
/// older than what is stored here.
const VALID: Duration = Duration::from_millis(250);

/// The last answer.
#[derive(Default)]
pub(crate) struct Calm(Mutex<Option<(Instant, bool)>>);

impl Calm {
    /// Whether nothing is missing, as far as is known. An answer is at most [`VALID`] old; without an answer from Redis,
    /// nothing is calm.
    pub(crate) async fn is_calm(&self, store: &Store) -> bool {
        if let Some((at, calm)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && at.elapsed() < VALID
        {
            return calm;
        }
        self.look(store).await
    }

    /// The same, asked now.
    pub(crate) async fn look(&self, store: &Store) -> bool {
        let began = Instant::now();
        let (jobs, runs, met) = tokio::join!(store.reread_mark(), store.run_reread_mark(), store.lives());
        let calm = match (jobs, runs, met) {
            (Ok(jobs), Ok(runs), Ok(met)) => [jobs, runs].iter().all(|known| !met.may_have_forgotten(&known.mark)),
            _ => false,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((began, calm));
        calm
    }
}
