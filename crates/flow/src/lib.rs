//! Operations that need both stores: admission, the submit group, offers, cancel, the effects of an
//! end, settings.
//!
//! This crate knows in which order Redis and NATS are written, and why. Every function here may
//! stop between any two writes and be repeated; nothing accepted is lost by that. `domain` decides,
//! and `services` serve requests.

pub mod admission;
mod cancel;
mod effects;
mod emptied;
mod offer;
mod recreate;
mod run_events;
mod runs;
mod settings;
mod submit;
mod waiting;

use std::{sync::Arc, time::Duration};

use muster_bus::{Bus, subjects};
use muster_store::Store;
use muster_wire::{Body, v1};

pub use cancel::Cancelled;
pub use effects::{End, Finished, job_event};
pub use emptied::Emptied;
pub use muster_store::failpoint;
pub use offer::{Offering, offer_of};
pub use recreate::Recreated;
pub use runs::JobEnd;
pub use settings::{Polled, Settings};
pub use submit::{Accepted, SubmitRefused, submit_item};
pub use waiting::{LineWaiting, Waits};

/// How long a request waits for the bus before it continues without an answer: Redis is the source
/// of truth.
pub const BUS_PATIENCE: Duration = Duration::from_millis(250);

/// Both stores. Cheap to clone.
#[derive(Clone)]
pub struct Flow {
    /// The connection to Redis.
    pub store: Store,
    /// The connection to NATS.
    pub bus: Bus,
    /// The settings that can change at run time, as this replica knows them.
    pub settings: Arc<Settings>,
}

impl Flow {
    /// Creates a flow over both stores.
    pub fn new(store: Store, bus: Bus) -> Flow {
        Flow { store, bus, settings: Arc::default() }
    }

    /// Hints to the reconcilers that a home is due after this time. A lost hint costs time, never a
    /// job.
    pub async fn hint_look(&self, after: Duration) {
        let in_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let wake = v1::Wake { r#loop: "reconciler".into(), in_us };
        // Only a hint: the loop polls anyway, and the bus reports its own faults.
        let _ = self.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
    }
}
