//! Writes what people do through this gateway into the audit log.
//!
//! Promises: the gateway writes an act to the log before it carries the act out, so nothing happens without an entry.
//! While the log cannot be written, the request fails and nothing changes. An entry therefore says which key asked
//! for what and was allowed to do it; the result is visible in the changed object itself. Leaves to others: linking
//! and storing entries (`store`), and what loops do to jobs (`scheduler`).

use muster_domain::{Act, JobId};
use muster_flow::failpoint;
use muster_store::StoreError;

use crate::{auth::Caller, state::Gateway};

impl Gateway {
    /// Starts an act of this caller. The route fills it in and passes it to `tell`.
    pub(crate) fn act(&self, caller: &Caller, action: &str) -> Act {
        // The gateway mints this id. With the client's request id, a client could make two acts look like one.
        let id = format!("act:{}", JobId::mint(0));
        Act::by_key(id, self.flow.store.now(), &caller.key.id, caller.tenant.as_str(), action)
    }

    /// Writes an act to the audit log. Call it after every check that could refuse the act.
    pub(crate) async fn tell(&self, act: Act) -> Result<(), StoreError> {
        self.flow.store.audit(&[act]).await?;
        failpoint!("act.after_audit");
        Ok(())
    }
}
