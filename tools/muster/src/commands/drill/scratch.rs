//! The folder of a drill: one that was asked for, or a temporary one that goes when all went well.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use uuid::Uuid;

/// The temporary folder of a drill.
pub(super) struct Scratch {
    path: PathBuf,
    goes: Cell<bool>,
}

impl Scratch {
    /// Creates the folder. A folder that the user chose must be new or empty: otherwise the jobs of an earlier drill
    /// would be judged again.
    pub(super) fn take(asked: Option<&Path>, drill: &str) -> anyhow::Result<Scratch> {
        let path = match asked {
            Some(dir) => dir.to_owned(),
            None => std::env::temp_dir().join(format!("muster-{drill}-{}", Uuid::new_v4().simple())),
        };
        fs::create_dir_all(&path)?;
        anyhow::ensure!(fs::read_dir(&path)?.next().is_none(), "{} is not empty", path.display());
        Ok(Scratch { path, goes: Cell::new(asked.is_none()) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder after the drill, and returns its path.
    pub(super) fn keep(&self) -> &Path {
        self.goes.set(false);
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.goes.get() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
