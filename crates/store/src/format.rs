//! The format of the stored data: one number, raised by the first replica that writes a newer format.
//!
//! A replica that finds data of a newer format than it knows reports this and changes nothing. It reads data of older
//! formats as they are; nothing needed a migration so far. The caller decides not to serve then.
//!
//! Format 2: a small job may be one field (ADR written-whole). A version that knows only format 1 would take such a job
//! for a missing one.

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
