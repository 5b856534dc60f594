//! Who runs: each replica announces itself and its loops; and who leads, as the locks say.
//!
//! Knows: a string per replica with a time to live, and an index of their names, so that nothing
//! has to be scanned for. Promises: a replica that died is gone after [`REPLICA_TTL`], one that
//! stopped at once. Leaves to others: what a replica tells of its loops (any JSON); nothing in
//! here is ever decided by.

use std::{future::Future, time::Duration};

use muster_domain::{JobId, Time, time::micros};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    LeaderLock, Store, StoreError,
    fleet::as_micros,
    keys::{self, Key},
    router::Command,
    script::{bytes, list, number},
};

/// A replica that has not announced itself for so long is gone.
pub const REPLICA_TTL: Duration = Duration::from_secs(15);
/// How often a replica announces itself when nothing changes.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// How often it looks whether a loop was won or lost.
const LOOK: Duration = Duration::from_millis(500);
/// How long the last word may take.
const LAST_WORD: Duration = Duration::from_millis(500);
/// Names stay in the index this long after their last word.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A replica as it describes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// `muster-gateway` and so on.
    pub service: String,
    /// Its name.
    pub instance: String,
    /// Of the software.
    pub version: String,
    /// Where its admin port is.
    pub admin: String,
    /// Since when it runs.
    #[serde(with = "as_micros")]
    pub started_at: Time,
    /// When it said this.
    #[serde(with = "as_micros")]
    pub seen_at: Time,
    /// Its loops, as its admin port shows them; times in it are ages at `seen_at`.
    pub loops: Vec<Value>,
}

/// A leader's lock as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSeen {
    /// Which.
    pub lock: LeaderLock,
    /// Who holds it, if anybody does.
    pub holder: Option<LockHolder>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The replica's name and, after a `~`, the token of this life of it.
    pub owner: String,
    /// Grows with every new holder.
    pub fence: u64,
    /// How long the lock lasts unless it is renewed.
    pub left: Duration,
}

impl LockHolder {
    /// The replica's name.
    pub fn instance(&self) -> &str {
        self.owner.rsplit_once('~').map_or(&self.owner, |(name, _)| name)
    }
}

