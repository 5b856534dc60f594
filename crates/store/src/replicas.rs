//! Who runs: each replica announces itself, its loops and the jobs that it is deciding about.
//!
//! Knows: a string per replica with a time to live, and an index of their names, so that nothing
//! has to be scanned for. Promises: a replica that died is gone after [`REPLICA_TTL`], one that
//! stopped at once. Leaves to others: what a replica tells of its loops and settings (any JSON); nothing in
//! here is ever decided by.

use std::{collections::BTreeMap, future::Future, time::Duration};

use muster_domain::{JobId, Time, time::micros};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Store, StoreError,
    fleet::as_micros,
    keys::{self, Key},
    router::Command,
    script::{bytes, list},
};

/// A replica that has not announced itself for so long is gone.
pub const REPLICA_TTL: Duration = Duration::from_secs(15);
/// How often a replica announces itself when nothing changes.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// How often it looks whether a loop or a job's lock was won or lost.
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
    /// The jobs whose locks it holds. Absent in what an older version says.
    #[serde(default)]
    pub deciding: Vec<String>,
    /// Its settings, secrets masked, and where each comes from; none of a version that did not tell.
    #[serde(default)]
    pub settings: Vec<Value>,
}

impl Store {
    /// Announces a replica until `stop`, every few seconds and soon after its address changed or a loop or
    /// the lock of a job was won or lost; then takes the announcement back. `now` writes down what may have changed. Ends
    /// only by `stop`.
    pub async fn announce(&self, mut about: Replica, now: impl Fn(&mut Replica), stop: impl Future<Output = ()>) {
        let keep = async {
            let (mut told, mut next) = ((Vec::new(), Vec::new(), String::new()), Instant::now());
            loop {
                now(&mut about);
                let deciding = self.deciding.jobs();
                let news = (states(&about.loops), deciding.clone(), about.admin.clone());
                if Instant::now() >= next || news != told {
                    about.deciding = deciding.iter().map(JobId::to_string).collect();
                    about.seen_at = self.now();
                    match self.put_replica(&about).await {
                        Ok(()) => (told, next) = (news, Instant::now() + ANNOUNCE),
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
        Ok(self.replica_counts().await?.remove(service).unwrap_or(0))
    }

    /// The same for every service that has any. One read.
    pub async fn replica_counts(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        let since = self.now().0.saturating_sub(micros(REPLICA_TTL));
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(keys::replicas().as_bytes()).arg(since).arg("+inf");
        let mut counts = BTreeMap::new();
        for name in list(self.router().call(Command::plain(range)).await?)? {
            let name = String::from_utf8_lossy(&name);
            let service = name.split(' ').next().unwrap_or_default();
            *counts.entry(service.to_owned()).or_default() += 1;
        }
        Ok(counts)
    }
}

/// A replica in the index; a service's name has no space.
fn member(service: &str, instance: &str) -> String {
    format!("{service} {instance}")
}

/// Which loop stands how: what is worth telling at once.
fn states(loops: &[Value]) -> Vec<(String, String)> {
    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    loops.iter().map(|entry| (word(entry, "name"), word(entry, "state"))).collect()
}
