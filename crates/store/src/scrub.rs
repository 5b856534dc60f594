//! Scrub: a walk over all job records that restores what their indexes have lost.
//!
//! This module knows where every record must also be found: in its home while the job is alive or its effects are not
//! done, in its backlog while the job is queued, and always in its tenant's listing. The scrub never changes an entry
//! that is correct. It restores what the record said a moment ago. If the job moves in the meantime, one entry too many
//! is left, which is harmless: the check of an ended job removes its home, a scheduler that claims an outdated queue
//! entry removes it, and a listing shows a job only at the place that its record names. A page of the walk counts as
//! seen only after all of it was restored, so the walk waits for an outage instead of skipping records. The
//! scrub changes a record itself only where a clock that ran ahead wrote it; the script `job/set_back` judges that. The
//! callers decide when to walk and how fast, and the reconciler what the jobs need.

mod entries;
mod listings;

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use muster_domain::{JobId, Line, Tenant, ids::SHARDS};
use redis::Value;

use crate::{
    HomeKind, LeaderLock, Lease, Store, StoreError,
    homes::text,
    keys,
    router::{Command, NodeAddr},
    script::{bytes, list, number},
};

/// The most due entries of one shard that a step checks for homes of other shards.
const STRAYS: usize = 500;

/// The progress of an endless walk over all records, node by node. If it is lost, a pass is repeated.
#[derive(Debug, Default)]
pub struct ScrubWalk {
    nodes: Vec<Stand>,
    /// The current pass should be finished at once.
    urgent: bool,
    /// So should the next one: something happened during the current pass.
    again: bool,
    /// The next shard of homes to check for strays.
    shard: u8,
}

/// The progress of the walk on one node.
#[derive(Debug)]
struct Stand {
    node: NodeAddr,
    /// The node's run id. It changes with a restart, which may have lost writes.
    run: Option<String>,
    cursor: u64,
    seen: bool,
}

impl ScrubWalk {
    /// A walk that has not begun yet; its first pass is urgent.
    pub fn new() -> ScrubWalk {
        ScrubWalk { urgent: true, ..ScrubWalk::default() }
    }

    /// Asks for a whole pass at once, because something may have been lost. If an urgent pass is under way, it is
    /// finished first, so that a series of changes, as while slots move, cannot prevent its end.
    pub fn hurry(&mut self) {
        if self.urgent && self.nodes.iter().any(|stand| stand.seen || stand.cursor > 0) {
            self.again = true;
            return;
        }
        self.urgent = true;
        for stand in &mut self.nodes {
            (stand.cursor, stand.seen) = (0, false);
        }
    }

    /// Whether the current pass should be finished at once.
    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// Updates the primaries. A new node, or one that has restarted, makes the walk urgent.
    fn meet(&mut self, primaries: Vec<(NodeAddr, Option<String>)>) {
        let mut met = Vec::with_capacity(primaries.len());
        let mut lost = false;
        for (node, run) in primaries {
            let known = self.nodes.iter().position(|stand| stand.node == node).map(|n| self.nodes.swap_remove(n));
            let stand = match known {
                // A node that does not disclose its run id counts as the same node.
                Some(stand) if run.is_none() || stand.run.is_none() => Stand { run: run.or(stand.run), ..stand },
                Some(stand) => {
                    lost |= stand.run != run;
                    Stand { run, ..stand }
                }
                None => {
                    lost = true;
                    Stand { node, run, cursor: 0, seen: false }
                }
            };
            met.push(stand);
        }
        self.nodes = met;
        if lost {
            self.hurry();
        }
    }

    /// Whether a pass has just ended; if so, begins the next.
    fn passed(&mut self) -> bool {
        let passed = self.nodes.iter().all(|stand| stand.seen);
        if passed {
            self.nodes.iter_mut().for_each(|stand| stand.seen = false);
            self.urgent = std::mem::take(&mut self.again);
        }
        passed
    }
}

