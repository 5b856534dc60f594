//! The format of the data: one number, raised by the first replica that writes a newer one.
//! a small job may be one field (ADR written-whole), which a version that knows only format 1 would take for a missing
//! job.
//! Promises: a replica that finds data of a newer format than it knows says so, and touches none of it; what is older
//! is read as it is, and nothing has had to be migrated yet. Leaves to others: not serving then.
//!
//! 2: a small job may be one field (ADR written-whole), which a version that knows only 1 would take for none.

use crate::{Store, StoreError, keys, scripts};

/// The format that this version writes; it reads all earlier ones.
pub const FORMAT: u64 = 2;

impl Store {
    /// Checks that this version can read the stored data, and records the format that this version writes. Fails with
    /// [`StoreError::Newer`] if it cannot read the data, and then changes nothing. Repeating is harmless.
    pub async fn check_format(&self) -> Result<(), StoreError> {
        let raise = scripts::format::Raise { key: keys::format(), known: FORMAT };
        let found = self.run(raise).await?.found;
        let text = String::from_utf8_lossy(&found);
        match text.parse::<u64>() {
            _ if text.is_empty() => Ok(()),
            Ok(found) if found <= FORMAT => Ok(()),
            Ok(found) => Err(StoreError::Newer { found, known: FORMAT }),
            Err(_) => Err(StoreError::Decode(format!("the data's format is {text:?}"))),
        }
    }
}
