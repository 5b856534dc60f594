//! The live replicas: each replica announces itself, its loops and the jobs that it is deciding about.
//!
//! There is one string per replica with a time to live, and an index of the replicas' names, so that no reader has to
//! scan for keys. A replica that died disappears after [`REPLICA_TTL`], one that stopped disappears at once. The
//! replica itself chooses what it announces about its loops and settings (any JSON). No decision depends on
//! announcements.

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

/// A replica that has not announced itself for this long counts as gone.
pub const REPLICA_TTL: Duration = Duration::from_secs(15);
/// How often a replica announces itself when nothing changes.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// How often a replica checks whether it won or lost a loop or a job's lock.
const LOOK: Duration = Duration::from_millis(500);
/// How long the removal of the announcement at the stop may take.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How long a name stays in the index after the replica's last announcement.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The announcement of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The name of the service, such as `muster-gateway`.
    pub service: String,
    /// The name of the replica.
    pub instance: String,
    /// The version of the software.
    pub version: String,
    /// The address of the admin port.
    pub admin: String,
    /// When the replica started.
    #[serde(with = "as_micros")]
    pub started_at: Time,
    /// When the replica wrote this announcement.
    #[serde(with = "as_micros")]
    pub seen_at: Time,
    /// The loops, as the admin port shows them; times in them are ages at `seen_at`.
    pub loops: Vec<Value>,
    /// The jobs whose locks the replica holds. Absent in announcements of older versions.
    #[serde(default)]
    pub deciding: Vec<String>,
    /// The settings with masked secrets, and the source of each; empty in announcements of older versions.
    #[serde(default)]
    pub settings: Vec<Value>,
}

impl Store {
    /// Announces a replica every few seconds, and soon after its address changes or it wins or loses a loop or a job's
    /// lock. `now` updates the announcement before each check. Ends only by `stop`, and then removes the announcement.
    /// A failed announcement is tried again at the next check.
    pub async fn announce(&self, mut about: Replica, now: impl Fn(&mut Replica), stop: impl Future<Output = ()>) {
        let keep = async {
            let (mut announced, mut next) = ((Vec::new(), Vec::new(), String::new()), Instant::now());
            loop {
                now(&mut about);
                let deciding = self.deciding.jobs();
                let news = (states(&about.loops), deciding.clone(), about.admin.clone());
                if Instant::now() >= next || news != announced {
                    about.deciding = deciding.iter().map(JobId::to_string).collect();
                    about.seen_at = self.now();
                    match self.put_replica(&about).await {
                        Ok(()) => (announced, next) = (news, Instant::now() + ANNOUNCE),
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
        // If this fails, the announcement expires by itself.
        let _ = timeout(LAST_WORD, self.drop_replica(&about.service, &about.instance)).await;
    }

    /// Announces a replica once, for [`REPLICA_TTL`]. Repeating is harmless.
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

    /// Removes a replica's announcement. Repeating is harmless.
    pub async fn drop_replica(&self, service: &str, instance: &str) -> Result<(), StoreError> {
        let (place, index) = (keys::replica(service, instance), keys::replicas());
        let mut del = redis::cmd("DEL");
        del.arg(place.as_bytes());
        let mut rem = redis::cmd("ZREM");
        rem.arg(index.as_bytes()).arg(member(service, instance));
        let calls = [del, rem].map(Command::plain).to_vec();
        self.router().many(calls).await.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// All live replicas, by service and name.
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
            // Skip an announcement that another version wrote in a form that this one cannot parse.
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

/// The member of the index for a replica; a service's name contains no space.
fn member(service: &str, instance: &str) -> String {
    format!("{service} {instance}")
}

/// The name and state of each loop. A change in these is announced at once.
fn states(loops: &[Value]) -> Vec<(String, String)> {
    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    loops.iter().map(|entry| (word(entry, "name"), word(entry, "state"))).collect()
}
