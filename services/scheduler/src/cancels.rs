//! Applies cancels a second time: the gateway has applied each one already, and publishes it in case Redis forgets.
//!
//! Promises: a second apply changes nothing, and finishes what the first one left undone. Leaves to others: the effects
//! of a cancel (`flow`).

use futures_util::future::join_all;
use muster_bus::{Subject, subjects};
use muster_domain::Tenant;
use muster_wire::{
    Body, job_id,
    v1::{Cancel, CancelGroup},
};

use crate::{
    context::Context,
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

    async fn handle(context: &Context, items: Vec<Cancel>, _again: bool) -> Vec<usize> {
        let done = join_all(items.into_iter().map(|item| apply(context, item))).await;
        done.into_iter().enumerate().filter(|(_, done)| !done).map(|(place, _)| place).collect()
    }
}

/// Returns false if the message must be delivered again.
async fn apply(context: &Context, item: Cancel) -> bool {
    let (id, tenant) = (job_id(&item.job_id), Tenant::parse(&item.tenant));
    let reason = match (id, tenant) {
        (Ok(id), Ok(tenant)) => {
            let cancelled = context.flow.cancel(&tenant, id, &item.reason).await;
            return cancelled.map_or_else(|fault| fault.is_unreadable(), |_| true);
        }
        (Err(fault), _) => fault.to_string(),
        (_, Err(fault)) => fault.to_string(),
    };
    bury::<Cancels>(context, item, &reason).await
}
