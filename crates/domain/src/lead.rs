//! Proof of leadership, as a trait for code that must not know where the proof comes from.

/// The lease of a leader. An operation that only a leader may perform takes a `Leads` value and stops when the lease is
/// lost. Services use the store's `Lease`, which only the store's lease keeper can create.
pub trait Leads: Sync {
    /// Whether the holder may still act as the leader.
    fn is_held(&self) -> bool;
}
