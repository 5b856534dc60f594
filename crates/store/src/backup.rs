//! When the data was last backed up, as noted by `muster backup create`.
//!
//! One hash has the fields `at_ms`, `files` and `bytes`. It takes one read; a field that is missing or cannot be parsed
//! is zero. The command line makes backups and writes the note.

use muster_domain::Time;

use crate::{Store, StoreError, keys, router::Command, script::number};

/// The last backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastBackup {
    /// When the backup was made, in Redis time.
    pub at: Time,
    /// The number of files.
    pub files: u64,
    /// The size in bytes.
    pub bytes: u64,
}

impl Store {
    /// The last backup; none if there never was one. One read.
    pub async fn last_backup(&self) -> Result<Option<LastBackup>, StoreError> {
        let mut get = redis::cmd("HMGET");
        get.arg(keys::backup().as_bytes()).arg("at_ms").arg("files").arg("bytes");
        let redis::Value::Array(fields) = self.router().call(Command::plain(get)).await? else {
            return Err(StoreError::Decode("the last backup".into()));
        };
        let mut fields = fields.iter().map(|field| number::<u64>(field).unwrap_or(0));
        let mut next = || fields.next().unwrap_or(0);
        let (at_ms, files, bytes) = (next(), next(), next());
        Ok((at_ms > 0).then(|| LastBackup { at: Time(at_ms.saturating_mul(1_000)), files, bytes }))
    }
}
