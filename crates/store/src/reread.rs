//! Detects which primaries may have lost writes, and creates lost jobs again.
//!
//! Each primary has a *life*: a restart, a failover or a promotion begins another life, which may lack the last writes
//! of the one before. A mark in Redis holds the lives that the last complete reread saw. A job that is created again
//! keeps its id and its time of acceptance, and gets its home and its place in the listing before its record. A job
//! whose record or stub exists is left alone. `bus` reads the messages that NATS kept; `loops/reread` decides when to
//! look.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures_util::future::join_all;
use muster_domain::{JobId, Tenant, Time};
use redis::Value;
use serde::{Deserialize, Serialize};

use crate::{
    LeaderLock, Lease, NewJob, Store, StoreError, Submitted, keys,
    router::{Command, NodeAddr},
    script::{bytes, number},
    scripts,
};

/// The primaries, as they answer now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// The current life of each primary.
    lives: BTreeMap<String, String>,
    /// Primaries that do not answer, or answer as replicas.
    silent: Vec<String>,
}

/// The state of the last complete reread: until then nothing was missing, or everything missing was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RereadMark {
    lives: BTreeMap<String, String>,
    /// The time of the stream's last message then, on the stream's clock, in microseconds; 0 = never.
    whole_at: u64,
}

/// The mark together with its stored bytes, for compare-and-set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownMark {
    /// The mark.
    pub mark: RereadMark,
    raw: Vec<u8>,
}

impl RereadMark {
    /// The time on the stream's clock after which Redis may have lost something; none if no reread was completed.
    pub fn whole_at(&self) -> Option<Time> {
        Time(self.whole_at).some()
    }

    /// The mark after a reread that saw these lives, ended with the stream's message at `end`, and restored everything
    /// that was missing. While a primary is silent, `whole_at` does not advance.
    #[must_use]
    pub fn after(&self, met: &Lives, end: Time) -> RereadMark {
        let mut lives = met.lives.clone();
        let stays = met.silent.iter().filter_map(|node| Some((node.clone(), self.lives.get(node)?.clone())));
        lives.extend(stays);
        RereadMark { lives, whole_at: if met.silent.is_empty() { end.0 } else { self.whole_at } }
    }
}

impl Lives {
    /// Whether a primary is in another life than the mark says, and may have lost writes between the two. A life has a
    /// name of its own, by which every replica knows it, also one that reaches the node at another address than the
    /// replica that wrote the mark.
    pub fn may_have_forgotten(&self, known: &RereadMark) -> bool {
        let same = |node: &String, life: &String| match life == UNDISCLOSED {
            true => known.lives.get(node) == Some(life),
            false => known.lives.values().any(|known| known == life),
        };
        self.lives.iter().any(|(node, life)| !same(node, life))
    }

    fn of(answers: Vec<(NodeAddr, Option<String>)>) -> Lives {
        let mut met = Lives::default();
        for (node, info) in answers {
            match info.as_deref().map(life) {
                Some(Some(life)) => _ = met.lives.insert(node.to_string(), life),
                _ => met.silent.push(node.to_string()),
            }
        }
        met
    }
}

/// The life of a node that discloses nothing: always the same, so only its address tells it from another node.
const UNDISCLOSED: &str = "/";

/// A node's life as one word; none if the node is not a primary.
fn life(info: &str) -> Option<String> {
    let said = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
    // A restart changes the first, a promotion changes the second.
    (said("role:") != "slave").then(|| format!("{}/{}", said("run_id:"), said("master_replid:")))
}

