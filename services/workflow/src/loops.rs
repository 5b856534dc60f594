//! The periodic loops of the workflow service: one file and one row each.

mod reconciler;
mod reread;

use std::sync::Arc;

use muster_chassis::Declared;
use muster_replica::{ConfigWatch, Member, Row, declared};

use crate::context::Context;

const ROWS: [Row<Arc<Context>>; 3] =
    [Row::of::<reconciler::Reconciler>(), Row::of::<reread::Reread>(), Row::of::<ConfigWatch>()];

/// The loops, for settings and docs.
pub const LOOPS: &[Declared] = &declared(&ROWS);

/// Registers and starts all loops.
pub(crate) fn start(member: &Member, context: &Arc<Context>) {
    member.start_loops(&ROWS, context);
}