/// The result of one step of the walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records that were checked.
    pub scanned: u64,
    /// Homes that were restored.
    pub homes: u64,
    /// How many of these belong to jobs that ended badly without a dead letter: the check then does the effects of the
    /// end.
    pub unfinished: u64,
    /// Homes that were due later than their records allow, and were forwarded.
    pub late: u64,
    /// Records with times from a clock that ran ahead, which were set back.
    pub ahead: u64,
    /// Queue entries that were restored.
    pub queued: u64,
    /// Places in listings that were restored, and listings that had not been noted.
    pub listings: u64,
    /// Homes that were removed because they were in the shard of another job.
    pub strays: u64,
    /// Records or entries whose data cannot be read or written.
    pub unreadable: u64,
    /// Errors that may pass: the same records are checked again.
    pub faults: u64,
    /// When the first of the restored homes is due.
    pub soonest: Option<Duration>,
    /// The lines in which queue entries were restored.
    pub lines: BTreeSet<(Tenant, Line)>,
    /// The pass is over; the next step begins another.
    pub passed: bool,
}

/// The result of a part of a step.
enum Part {
    Done(u64),
    /// Waiting does not repair it.
    Unreadable,
    Fault,
}

impl From<Result<u64, StoreError>> for Part {
    fn from(outcome: Result<u64, StoreError>) -> Part {
        match outcome {
            Ok(n) => Part::Done(n),
            Err(fault) if fault.is_retryable() => Part::Fault,
            Err(_) => Part::Unreadable,
        }
    }
}

impl Scrubbed {
    /// Returns the number of restored items; counts the failures.
    fn take(&mut self, part: impl Into<Part>) -> u64 {
        match part.into() {
            Part::Done(n) => return n,
            Part::Unreadable => self.unreadable += 1,
            Part::Fault => self.faults += 1,
        }
        0
    }
}

impl Store {
    /// One step of the walk: checks about `limit` records, over all primaries together, and restores what is missing.
    /// Repeating is harmless. Fails only if no primary is known, or if the lease is lost: then the rest of the step is
    /// not done, and is checked again.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{Lease, ScrubWalk, Store};
    /// async fn tick(store: &Store, lease: &Lease, walk: &mut ScrubWalk) {
    ///     store.scrub(lease, walk, 500).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{ScrubWalk, Store};
    /// async fn tick(store: &Store, walk: &mut ScrubWalk) {
    ///     store.scrub(walk, 500).await;
    /// }
    /// ```
    pub async fn scrub(&self, lease: &Lease, walk: &mut ScrubWalk, limit: usize) -> Result<Scrubbed, StoreError> {
        lease.leads(LeaderLock::Scrub)?;
        walk.meet(self.runs().await?);
        let mut done = Scrubbed::default();
        let open: Vec<usize> = (0..walk.nodes.len()).filter(|n| !walk.nodes[*n].seen).collect();
        let share = (limit / open.len().max(1)).max(1);
        let pages = open.iter().map(|n| self.scan(&walk.nodes[*n], share));
        for (n, page) in open.iter().zip(join_all(pages).await) {
            let Ok((cursor, ids)) = page else {
                done.faults += 1;
                continue;
            };
            let faults = done.faults;
            lease.leads(LeaderLock::Scrub)?;
            self.put_back(&ids, &mut done).await;
            if done.faults == faults {
                let stand = &mut walk.nodes[*n];
                (stand.cursor, stand.seen) = (cursor, cursor == 0);
            }
        }
        lease.leads(LeaderLock::Scrub)?;
        let shard = walk.shard % SHARDS;
        let strays = self.drop_strays(shard).await;
        done.strays = done.take(strays);
        walk.shard = (shard + 1) % SHARDS;
        done.passed = walk.passed();
        Ok(done)
    }

