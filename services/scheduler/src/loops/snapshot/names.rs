//! Drops the names of unused lines.
//!
//! A name is dropped only if its line was not noted for [`LINE_KEPT`], was then seen empty in Redis and on the bus, and
//! is still not noted when it is dropped. A process that puts jobs into a line has noted it at most a minute before, so
//! its writes are done by then. A line that is old but not empty is noted again: it has jobs but no scheduler that
//! knows it. Leaves to others: topics that are unknown now, whose names expire.

use muster_domain::{Tenant, Topic};
use muster_flow::LineWaiting;
use muster_store::{LINE_KEPT, Lease, StoreError};

use crate::context::Context;

/// Names checked in one measure of a topic.
const STEP: usize = 200;

/// Checks the oldest names of the topics that have any.
pub(super) async fn drop_old(
    context: &Context,
    lease: &Lease,
    topics: &[(Tenant, Topic)],
    waiting: &[Vec<LineWaiting>],
) -> Result<(), StoreError> {
    let store = context.store();
    let before = store.now().before(LINE_KEPT);
    // Every topic has its plain line, so only more than one line means names.
    let named = topics.iter().zip(waiting).filter(|(_, lines)| lines.len() > 1);
    for (name, _) in named {
        let (tenant, topic) = name;
        let old = store.lines_before(tenant, topic, before, STEP).await?;
        if old.is_empty() {
            continue;
        }
        let seen = context.flow.waiting_in(std::slice::from_ref(name), vec![old]).await?;
        for line in seen.iter().flatten() {
            match (line.queued, line.offered) {
                (0, Some(0)) => _ = store.drop_line(lease, tenant, &line.known).await?,
                (0, None) => {}
                _ => store.note_lines(&[(tenant, topic, &line.known.requires)]).await?,
            }
        }
    }
    Ok(())
}
