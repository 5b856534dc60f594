//! What people do through this gateway, on its way into the audit log.
//!
//! Promises: an act is told before it is done, so nothing is done that is not told; while the log
//! cannot be written the request fails, and nothing has changed. An entry so says who asked for what
//! and was allowed to; how it went is told by the thing itself. Leaves to others: linking and keeping
//! entries (`store`), what loops do to jobs (`scheduler`).

use muster_domain::{Act, JobId};
use muster_flow::failpoint;
use muster_store::StoreError;

use crate::{Gateway, auth::Caller};

impl Gateway {
    /// A new act of this caller, to be filled in and told.
    pub(crate) fn act(&self, caller: &Caller, action: &str) -> Act {
        // Ours, not the client's request id: by that one could make two acts look like one.
        let id = format!("act:{}", JobId::mint(0));
        Act::by_key(id, self.flow.store.now(), &caller.key.id, caller.tenant.as_str(), action)
    }

    /// Tells an act. To be called when everything that could refuse it has been asked.
    pub(crate) async fn tell(&self, act: Act) -> Result<(), StoreError> {
        self.flow.store.audit(&[act]).await?;
        failpoint!("act.after_audit");
        Ok(())
    }
}