    /// The primaries and, if they disclose it, their run ids.
    async fn runs(&self) -> Result<Vec<(NodeAddr, Option<String>)>, StoreError> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let info = &info;
        let ask = async |node: NodeAddr| {
            let reply = self.router().call_node(&node, info).await.and_then(bytes).unwrap_or_default();
            let text = String::from_utf8_lossy(&reply);
            let run = text.lines().find_map(|line| line.strip_prefix("run_id:")).map(|run| run.trim().to_owned());
            (node, run)
        };
        Ok(join_all(self.router().primaries().await?.into_iter().map(ask)).await)
    }

    /// The next page of one node's records: the cursor to continue with (zero at the end), and the jobs.
    async fn scan(&self, stand: &Stand, count: usize) -> Result<(u64, Vec<JobId>), StoreError> {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(stand.cursor).arg("MATCH").arg(keys::ALL_JOBS).arg("COUNT").arg(count);
        let Value::Array(reply) = self.router().call_node(&stand.node, &cmd).await? else {
            return Err(StoreError::Decode("SCAN".into()));
        };
        let [cursor, found] = <[Value; 2]>::try_from(reply).map_err(|_| StoreError::Decode("SCAN".into()))?;
        let ids: BTreeSet<JobId> = list(found)?.iter().filter_map(|key| keys::job_of(key)).collect();
        Ok((number(&cursor)?, ids.into_iter().collect()))
    }

    /// Checks the indexes of these jobs, and restores what is missing.
    async fn put_back(&self, ids: &[JobId], done: &mut Scrubbed) {
        let records = self.readable(ids, done).await;
        done.scanned += records.len() as u64;
        let (listed, ()) = tokio::join!(self.relist(&records), self.put_entries_back(&records, done));
        for listed in listed {
            done.listings += done.take(listed);
        }
    }

    /// Removes due homes that are in the shard of another job: the reconciler could never give them a new time. The
    /// job's own home is the one that counts, and is restored if it is missing.
    async fn drop_strays(&self, shard: u8) -> Result<u64, StoreError> {
        let due = self.due_homes(shard, STRAYS).await?.entries;
        let strays: Vec<JobId> = due.into_iter().map(|entry| entry.0).filter(|id| id.shard() != shard).collect();
        if strays.is_empty() {
            return Ok(0);
        }
        let key = keys::homes(HomeKind::Job, shard);
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(key.as_bytes());
        for id in strays {
            cmd.arg(text(id));
        }
        number(&self.router().call(Command::plain(cmd)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(runs: &[(&str, Option<&str>)]) -> Vec<(NodeAddr, Option<String>)> {
        runs.iter().map(|(host, run)| (NodeAddr::new(host, 1), run.map(str::to_owned))).collect()
    }

    fn ends_pass(walk: &mut ScrubWalk) -> bool {
        walk.nodes.iter_mut().for_each(|stand| (stand.cursor, stand.seen) = (0, true));
        walk.passed()
    }

    #[test]
    fn the_first_pass_is_urgent_and_the_next_are_not() {
        let mut walk = ScrubWalk::new();
        walk.meet(nodes(&[("a", Some("1")), ("b", None)]));
        assert!(walk.is_urgent() && !walk.passed());
        assert!(ends_pass(&mut walk) && !walk.is_urgent());
        walk.meet(nodes(&[("b", Some("1")), ("a", Some("1"))]));
        assert!(!walk.is_urgent() && ends_pass(&mut walk));
    }

    #[test]
    fn a_new_primary_and_one_that_started_again_begin_an_urgent_pass() {
        for change in [&[("a", Some("1")), ("c", Some("1"))], &[("a", Some("2")), ("b", Some("1"))]] {
            let mut walk = ScrubWalk::new();
            walk.meet(nodes(&[("a", Some("1")), ("b", Some("1"))]));
            ends_pass(&mut walk);
            walk.nodes[0].cursor = 77;
            walk.meet(nodes(change));
            assert!(walk.is_urgent() && walk.nodes.iter().all(|stand| stand.cursor == 0 && !stand.seen));
        }
        // A change during an urgent pass asks for another one.
        let mut walk = ScrubWalk::new();
        walk.meet(nodes(&[("a", Some("1")), ("b", Some("1"))]));
        walk.nodes[0].cursor = 77;
        walk.hurry();
        assert_eq!(walk.nodes[0].cursor, 77);
        assert!(ends_pass(&mut walk) && walk.is_urgent());
        assert!(ends_pass(&mut walk) && !walk.is_urgent());
        // A node that is gone, or discloses no run id, has lost nothing that the other nodes would show.
        let mut walk = ScrubWalk::new();
        walk.meet(nodes(&[("a", Some("1")), ("b", Some("1"))]));
        ends_pass(&mut walk);
        walk.nodes[0].cursor = 77;
        walk.meet(nodes(&[("a", None)]));
        assert!(!walk.is_urgent());
        assert_eq!((walk.nodes.len(), walk.nodes[0].cursor), (1, 77));
    }
}
