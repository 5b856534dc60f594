//! Removes an ended job and everything that refers to it. Called by routes and by bulk operations.

use muster_domain::{JobId, Tenant};
use muster_flow::{End, Flow, failpoint};
use muster_store::{Deleted, Fields, StoreError};

/// Removes an ended job from everywhere. Repeating the call finishes what an earlier call left undone. If the job
/// still has a home, the effects of its end may be incomplete. They are completed first, because they need the
/// record.
pub(crate) async fn remove(flow: &Flow, tenant: &Tenant, id: JobId) -> Result<Deleted, StoreError> {
    let store = &flow.store;
    if store.home_of(id).await?.is_some() {
        match store.read_one(id, Fields::NONE).await? {
            Some(record) if record.head.state().is_end() => drop(flow.finish(vec![End::of(&record, false)]).await?),
            Some(_) => return Ok(Deleted::Alive),
            None => {}
        }
    }
    let outcome = store.delete_ended(id).await?;
    failpoint!("delete.after_record");
    if outcome != Deleted::Alive {
        store.drop_dead_letter(tenant, id).await?;
    }
    Ok(outcome)
}
