//! Runs of workflows: how a run is kept, so that it ends exactly as its definition says.
//!
//! Knows: the protocol of `services/workflow`, before its code: the order of writes, and what each write compares. The
//! engine of these models is a handful of lines, because the definitions are fixed and small. What a definition means
//! is tested elsewhere. Five models, each with its own definition:
//!
//! - [`keep`]: two job steps, one after the other: save with outbox, carry out, clear, look, cancel against submit.
//! - [`items`]: a for-each of two items: the two cursors, absence, retention, the join.
//! - [`signals`]: start, pause, and two signals that come before their steps.
//! - [`children`]: a sub-run: start, end, cancel through the parent.
//! - [`stops`]: two steps at the same time, of which one ends the other: failure, time-out, compensation.
//!
//! In all of them two replicas both believe that they own the run: there are no leases, because correctness must not
//! depend on them. A replica may be slow for any time between two writes, which also stands for runs that it keeps in
//! memory. A failover loses the last save or any number of saves before it ([`Kept`]). What the bus holds is read
//! again after a failover, in one step; until then `reread` is set.
//!
//! Abstracts from: the life of a job (absent, alive, ended: the other models have it), and the fields of the hash: a
//! save writes the whole document. A home is near or far, as in [`super::backlog`].

#[path = "runs/children.rs"]
pub(crate) mod children;
#[path = "runs/items.rs"]
pub(crate) mod items;
#[path = "runs/keep.rs"]
pub(crate) mod keep;
#[path = "runs/signals.rs"]
pub(crate) mod signals;
#[path = "runs/stops.rs"]
pub(crate) mod stops;

use super::record::Age;

/// The replicas.
const WHO: [&str; 2] = ["W1", "W2"];

/// A version that a process has read, compared with those in Redis. [`Age::Before`] is the version that the replica of
/// the primary has: after a failover it is current again, but what was read before a failover serves no save after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Seen {
    age: Age,
    /// Counted only in the variant without a nonce. A nonce never comes twice, so beside it the counter decides
    /// nothing.
    counter: u8,
}

impl Seen {
    const NONE: Seen = Seen { age: Age::Old, counter: 0 };
}

/// A run's hash, as its primary and the replica of the primary have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Kept<D> {
    now: D,
    /// What a failover brings back.
    replica: D,
    /// The replica has the current version.
    same: bool,
    counter: u8,
    replica_counter: u8,
    compares: Compares,
}

/// What a save compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Compares {
    /// The version, and whether the primary is the one that was read.
    VersionAndLife,
    /// The version, which a failover may bring back: a flaw.
    Version,
    /// The version's counter without the nonce: a flaw.
    Counter,
}

impl<D: Copy> Kept<D> {
    fn new(doc: D, compares: Compares) -> Kept<D> {
        Kept { now: doc, replica: doc, same: true, counter: 0, replica_counter: 0, compares }
    }

    /// Whether a version of this age may still match.
    fn is_over(&self, seen: Seen) -> bool {
        match self.compares {
            Compares::VersionAndLife => seen.age != Age::Now,
            Compares::Version => seen.age == Age::Old,
            Compares::Counter => false,
        }
    }

    fn read(&self) -> Seen {
        Seen { age: Age::Now, counter: self.counter }
    }

    fn matches(&self, seen: Seen) -> bool {
        if self.compares == Compares::Counter { seen.counter == self.counter } else { seen.age == Age::Now }
    }

    /// `run/save`. The caller has compared the version. If `lags`, the replica has not got the version before this one
    /// either. Returns the saver's new version; `holders` are those of all other processes.
    fn save<'a>(&mut self, doc: D, lags: bool, holders: impl Iterator<Item = &'a mut Seen>) -> Seen {
        let lags = lags && !self.same;
        for seen in holders {
            seen.age = match seen.age {
                Age::Now if lags => Age::Old,
                Age::Before if lags => Age::Before,
                age => age.older(),
            };
        }
        if !lags {
            (self.replica, self.replica_counter) = (self.now, self.counter);
        }
        self.now = doc;
        self.same = false;
        self.counter += u8::from(self.compares == Compares::Counter);
        self.read()
    }

    /// Both stores have everything that was written so far.
    fn caught_up<'a>(&mut self, holders: impl Iterator<Item = &'a mut Seen>) {
        (self.replica, self.replica_counter, self.same) = (self.now, self.counter, true);
        for seen in holders.filter(|seen| seen.age == Age::Before) {
            seen.age = Age::Old;
        }
    }

    /// The replica becomes the primary.
    fn fail_over<'a>(&mut self, holders: impl Iterator<Item = &'a mut Seen>) {
        for seen in holders {
            seen.age = match seen.age {
                _ if self.compares == Compares::VersionAndLife => Age::Old,
                Age::Before => Age::Now,
                Age::Now if self.same => Age::Now,
                _ => Age::Old,
            };
        }
        (self.now, self.counter, self.same) = (self.replica, self.replica_counter, true);
    }
}

/// When the run's home is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Home {
    None,
    Near,
    Far,
}

/// The record of a step's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Job {
    Absent,
    Lives,
    Succeeded,
    Failed,
    Cancelled,
}

impl Job {
    fn ended(self) -> bool {
        !matches!(self, Job::Absent | Job::Lives)
    }
}