impl Store {
    /// Notes for a day that Redis lacked jobs that the streams remembered, for the doctor. A later note replaces an
    /// earlier one.
    pub async fn note_emptied(&self, found: &str) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(keys::emptied().as_bytes()).arg(format!("{} {found}", self.now().rfc3339())).arg("EX").arg(24 * 3600);
        self.router().call(Command::plain(set)).await.map(|_| ())
    }

    /// The note of [`Store::note_emptied`]: the time, and what was found.
    pub async fn emptied_note(&self) -> Result<Option<String>, StoreError> {
        let mut get = redis::cmd("GET");
        get.arg(keys::emptied().as_bytes());
        match self.router().call(Command::plain(get)).await? {
            Value::Nil => Ok(None),
            value => Ok(Some(String::from_utf8_lossy(&bytes(value)?).into_owned())),
        }
    }

    /// How many of these jobs have a record or a stub. One pipeline.
    pub async fn exist(&self, ids: &[JobId]) -> Result<u64, StoreError> {
        let command = |id: &JobId| {
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(keys::job(*id).as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(command).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + number::<u64>(&reply?)?))
    }

    /// The current life of each primary. Fails only if no primary is known. Only reads.
    pub async fn lives(&self) -> Result<Lives, StoreError> {
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("replication");
        let info = &info;
        let ask = async |node: NodeAddr| {
            let said = match self.router().call_node(&node, info).await {
                Ok(reply) => bytes(reply).ok().map(|text| String::from_utf8_lossy(&text).into_owned()),
                Err(fault) if fault.is_retryable() => None,
                // The node answers, but refuses to disclose it.
                Err(_) => Some(String::new()),
            };
            (node, said)
        };
        Ok(Lives::of(join_all(self.router().primaries().await?.into_iter().map(ask)).await))
    }

    /// The mark of the last complete reread; an empty one if there is none, or if Redis lost it.
    pub async fn reread_mark(&self) -> Result<KnownMark, StoreError> {
        self.known_mark(keys::reread_mark()).await
    }

    /// The same for the operations on runs.
    pub async fn run_reread_mark(&self) -> Result<KnownMark, StoreError> {
        self.known_mark(keys::run_reread_mark()).await
    }

    async fn known_mark(&self, key: keys::Key) -> Result<KnownMark, StoreError> {
        let mut cmd = redis::cmd("GET");
        cmd.arg(key.as_bytes());
        let raw = match self.router().call(Command::plain(cmd)).await? {
            Value::Nil => Vec::new(),
            value => bytes(value)?,
        };
        // An unreadable mark counts as none.
        Ok(KnownMark { mark: serde_json::from_slice(&raw).unwrap_or_default(), raw })
    }

    /// Replaces the mark in one step if it is still the one that was read. Returns false and writes nothing if it is
    /// not: then another replica did a reread, or a restore from a backup removed the mark so that everything is read
    /// again. If the answer to a successful call is lost, its repetition returns false.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{KnownMark, Lease, RereadMark, Store};
    /// async fn tick(store: &Store, lease: &Lease, known: &KnownMark, mark: &RereadMark) {
    ///     store.move_reread_mark(lease, known, mark).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{KnownMark, RereadMark, Store};
    /// async fn tick(store: &Store, known: &KnownMark, mark: &RereadMark) {
    ///     store.move_reread_mark(known, mark).await;
    /// }
    /// ```
    pub async fn move_reread_mark(
        &self,
        lease: &Lease,
        known: &KnownMark,
        mark: &RereadMark,
    ) -> Result<bool, StoreError> {
        lease.leads(LeaderLock::Reread)?;
        self.move_mark(keys::reread_mark(), known, mark).await
    }

    /// The same for the operations on runs.
    pub async fn move_run_reread_mark(
        &self,
        lease: &Lease,
        known: &KnownMark,
        mark: &RereadMark,
    ) -> Result<bool, StoreError> {
        lease.leads(LeaderLock::RunReread)?;
        self.move_mark(keys::run_reread_mark(), known, mark).await
    }

    async fn move_mark(&self, key: keys::Key, known: &KnownMark, mark: &RereadMark) -> Result<bool, StoreError> {
        let text = serde_json::to_vec(mark).map_err(|e| StoreError::Decode(e.to_string()))?;
        let call = scripts::reread::Mark { key, read: known.raw.clone(), mark: text };
        Ok(self.run(call).await?.moved == 1)
    }

    /// Whether each of these jobs has neither a record nor a stub. One answer per job.
    pub async fn are_gone(&self, ids: &[JobId]) -> Vec<Result<bool, StoreError>> {
        let ask = |id: &JobId| {
            let key = keys::job(*id);
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(ask).collect()).await;
        replies.into_iter().map(|reply| Ok(number::<u64>(&reply?)? == 0)).collect()
    }

    /// Creates lost jobs again, each with its time of acceptance: first their homes, due after `look`, and their places
    /// in the listings, then the records. Each job has its own answer; an existing job is not changed. Repeating is
    /// harmless.
    pub async fn recreate(&self, jobs: &mut [(NewJob, Time)], look: Duration) -> Vec<Result<Submitted, StoreError>> {
        let ids: Vec<JobId> = jobs.iter().map(|(job, _)| job.id).collect();
        let (homes, placed) = tokio::join!(self.set_each_home(&ids, look), self.place_again(jobs));
        let mut refused: HashMap<JobId, StoreError> = HashMap::new();
        let mut ready = Vec::with_capacity(jobs.len());
        for (((job, accepted), home), place) in jobs.iter_mut().zip(homes).zip(placed) {
            match home.and(place) {
                Ok(place) => {
                    job.place = Some(place);
                    ready.push((job.clone(), *accepted));
                }
                Err(fault) => _ = refused.insert(job.id, fault),
            }
        }
        let mut made = self.submit_again(&ready).await.into_iter();
        let lost = || Err(StoreError::Decode("no answer".into()));
        ids.iter().map(|id| refused.remove(id).map_or_else(|| made.next().unwrap_or_else(lost), Err)).collect()
    }

    /// Puts jobs into the listings of the time when they were accepted. A failure affects only its own tenant.
    async fn place_again(&self, jobs: &[(NewJob, Time)]) -> Vec<Result<crate::Place, StoreError>> {
        let mut tenants: BTreeMap<&Tenant, Vec<usize>> = BTreeMap::new();
        for (n, (job, _)) in jobs.iter().enumerate() {
            tenants.entry(&job.spec.tenant).or_default().push(n);
        }
        let mut places: Vec<_> = jobs.iter().map(|_| Err(StoreError::Decode("no place".into()))).collect();
        for (tenant, members) in tenants {
            let entries: Vec<_> = members.iter().map(|n| (jobs[*n].0.id, jobs[*n].1)).collect();
            match self.index_jobs(tenant, &entries).await {
                Ok(placed) => members.into_iter().zip(placed).for_each(|(n, place)| places[n] = Ok(place)),
                Err(fault) => members.into_iter().for_each(|n| places[n] = Err(fault.clone())),
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: Time = Time(100);
    const NOW: Time = Time(900);

    fn said(run: &str, replication: &str) -> Option<String> {
        Some(format!("# Server\r\nrun_id:{run}\r\n# Replication\r\nrole:master\r\nmaster_replid:{replication}\r\n"))
    }

    fn lives(answers: &[(&str, Option<String>)]) -> Lives {
        Lives::of(answers.iter().map(|(host, info)| (NodeAddr::new(host, 1), info.clone())).collect())
    }

    #[test]
    fn a_restart_a_promotion_and_a_newcomer_may_have_forgotten_something() {
        let met = lives(&[("a", said("1", "x")), ("b", said("2", "y"))]);
        assert!(met.may_have_forgotten(&RereadMark::default()), "nobody has looked yet");
        let known = RereadMark::default().after(&met, THEN);
        assert!(!met.may_have_forgotten(&known));
        assert_eq!(known.whole_at(), Some(THEN));
        let b = || ("b", said("2", "y"));
        assert!(lives(&[("a", said("9", "x")), b()]).may_have_forgotten(&known), "started again");
        assert!(lives(&[("a", said("1", "z")), b()]).may_have_forgotten(&known), "followed another, and leads again");
        assert!(lives(&[("c", said("3", "x")), b()]).may_have_forgotten(&known), "another in its place");
        assert!(!lives(&[("c", said("1", "x")), b()]).may_have_forgotten(&known), "the same one at another address");
        assert!(!lives(&[b()]).may_have_forgotten(&known), "one that has no slots any more");
    }

    #[test]
    fn while_somebody_is_silent_nothing_later_counts_as_whole() {
        let known = RereadMark::default().after(&lives(&[("a", said("1", "x")), ("b", said("2", "y"))]), THEN);
        let follower = Some("run_id:1\r\nrole:slave\r\nmaster_replid:x\r\n".to_owned());
        for silent in [None, follower] {
            let met = lives(&[("a", silent), ("b", said("2", "y"))]);
            assert!(!met.may_have_forgotten(&known), "who says nothing has not lost anything yet");
            let mark = known.after(&met, NOW);
            assert_eq!(mark, known);
            assert!(lives(&[("a", said("7", "x")), ("b", said("2", "y"))]).may_have_forgotten(&mark));
        }
        assert_eq!(RereadMark::default().after(&lives(&[("a", None)]), NOW).whole_at(), None);
    }

    #[test]
    fn one_that_will_not_say_is_known_by_its_address() {
        let met = lives(&[("a", Some(String::new()))]);
        let known = RereadMark::default().after(&met, THEN);
        assert!(!lives(&[("a", Some(String::new()))]).may_have_forgotten(&known));
        assert!(lives(&[("b", Some(String::new()))]).may_have_forgotten(&known));
    }
}
