//! Scrub: a walk over all job records that puts back what their indexes have lost.
//!
//! Knows: where every record should also be found: its home while it is alive or its end is not
//! finished, its backlog while it is queued, its tenant's listing always. Promises: an entry that is there is never touched;
//! what is put back is what the record said a moment ago. A job that moves meanwhile is left with
//! an entry too many, which harms nobody: the look at an ended job's home removes it, whoever
//! claims an outdated queue entry removes it, and a listing shows a job only where its record says
//! it stands. A page of the walk counts as seen only once all of it was put back, so an outage is
//! waited for and not skipped. A record itself is changed only where a clock that ran ahead wrote it (`job/set_back`),
//! and the script judges that. Leaves to others: when to walk and how fast, and what the jobs need.

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

/// Entries looked at in one shard of homes at a time, for those that belong to another.
const STRAYS: usize = 500;

/// How far an endless walk over all records has come, node by node. Losing it costs a pass.
#[derive(Debug, Default)]
pub struct ScrubWalk {
    nodes: Vec<Stand>,
    /// The pass under way is one that nobody waits with.
    urgent: bool,
    /// So is the next: something happened during this one.
    again: bool,
    /// The next shard of homes to be looked through.
    shard: u8,
}

/// How far the walk has come on one node.
#[derive(Debug)]
struct Stand {
    node: NodeAddr,
    /// Which life of the node it is: a restart may have lost writes.
    run: Option<String>,
    cursor: u64,
    seen: bool,
}

impl ScrubWalk {
    /// A walk that has yet to begin; its first pass is urgent.
    pub fn new() -> ScrubWalk {
        ScrubWalk { urgent: true, ..ScrubWalk::default() }
    }

    /// All of it, at once: something may have been lost. An urgent pass that is under way is finished first,
    /// so that one change after another, as while slots move, cannot keep it from ever ending.
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

    /// Whether the pass under way should be finished at once.
    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// Takes note of who serves what now. A node that is new, or has started again, is a reason to hurry.
    fn meet(&mut self, primaries: Vec<(NodeAddr, Option<String>)>) {
        let mut met = Vec::with_capacity(primaries.len());
        let mut lost = false;
        for (node, run) in primaries {
            let known = self.nodes.iter().position(|stand| stand.node == node).map(|n| self.nodes.swap_remove(n));
            let stand = match known {
                // One that does not tell is not called another.
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

    /// Whether a pass has just ended; the next then begins.
    fn passed(&mut self) -> bool {
        let passed = self.nodes.iter().all(|stand| stand.seen);
        if passed {
            self.nodes.iter_mut().for_each(|stand| stand.seen = false);
            self.urgent = std::mem::take(&mut self.again);
        }
        passed
    }
}

/// What one step of the walk saw and put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Records that were looked at.
    pub scanned: u64,
    /// Homes that were put back.
    pub homes: u64,
    /// Of these, homes of jobs that ended badly and left no dead letter: their ends are to be finished.
    pub unfinished: u64,
    /// Homes that were due later than their records allow, brought nearer.
    pub late: u64,
    /// Records with moments by a clock that ran ahead, mended.
    pub ahead: u64,
    /// Queue entries of queued jobs.
    pub queued: u64,
    /// Places in listings, and listings that nobody had noted.
    pub listings: u64,
    /// Homes in a shard that is not theirs, removed.
    pub strays: u64,
    /// Records, or entries, that Redis has but not in a shape that can be read or written.
    pub unreadable: u64,
    /// Nodes that did not answer for all: the same is looked at again.
    pub faults: u64,
    /// When the first home that was put back is due.
    pub soonest: Option<Duration>,
    /// Where queue entries were put back.
    pub lines: BTreeSet<(Tenant, Line)>,
    /// The pass is over; the next step begins another.
    pub passed: bool,
}

/// What became of a part of a step.
enum Part {
    Done(u64),
    /// Nothing that waiting mends.
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
    /// How many were done; notes what went wrong.
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
    /// One step of the walk: looks at about `limit` records, over all primaries together, and puts back
    /// what is missing. Repeating is harmless. Fails only if it is not known who the primaries are, or if the
    /// lease is lost: then what is left of the step is not done, and is looked at again.
    ///
    /// A leader's alone:
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

    /// The primaries, and which life of each it is, if it tells.
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

    /// The next page of one node's records: where to go on, zero at the end, and whose they are.
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

    /// Looks where these jobs should be found, and puts back what is missing.
    async fn put_back(&self, ids: &[JobId], done: &mut Scrubbed) {
        let records = self.readable(ids, done).await;
        done.scanned += records.len() as u64;
        let (listed, ()) = tokio::join!(self.relist(&records), self.put_entries_back(&records, done));
        for listed in listed {
            done.listings += done.take(listed);
        }
    }

    /// Removes homes that stand, due, in a shard that is not theirs: no reader could ever re-score
    /// them. The job's own home is what counts, and is put back if it is missing.
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
        // What happens during an urgent pass is looked for by another one.
        let mut walk = ScrubWalk::new();
        walk.meet(nodes(&[("a", Some("1")), ("b", Some("1"))]));
        walk.nodes[0].cursor = 77;
        walk.hurry();
        assert_eq!(walk.nodes[0].cursor, 77);
        assert!(ends_pass(&mut walk) && walk.is_urgent());
        assert!(ends_pass(&mut walk) && !walk.is_urgent());
        // One that is gone, or does not tell, has lost nothing that the others would show.
        let mut walk = ScrubWalk::new();
        walk.meet(nodes(&[("a", Some("1")), ("b", Some("1"))]));
        ends_pass(&mut walk);
        walk.nodes[0].cursor = 77;
        walk.meet(nodes(&[("a", None)]));
        assert!(!walk.is_urgent());
        assert_eq!((walk.nodes.len(), walk.nodes[0].cursor), (1, 77));
    }
}
