//! Cancels, again: the gateway has applied each already, and publishes it in case Redis forgets.
//!
//! Promises: applying one twice changes nothing and finishes what the first time left undone.
//! Leaves to others: what a cancel entails (`flow`).

use muster_bus::{Subject, subjects};
use muster_domain::Tenant;
use muster_wire::{
    Body, job_id,
    v1::{Cancel, CancelGroup},
};

use crate::{
    desk::Desk,
    intake::{Work, bury},
};

/// Groups of cancels.
pub(crate) struct Cancels;

impl Work for Cancels {
    type Item = Cancel;
    const NAME: &'static str = "cancel";

    fn subject() -> Subject {
        subjects::cancel()
    }

    fn open(body: Body) -> Option<Vec<Cancel>> {
        match body {
            Body::Cancel(group) => Some(group.items),
            _ => None,
        }
    }

    fn close(items: Vec<Cancel>) -> Body {
        Body::Cancel(CancelGroup { items })
    }

    async fn handle(desk: &Desk, items: Vec<Cancel>, _again: bool) -> Vec<usize> {
        let mut failed = Vec::new();
        for (place, item) in items.into_iter().enumerate() {
            let done = match (job_id(&item.job_id), Tenant::parse(&item.tenant)) {
                (Ok(id), Ok(tenant)) => desk.flow.cancel(&tenant, id, &item.reason).await.is_ok(),
                (Err(fault), _) => bury::<Cancels>(desk, item, &fault.to_string()).await,
                (_, Err(fault)) => bury::<Cancels>(desk, item, &fault.to_string()).await,
            };
            if !done {
                failed.push(place);
            }
        }
        failed
    }
}
