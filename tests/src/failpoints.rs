//! Failpoints that act once each time they are armed: the next process that reaches one takes the order and carries
//! it out.

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

    /// Arms a failpoint. The next process that reaches it does this: `kill`, `panic` or `delay:<ms>`.
    pub fn arm(&self, name: &str, what: &str) {
        let draft = self.folder.path().join("draft");
        fs::write(&draft, what).expect("a file");
        // Rename the file, so that no process reads half an order.
        fs::rename(draft, self.file(name)).expect("a file");
    }

    /// Whether a process has reached the failpoint since it was armed.
    pub fn acted(&self, name: &str) -> bool {
        !self.file(name).exists()
    }

    /// Waits until a process has reached the failpoint.
    pub async fn has_acted(&self, name: &str) {
        let what = format!("somebody to come to {name} (the services must be built with their feature `failpoints`)");
        until(Duration::from_secs(60), &what, async || self.acted(name).then_some(())).await;
    }
}
