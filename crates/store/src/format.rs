//! The format of the data: one number, written by whoever comes first to an empty Redis.
//!
//! Promises: a replica that finds data of a newer format than it knows says so, and touches none of it; one that finds
//! an older one would migrate it under a lock, and there is none older yet. Leaves to others: not serving then.

use crate::{Store, StoreError, keys, router::Command, script::bytes};

/// The format that this version reads and writes.
pub const FORMAT: u64 = 1;

impl Store {
    /// Makes sure that what is stored can be read by this version, and notes the format where nobody has yet. Fails
    /// with [`StoreError::Newer`] if it cannot. Repeating is harmless.
    pub async fn check_format(&self) -> Result<(), StoreError> {
        let key = keys::format();
        let mut set = redis::cmd("SET");
        set.arg(key.as_bytes()).arg(FORMAT).arg("NX");
        let mut get = redis::cmd("GET");
        get.arg(key.as_bytes());
        self.router().call(Command::plain(set)).await?;
        let stored = bytes(self.router().call(Command::plain(get)).await?)?;
        let text = String::from_utf8_lossy(&stored);
        match text.parse::<u64>() {
            Ok(found) if found <= FORMAT => Ok(()),
            Ok(found) => Err(StoreError::Newer { found, known: FORMAT }),
            Err(_) => Err(StoreError::Decode(format!("the data\'s format is {text:?}"))),
        }
    }
}
