//! What a drill knows without the stack: every answer it got, every end it saw, and every execution that its workers
//! wrote down. The checker compares the stack with this.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use muster_domain::{State, Time};

use super::places::Death;

/// A job that a gateway answered with 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The times of the request and of its answer: the job was written in between.
    pub(super) between: (Time, Time),
    /// A Redis replica had the job before the answer.
    pub(super) replicated: bool,
}

/// An end of a job, as the drill saw it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenEnd {
    pub(super) state: State,
    pub(super) finished_at: Option<Time>,
}

/// One line of the workers' file: a handler started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Execution {
    pub(super) attempt: u32,
    pub(super) fence: u64,
}

/// Everything that the drill knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) accepted: BTreeMap<String, Accepted>,
    pub(super) ends: BTreeMap<String, SeenEnd>,
    pub(super) executions: BTreeMap<String, Vec<Execution>>,
    /// The number of executions of each worker.
    pub(super) shares: BTreeMap<String, u64>,
    /// Jobs that share an idempotency key with another job.
    pub(super) split: Vec<(String, String)>,
    /// The number of submits without an answer: their jobs may exist or not.
    pub(super) unanswered: u64,
    /// The number of refused submits, by error code.
    pub(super) refused: BTreeMap<String, u64>,
    /// The Redis primaries that were killed; each may have lost writes that no replica had.
    pub(super) deaths: Vec<Death>,
}

impl Ledger {
    /// Reads the workers' files. The last line of a killed worker may be incomplete.
    pub(super) fn read_executions(&mut self, file: &Path) -> io::Result<()> {
        let text = match fs::read_to_string(file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(job), Some(attempt), Some(fence), Some(worker), None) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            if let (Ok(attempt), Ok(fence)) = (attempt.parse(), fence.parse()) {
                self.executions.entry(job.to_owned()).or_default().push(Execution { attempt, fence });
                *self.shares.entry(worker.to_owned()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Accepted jobs whose end the drill has not seen yet.
    pub(super) fn open(&self) -> BTreeSet<String> {
        self.accepted.keys().filter(|id| !self.ends.contains_key(*id)).cloned().collect()
    }

    /// Records an end; only the first one of a job is kept.
    pub(super) fn saw_end(&mut self, id: &str, state: State, finished_at: Option<Time>) {
        self.ends.entry(id.to_owned()).or_insert(SeenEnd { state, finished_at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_line_by_line_and_a_torn_one_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("executions");
        let mut ledger = Ledger::default();
        ledger.read_executions(&file).unwrap();
        fs::write(&file, "a 1 10 w1\nb 1 11 w2\na 2 12 w2\na 3").unwrap();
        ledger.read_executions(&file).unwrap();
        let of = |attempt, fence| Execution { attempt, fence };
        assert_eq!(ledger.executions["a"], [of(1, 10), of(2, 12)]);
        assert_eq!(ledger.executions["b"], [of(1, 11)]);
        assert_eq!(ledger.shares, BTreeMap::from([("w1".to_owned(), 1), ("w2".to_owned(), 2)]));
    }
}
