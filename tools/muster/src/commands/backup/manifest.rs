//! The parts of a backup: a folder with one snapshot for each primary, and `manifest.json`, which says when it was
//! made, what it contains, and the checksum of each file. Records hold payloads and hashed keys, so only the owner
//! may read the files.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::keyspace::KeyCounts;
use crate::{outcome::Failure, stack::replace_private};

/// The name of the manifest in its folder.
pub(super) const FILE: &str = "manifest.json";
/// The version that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;

/// The manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) manifest: u32,
    /// The program that made the backup.
    pub(super) made_by: String,
    /// The time of the backup by the clock of Redis: everything that was written before is in it.
    pub(super) at_ms: u64,
    pub(super) at: String,
    /// The format of the data, as the services record it.
    pub(super) data_format: Option<String>,
    pub(super) cluster: bool,
    pub(super) database: u32,
    pub(super) counts: KeyCounts,
    pub(super) files: Vec<Snapshot>,
}

/// The snapshot of one primary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) file: String,
    /// The address of that primary.
    pub(super) primary: String,
    /// The slots of that primary, such as `0-5460`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) slots: Vec<String>,
    pub(super) redis_version: String,
    pub(super) at_ms: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) counts: KeyCounts,
}

impl Manifest {
    /// Reads the manifest of a backup.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Manifest> {
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let failure = Failure::new(format!("{} is not a backup: it has no {FILE}", folder.display()));
                return Err(failure.hint("`muster backup create DIR` creates one").into());
            }
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let manifest: Manifest =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        if manifest.manifest > VERSION {
            let failure = Failure::new(format!("{} was made by a newer muster", path.display()));
            return Err(failure.hint(format!("use {} or a later one", manifest.made_by)).into());
        }
        if manifest.files.is_empty() {
            return Err(Failure::new(format!("{} lists no file", path.display())).into());
        }
        // A name leads out of the folder only if the manifest was changed.
        if let Some(bad) = manifest.files.iter().find(|f| f.file.contains('/') || f.file.starts_with('.')) {
            return Err(Failure::new(format!("{} is damaged: a file named {:?}", path.display(), bad.file)).into());
        }
        Ok(manifest)
    }

    /// Writes the manifest, and syncs it to the disk.
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let path = folder.join(FILE);
        replace_private(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        File::open(&path)?.sync_all()?;
        Ok(())
    }

    /// The size of all files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl Snapshot {
    /// Refuses a file that is missing, truncated or changed, and names it.
    pub(super) fn check(&self, folder: &Path) -> Result<(), Failure> {
        let name = &self.file;
        let (bytes, sha256) = match digest(&folder.join(name)) {
            Ok(found) => found,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Failure::new(format!("{name} is missing")));
            }
            Err(e) => return Err(Failure::new(format!("{name} cannot be read: {e}"))),
        };
        if bytes < self.bytes {
            return Err(Failure::new(format!("{name} is truncated: it has {bytes} of {} bytes", self.bytes)));
        }
        if bytes != self.bytes || sha256 != self.sha256 {
            return Err(Failure::new(format!("{name} was altered: its checksum differs from the manifest")));
        }
        Ok(())
    }
}

/// Length and SHA-256 of a file.
pub(super) fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let (mut file, mut hash, mut length) = (File::open(path)?, Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok((length, hex));
        }
        hash.update(&buffer[..n]);
        length += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(folder: &Path, bytes: &[u8]) -> Snapshot {
        fs::write(folder.join("a.rdb"), bytes).unwrap();
        let (length, sha256) = digest(&folder.join("a.rdb")).unwrap();
        Snapshot {
            file: "a.rdb".into(),
            primary: "h:1".into(),
            slots: Vec::new(),
            redis_version: "7.0.15".into(),
            at_ms: 1,
            bytes: length,
            sha256,
            counts: KeyCounts::default(),
        }
    }

    #[test]
    fn a_file_that_is_missing_cut_short_or_altered_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = snapshot(dir.path(), b"REDIS0010 and so on");
        file.check(dir.path()).unwrap();
        let path = dir.path().join("a.rdb");
        let said = || file.check(dir.path()).unwrap_err().to_string();
        fs::write(&path, b"REDIS0010 and so oN").unwrap();
        assert_eq!(said(), "a.rdb was altered: its checksum differs from the manifest");
        fs::write(&path, b"REDIS0010").unwrap();
        assert_eq!(said(), "a.rdb is truncated: it has 9 of 19 bytes");
        fs::remove_file(&path).unwrap();
        assert_eq!(said(), "a.rdb is missing");
    }

    #[test]
    fn a_manifest_that_cannot_be_trusted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let said = || Manifest::read(dir.path()).unwrap_err().to_string();
        assert!(said().ends_with("is not a backup: it has no manifest.json"), "{}", said());
        let mut manifest = Manifest {
            manifest: VERSION,
            made_by: "muster 0".into(),
            at_ms: 1,
            at: String::new(),
            data_format: None,
            cluster: false,
            database: 0,
            counts: KeyCounts::default(),
            files: vec![snapshot(dir.path(), b"x")],
        };
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap().bytes(), 1);
        manifest.files[0].file = "../../etc/passwd".into();
        manifest.write(dir.path()).unwrap();
        assert!(said().contains("is damaged"), "{}", said());
        manifest.manifest = VERSION + 1;
        manifest.write(dir.path()).unwrap();
        assert!(said().contains("newer muster"), "{}", said());
    }
}
