//! Names of loops that other modules wake.

/// Checks jobs whose homes are due.
pub(crate) const RECONCILER: &str = "reconciler";
/// Writes the snapshot of live workers.
pub(crate) const SNAPSHOT: &str = "snapshot";
