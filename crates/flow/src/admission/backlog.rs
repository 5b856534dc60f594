//! Refuses jobs of topics whose backlog is full.
//!
//! Knows: how many jobs of a bounded topic wait. Promises: the backlog of a bounded topic is measured over all its
//! lines, at most every [`FRESH`], and jobs that this replica admits in between are counted. With n replicas, the bound
//! can therefore be exceeded by what n − 1 of them admit in that time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_domain::{Tenant, Topic};
use muster_store::StoreError;

use super::refusal::Refusal;
use crate::{Flow, Waits};

/// How long a measurement of a backlog is valid.
const FRESH: Duration = Duration::from_millis(250);
/// The most measurements that are kept.
const MOST_MEASURED: usize = 10_000;

/// The measured backlogs.
#[derive(Default)]
pub(super) struct Backlogs {
    measured: Mutex<HashMap<(Tenant, Topic), Measure>>,
}

/// How many jobs waited at the time of the measurement, and how many were admitted since.
#[derive(Clone, Copy, Debug)]
struct Measure {
    waiting: u64,
    admitted: u64,
    at: Instant,
}

impl Backlogs {
    /// Admits one more job, or refuses it because `most` jobs wait already.
    pub(super) async fn admit(
        &self,
        flow: &Flow,
        (tenant, topic): (&Tenant, &Topic),
        most: u64,
    ) -> Result<(), Refusal> {
        let name = (tenant.clone(), topic.clone());
        let full = match self.enter(&name, most) {
            Some(full) => full,
            None => {
                let waiting = waiting(flow, &name).await?;
                let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
                if measured.len() >= MOST_MEASURED {
                    measured.clear();
                }
                measured.insert(name.clone(), Measure { waiting, admitted: 0, at: Instant::now() });
                drop(measured);
                self.enter(&name, most).unwrap_or(waiting >= most)
            }
        };
        if full { Err(Refusal::BacklogFull { topic: topic.clone(), most }) } else { Ok(()) }
    }

    /// Whether the backlog is full, by a fresh measurement; counts the job if it is not. `None` without a fresh
    /// measurement.
    fn enter(&self, name: &(Tenant, Topic), most: u64) -> Option<bool> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let measure = measured.get_mut(name).filter(|measure| measure.at.elapsed() < FRESH)?;
        let full = measure.waiting + measure.admitted >= most;
        measure.admitted += u64::from(!full);
        Some(full)
    }
}

/// How many jobs wait, whatever they require: in the backlog, and on the bus if the bus answers.
async fn waiting(flow: &Flow, name: &(Tenant, Topic)) -> Result<u64, StoreError> {
    let waiting = flow.waiting(std::slice::from_ref(name)).await?;
    Ok(Waits::of(waiting.iter().flatten()).sum())
}
