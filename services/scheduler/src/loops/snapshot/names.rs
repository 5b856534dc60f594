//! Drops the names of lines that nobody uses any more.
//!
//! A name goes only if its line was not noted for [`LINE_KEPT`], was seen empty after that was read, in
//! Redis and on the bus, and is still not noted when it goes. Whoever puts jobs into a line has noted it a
//! minute before at most, so what such a writer does is over by then. A line that is old and not empty is
//! noted anew: its schedulers are gone, its jobs are not. Leaves to others: topics that nobody knows any
//! more, whose names vanish by their time to live.

use muster_domain::{Tenant, Topic};
use muster_flow::LineWaiting;
use muster_store::{LINE_KEPT, Lease, StoreError};

use crate::context::Context;

/// Names looked at in one measure of a topic.
const STEP: usize = 200;

/// Looks through the oldest names of those topics that have any.
pub(super) async fn drop_old(
    context: &Context,
    lease: &Lease,
    topics: &[(Tenant, Topic)],
    waiting: &[Vec<LineWaiting>],
) -> Result<(), StoreError> {
    let store = context.store();
    let before = store.now().before(LINE_KEPT);
    // Every topic has its plain line.
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
