//! When the holders of each concurrency limit were last checked.
//!
//! Promises: one check a second per limit. Leaves to others: the check itself (`slots`).

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_domain::{Tenant, slot::Limit};
use muster_store::SlotRef;

/// How often the holders of one limit are checked.
const JUDGE: Duration = Duration::from_secs(1);

/// The limits that were checked within the last second.
#[derive(Debug, Default)]
pub(crate) struct JudgedSlots(Mutex<HashMap<(Tenant, Limit), Instant>>);

impl JudgedSlots {
    /// Whether the limit of this slot is due for a check; if so it counts as checked.
    pub(crate) fn due(&self, slot: &SlotRef, now: Instant) -> bool {
        let mut judged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        judged.retain(|_, at| now.saturating_duration_since(*at) < JUDGE);
        judged.insert((slot.tenant.clone(), slot.limit.clone()), now).is_none()
    }
}
