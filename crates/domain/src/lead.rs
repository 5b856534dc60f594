//! What the proof of leadership looks like to those who must not know where it comes from.

/// A lease that somebody leads by. What only a leader may do takes one, and stops when it is lost. The
/// store's `Lease` is the one that services have; nobody but its keeper can make it.
pub trait Leads: Sync {
    /// Whether the holder may still trust itself to lead.
    fn is_held(&self) -> bool;
}
