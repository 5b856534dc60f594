//! The members that share the locks of a loop: the replicas that joined and have not lapsed.
//!
//! Joining and reading the other members is one step, by the clock of the node that holds the set. A member that does
//! not join again within its TTL is gone. `replica` decides which member owns which shard. Correctness does not depend
//! on this: each shard has a lock.

use std::time::Duration;

use crate::{Store, StoreError, keys::ShardedLock, router::Command, scripts};

impl Store {
    /// Joins, or joins again. Returns all members by name, and how soon the first of the others lapses unless it joins
    /// again. May be repeated.
    pub async fn join_members(
        &self,
        lock: ShardedLock,
        name: &str,
        ttl: Duration,
    ) -> Result<(Vec<String>, Option<Duration>), StoreError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let call = scripts::lease::Join { key: lock.members(), owner: name.as_bytes().to_vec(), ttl_ms };
        let reply = self.run(call).await?;
        let members = reply.members.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        Ok((members, (reply.lapse_ms > 0).then(|| Duration::from_millis(reply.lapse_ms))))
    }

    /// Leaves the set. May be repeated.
    pub async fn leave_members(&self, lock: ShardedLock, name: &str) -> Result<(), StoreError> {
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(lock.members().as_bytes()).arg(name);
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }
}
