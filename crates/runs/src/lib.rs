//! How runs of workflows are kept: read from Redis, changed by the engine, saved by compare-and-set, and published.
//!
//! Gateways start runs and apply requests of people ([`Runs::start`], [`Runs::operate`]); the workflow service applies
//! ends of jobs and timers, and carries out what a run asks for. Both change a run in the same way: read it
//! ([`Runs::read`]), apply events ([`Kept::apply`]), save it ([`Runs::save`]). A save names the version that was read, so
//! of two processes that change a run at once, one reads again. Every function here may stop between any two writes
//! and be repeated. `engine` decides what an event does, `store` has the scripts, and the workflow service decides when
//! to look at a run.

mod asks;
mod ends;
mod error;
mod explain;
mod kept;
mod list;
mod notes;
mod operate;
mod part;
mod rerun;
mod restore;
mod retention;
mod slots;
mod start;
mod story;
mod workflows;

use std::{sync::Arc, time::Duration};

use muster_bus::subjects;
use muster_domain::RunId;
use muster_flow::Flow;
use muster_store::StoreError;
use muster_wire::{Body, v1};

pub use asks::{Ask, RerunBody, StartBody};
pub use ends::JobEnds;
pub use error::RunsError;
pub use explain::{RunExplanation, Waiting};
pub use kept::Kept;
pub use list::{ListRefused, RunFilter, RunList, RunValues};
pub use notes::TimelineEntry;
pub use operate::{OperateRefused, Operated};
pub use rerun::{Rerun, RerunPlan, RerunRefused};
pub use restore::Restored;
pub use retention::{AGE_FIELDS, run_age};
pub use slots::Slot;
pub use start::{Start, StartRefused, Started};
pub use story::RunStory;
pub use workflows::{InputFault, Workflow};

/// The name of the loop that looks at due runs: a hint with this name wakes it.
pub const RECONCILER: &str = "run reconciler";

/// How deep sub-runs may nest.
pub const MOST_DEPTH: u32 = 10;

/// How long the publish of an operation may take. Redis is the source of truth, so the operation counts without it.
const BUS_PATIENCE: Duration = muster_flow::BUS_PATIENCE;

/// The runs of all tenants. Clones share one cache of definitions.
#[derive(Clone)]
pub struct Runs {
    /// Both stores.
    pub flow: Flow,
    workflows: Arc<workflows::Cache>,
    turns: Arc<operate::Turns>,
}

impl Runs {
    /// Creates an empty cache over both stores.
    pub fn new(flow: Flow) -> Runs {
        Runs { flow, workflows: Arc::default(), turns: Arc::default() }
    }

    /// Makes a run due in `after`, and hints to the owner of its shard.
    pub async fn wake(&self, run: RunId, after: Duration) -> Result<(), StoreError> {
        self.flow.store.forward_homes(&[(run, after)]).await?;
        self.hint(after).await;
        Ok(())
    }

    /// Hints to the owners of runs that a home is due after this time. A lost hint costs time, never a run.
    pub async fn hint(&self, after: Duration) {
        let in_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let wake = v1::Wake { r#loop: RECONCILER.to_owned(), in_us };
        let _ = self.flow.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
    }
}
