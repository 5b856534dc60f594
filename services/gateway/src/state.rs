//! The state of a gateway that every request can use.
//!
//! Knows: the parts of a gateway. No part knows the whole: what a part needs of others is passed to it. Leaves to
//! others: making the parts (`start` in the crate's root).

use std::{ops::Deref, sync::Arc};

use bytes::Bytes;
use muster_chassis::{Health, Waker};
use muster_flow::{
    Flow,
    admission::{Admission, Bucket, Refusal},
};
use muster_runs::Runs;
use muster_store::Want;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Caller, Keys},
    budget::Budget,
    config::Config,
    definitions::Definitions,
    events::{Live, Sources},
    listings::Listings,
    problem::Problem,
    waits::Waits,
    workers::Workers,
};

/// The state that every request can use. Clones share the same gateway.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Parts>);

/// The parts of a gateway.
pub(crate) struct Parts {
    pub(crate) flow: Flow,
    pub(crate) runs: Runs,
    pub(crate) keys: Arc<Keys>,
    pub(crate) admission: Admission,
    pub(crate) config: Config,
    pub(crate) waits: Waits,
    pub(crate) live: Arc<Live>,
    pub(crate) listings: Listings,
    /// Turns of the requests that waited for the end of a run and read it.
    pub(crate) awaited_runs: Listings,
    pub(crate) definitions: Definitions,
    pub(crate) workers: Workers,
    pub(crate) budget: Budget,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
    pub(crate) instance: String,
    pub(crate) openapi: Bytes,
    /// Wakes the loop that carries out bulk operations.
    pub(crate) bulk: Waker,
}

impl Deref for Gateway {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Gateway {
    /// The gateway with these parts.
    pub(crate) fn new(parts: Parts) -> Gateway {
        Gateway(Arc::new(parts))
    }

    /// What a watcher of events uses.
    pub(crate) fn sources(&self) -> Sources {
        let (live, keys) = (self.live.clone(), self.keys.clone());
        Sources { live, flow: self.flow.clone(), keys, stop: self.stop.clone() }
    }

    /// Takes one token from the read bucket of the caller's tenant.
    pub(crate) async fn take_read(&self, caller: &Caller) -> Result<(), Problem> {
        let taken = self.admission.limits().take(&caller.tenant, Bucket::Read, 1, Want::Some).await;
        if taken.granted > 0 { Ok(()) } else { Err(Refusal::RateLimited { retry_after: taken.retry_after }.into()) }
    }

    /// Takes one token from the submit bucket of the caller's tenant.
    pub(crate) async fn take_submit(&self, caller: &Caller) -> Result<(), Problem> {
        let taken = self.admission.limits().take(&caller.tenant, Bucket::Submit, 1, Want::Some).await;
        if taken.granted > 0 { Ok(()) } else { Err(Refusal::RateLimited { retry_after: taken.retry_after }.into()) }
    }
}
