//! Failpoints that each act once when armed: whoever comes there next takes the order and does it.

use std::{fs, path::PathBuf, time::Duration};

use muster_testkit::until;
use tempfile::TempDir;

/// The failpoints of one stack.
pub struct Failpoints {
    folder: TempDir,
}

impl Default for Failpoints {
    fn default() -> Failpoints {
        Failpoints { folder: tempfile::tempdir().expect("a folder") }
    }
}

impl Failpoints {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The value of `MUSTER_FAILPOINTS`, or a part of it.
    pub fn setting(&self) -> String {
        format!("@{}", self.folder.path().display())
    }

    /// The next process that comes there does it: `kill`, `panic` or `delay:<ms>`.
    pub fn arm(&self, name: &str, what: &str) {
        let draft = self.folder.path().join("draft");
        fs::write(&draft, what).expect("a file");
        // Nobody reads half an order.
        fs::rename(draft, self.file(name)).expect("a file");
    }

    /// Whether somebody has come there since it was armed.
    pub fn acted(&self, name: &str) -> bool {
        !self.file(name).exists()
    }

    /// Waits until somebody has come there.
    pub async fn has_acted(&self, name: &str) {
        let what = format!("somebody to come to {name} (the services must be built with their feature `failpoints`)");
        until(Duration::from_secs(60), &what, async || self.acted(name).then_some(())).await;
    }
}