impl Store {
    /// Announces a replica until `stop`, every few seconds and soon after a loop was won or lost;
    /// then takes the announcement back. Ends only by `stop`.
    pub async fn announce(&self, mut about: Replica, loops: impl Fn() -> Vec<Value>, stop: impl Future<Output = ()>) {
        let keep = async {
            let (mut told, mut next) = (Vec::new(), Instant::now());
            loop {
                let now = loops();
                let states = states(&now);
                if Instant::now() >= next || states != told {
                    about.loops = now;
                    about.seen_at = self.now();
                    match self.put_replica(&about).await {
                        Ok(()) => (told, next) = (states, Instant::now() + ANNOUNCE),
                        Err(fault) => tracing::debug!(event = "announce_failed", detail = %fault, "not announced"),
                    }
                }
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = stop => {}
            () = keep => {}
        }
        // If it cannot be taken back it runs out by itself.
        let _ = timeout(LAST_WORD, self.drop_replica(&about.service, &about.instance)).await;
    }

    /// Announces a replica once.
    pub async fn put_replica(&self, replica: &Replica) -> Result<(), StoreError> {
        let text = serde_json::to_vec(replica).map_err(|fault| StoreError::Decode(fault.to_string()))?;
        let place = keys::replica(&replica.service, &replica.instance);
        let mut set = redis::cmd("SET");
        set.arg(place.as_bytes()).arg(text).arg("PX").arg(micros(REPLICA_TTL) / 1000);
        let index = keys::replicas();
        let mut add = redis::cmd("ZADD");
        add.arg(index.as_bytes()).arg(replica.seen_at.0).arg(member(&replica.service, &replica.instance));
        let mut old = redis::cmd("ZREMRANGEBYSCORE");
        old.arg(index.as_bytes()).arg("-inf").arg(replica.seen_at.0.saturating_sub(micros(REMEMBERED)));
        let calls = [set, add, old].map(Command::plain).to_vec();
        self.router().many(calls).await.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Takes a replica's announcement back.
    pub async fn drop_replica(&self, service: &str, instance: &str) -> Result<(), StoreError> {
        let (place, index) = (keys::replica(service, instance), keys::replicas());
        let mut del = redis::cmd("DEL");
        del.arg(place.as_bytes());
        let mut rem = redis::cmd("ZREM");
        rem.arg(index.as_bytes()).arg(member(service, instance));
        let calls = [del, rem].map(Command::plain).to_vec();
        self.router().many(calls).await.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Every replica that lives, by service and name.
    pub async fn replicas(&self) -> Result<Vec<Replica>, StoreError> {
        let index = keys::replicas();
        let mut range = redis::cmd("ZRANGE");
        range.arg(index.as_bytes()).arg(0).arg(-1);
        let mut names = list(self.router().call(Command::plain(range)).await?)?;
        names.sort();
        let texts = names.iter().filter_map(|name| std::str::from_utf8(name).ok()?.split_once(' '));
        let places: Vec<Key> = texts.map(|(service, instance)| keys::replica(service, instance)).collect();
        let get = |place: &Key| {
            let mut get = redis::cmd("GET");
            get.arg(place.as_bytes());
            Command::plain(get)
        };
        let mut found = Vec::with_capacity(places.len());
        for reply in self.router().many(places.iter().map(get).collect()).await {
            // One of another version that says it differently is not worth an error.
            found.extend(match reply? {
                redis::Value::Nil => None,
                value => serde_json::from_slice::<Replica>(&bytes(value)?).ok(),
            });
        }
        Ok(found)
    }

    /// How many replicas of a service have announced themselves within [`REPLICA_TTL`]. One read.
    pub async fn count_replicas(&self, service: &str) -> Result<usize, StoreError> {
        let since = self.now().0.saturating_sub(micros(REPLICA_TTL));
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(keys::replicas().as_bytes()).arg(since).arg("+inf");
        let names = list(self.router().call(Command::plain(range)).await?)?;
        let prefix = member(service, "");
        Ok(names.iter().filter(|name| name.starts_with(prefix.as_bytes())).count())
    }

    /// Every leader's lock, as it stands now.
    pub async fn leader_locks(&self) -> Result<Vec<LockSeen>, StoreError> {
        let ask = |name: &str, lock: LeaderLock| {
            let mut cmd = redis::cmd(name);
            cmd.arg(Key::from(lock).as_bytes());
            Command::plain(cmd)
        };
        let calls = LeaderLock::ALL.iter().flat_map(|lock| [ask("GET", *lock), ask("PTTL", *lock)]).collect();
        let mut replies = self.router().many(calls).await.into_iter();
        let mut seen = Vec::with_capacity(LeaderLock::ALL.len());
        for lock in LeaderLock::ALL {
            let (Some(value), Some(left)) = (replies.next(), replies.next()) else { break };
            let (value, left) = (value?, number::<i64>(&left?)?);
            let holder = match value {
                redis::Value::Nil => None,
                value => Some(holder(&bytes(value)?, Duration::from_millis(u64::try_from(left).unwrap_or(0)))?),
            };
            seen.push(LockSeen { lock, holder });
        }
        Ok(seen)
    }

    /// Which replica asks somebody about a job before it decides, if one does.
    pub async fn deciding(&self, job: JobId) -> Result<Option<String>, StoreError> {
        let mut cmd = redis::cmd("GET");
        cmd.arg(keys::deciding(job).as_bytes());
        let reply = self.router().call(Command::plain(cmd)).await?;
        let redis::Value::Nil = reply else {
            let LockHolder { owner, .. } = holder(&bytes(reply)?, Duration::ZERO)?;
            return Ok(Some(owner.split('~').next().unwrap_or_default().to_owned()));
        };
        Ok(None)
    }
}

/// A replica in the index; a service's name has no space.
fn member(service: &str, instance: &str) -> String {
    format!("{service} {instance}")
}

fn holder(raw: &[u8], left: Duration) -> Result<LockHolder, StoreError> {
    let wrong = || StoreError::Decode("a lock".into());
    let (owner, fence) = std::str::from_utf8(raw).ok().and_then(|text| text.rsplit_once(':')).ok_or_else(wrong)?;
    Ok(LockHolder { owner: owner.to_owned(), fence: fence.parse().map_err(|_| wrong())?, left })
}

/// Which loop stands how: what is worth telling at once.
fn states(loops: &[Value]) -> Vec<(String, String)> {
    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    loops.iter().map(|entry| (word(entry, "name"), word(entry, "state"))).collect()
}
