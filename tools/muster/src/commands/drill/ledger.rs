//! What a drill knows without asking the stack: every answer it was given, every end it once saw,
//! and every execution, as the workers wrote them down. The checker holds the stack to it.

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
    /// When it was asked for, and when the answer was there: it was written between the two.
    pub(super) between: (Time, Time),
    /// A replica had it before the answer.
    pub(super) replicated: bool,
}

/// An end, when it was seen for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenEnd {
    pub(super) state: State,
    pub(super) finished_at: Option<Time>,
}

/// One line of the workers' file: a handler began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Execution {
    pub(super) attempt: u32,
    pub(super) fence: u64,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) accepted: BTreeMap<String, Accepted>,
    pub(super) ends: BTreeMap<String, SeenEnd>,
    pub(super) executions: BTreeMap<String, Vec<Execution>>,
    /// How many of them each worker had.
    pub(super) shares: BTreeMap<String, u64>,
    /// Jobs that share an idempotency key with another job.
    pub(super) split: Vec<(String, String)>,
    /// Submits whose answer never came: the job may exist or not.
    pub(super) unanswered: u64,
    /// Submits that were refused, by code.
    pub(super) refused: BTreeMap<String, u64>,
    /// Redis primaries that were killed, each perhaps with writes that no replica had.
    pub(super) deaths: Vec<Death>,
}

impl Ledger {
    /// Reads what the workers wrote. The last line of a worker that was killed may be torn.
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

    /// Accepted jobs whose end was not seen yet.
    pub(super) fn open(&self) -> BTreeSet<String> {
        self.accepted.keys().filter(|id| !self.ends.contains_key(*id)).cloned().collect()
    }

    /// Notes an end; the first one counts.
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
