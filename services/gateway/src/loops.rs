//! The gateway's periodic loops: one file and one row each.

mod audit_relay;
mod audit_retention;
mod retention;

use muster_chassis::Declared;
use muster_replica::{ConfigWatch, Member, Row, declared};

use crate::{bulk::Bulk, state::Gateway};

/// All loops, one row each.
const ROWS: [Row<Gateway>; 5] = [
    Row::of::<retention::RetentionLoop>(),
    Row::of::<ConfigWatch>(),
    Row::of::<audit_retention::AuditRetentionLoop>(),
    Row::of::<audit_relay::AuditRelay>(),
    Row::of::<Bulk>(),
];

/// The same loops, for the settings and the documentation.
pub const LOOPS: &[Declared] = &declared(&ROWS);

/// Registers and starts all loops.
pub(crate) fn start(member: &Member, gateway: &Gateway) {
    member.start_loops(&ROWS, gateway);
}
