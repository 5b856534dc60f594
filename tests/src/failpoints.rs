//! Failpoints that each act once when armed: one acts for whoever creates its file, so one whose
//! file is there already is asleep until the file is taken away.

use std::{fs, path::PathBuf, time::Duration};

use muster_testkit::until;
use tempfile::TempDir;

/// Some failpoints of one stack.
pub struct Failpoints {
    folder: TempDir,
    points: Vec<(&'static str, &'static str)>,
}

impl Failpoints {
    /// Each with what it does (`kill`, `panic`, `delay:<ms>`), none of them armed.
    pub fn asleep(points: &[(&'static str, &'static str)]) -> Failpoints {
        let all = Failpoints { folder: tempfile::tempdir().expect("a folder"), points: points.to_vec() };
        points.iter().for_each(|(name, _)| fs::write(all.file(name), "").expect("a file"));
        all
    }

    /// Each kills one process when armed.
    pub fn killers(names: &[&'static str]) -> Failpoints {
        let points: Vec<_> = names.iter().map(|name| (*name, "kill")).collect();
        Failpoints::asleep(&points)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The value of `MUSTER_FAILPOINTS`.
    pub fn setting(&self) -> String {
        let one = |(name, what): &(&str, &str)| format!("{name}={what}:{}", self.file(name).display());
        self.points.iter().map(one).collect::<Vec<_>>().join(";")
    }

    /// The next process that comes there does it.
    pub fn arm(&self, name: &str) {
        fs::remove_file(self.file(name)).expect("it was asleep");
    }

    /// Waits until somebody has come there.
    pub async fn has_acted(&self, name: &str) {
        let file = self.file(name);
        let what = format!("somebody to come to {name} (the services must be built with their feature `failpoints`)");
        until(Duration::from_secs(60), &what, async || file.exists().then_some(())).await;
    }
}
