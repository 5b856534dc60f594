//! The backlog: queued jobs of one topic, by priority, then age. Nothing is popped: an entry is
//! claimed for a few seconds, its job dispatched by version, and then removed.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{JobId, Priority, Tenant, Time, Topic, time::micros};

use crate::{Store, StoreError, keys, router::Command, script::number, scripts};

/// One job in the backlog. The member is job and version, so that a late removal never hits a newer entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Whose.
    pub tenant: Tenant,
    /// Of which topic.
    pub topic: Topic,
    /// How urgent.
    pub priority: Priority,
    /// Which job.
    pub job: JobId,
    /// The version under which it is `queued`.
    pub version: u32,
    /// Since when it waits; earlier goes first.
    pub since: Time,
}

/// Where a job stands in its topic's backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// How many go before it: all that are more urgent, and the older ones of its own priority.
    pub ahead: u64,
    /// How many wait in all, itself among them.
    pub waiting: u64,
    /// A scheduler has claimed it and is about to offer it; without that it has its place back then.
    pub claimed_until: Option<Time>,
}

/// What a claim takes from a score; as in `lua/queue/claim.lua`.
const CLAIM: f64 = 8_000_000_000_000_000.0;

impl QueueEntry {
    pub(crate) fn member(&self) -> String {
        format!("{}:{}", self.job, self.version)
    }
}

pub(crate) fn by_queue(items: &[QueueEntry]) -> BTreeMap<keys::Key, Vec<&QueueEntry>> {
    let mut queues: BTreeMap<keys::Key, Vec<&QueueEntry>> = BTreeMap::new();
    for entry in items {
        queues.entry(keys::queue(&entry.tenant, &entry.topic, entry.priority)).or_default().push(entry);
    }
    queues
}

impl Store {
    /// Adds entries; one that is there already stays as it is.
    pub async fn enqueue(&self, items: &[QueueEntry]) -> Result<(), StoreError> {
        let command = |(key, entries): (keys::Key, Vec<&QueueEntry>)| {
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(key.as_bytes()).arg("NX");
            for entry in entries {
                cmd.arg(entry.since.0).arg(entry.member());
            }
            Command::plain(cmd)
        };
        let replies = self.router().many(by_queue(items).into_iter().map(command).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Claims up to `n` heads for `hold`, most urgent first. A claim that lapses gives the entry its place back.
    pub async fn claim_queued(
        &self,
        tenant: &Tenant,
        topic: &Topic,
        n: usize,
        hold: Duration,
    ) -> Result<Vec<QueueEntry>, StoreError> {
        let mut taken: Vec<QueueEntry> = Vec::new();
        for &priority in Priority::ALL {
            let wanted = (n - taken.len()).min(1000) as u64;
            if wanted == 0 {
                break;
            }
            let key = keys::queue(tenant, topic, priority);
            let reply = self.run(scripts::queue::Claim { key, n: wanted, hold: micros(hold) }).await?;
            taken.extend(reply.members.iter().filter_map(|member| {
                let (job, version) = std::str::from_utf8(member).ok()?.split_once(':')?;
                Some(QueueEntry {
                    tenant: tenant.clone(),
                    topic: topic.clone(),
                    priority,
                    job: job.parse().ok()?,
                    version: version.parse().ok()?,
                    since: Time::NONE,
                })
            }));
        }
        Ok(taken)
    }

    /// Removes entries. Repeating is harmless.
    pub async fn remove_queued(&self, items: &[QueueEntry]) -> Result<(), StoreError> {
        let command = |(key, entries): (keys::Key, Vec<&QueueEntry>)| {
            let mut cmd = redis::cmd("ZREM");
            cmd.arg(key.as_bytes());
            for entry in entries {
                cmd.arg(entry.member());
            }
            Command::plain(cmd)
        };
        let replies = self.router().many(by_queue(items).into_iter().map(command).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Where an entry stands among all that wait for its topic; none if it is not there. Only reads,
    /// and not in one step: with the queue moving it is off by as much as moved meanwhile.
    pub async fn queue_place(&self, entry: &QueueEntry) -> Result<Option<QueuePlace>, StoreError> {
        let ask = |verb: &str, priority: Priority, member: Option<String>| {
            let key = keys::queue(&entry.tenant, &entry.topic, priority);
            let mut cmd = redis::cmd(verb);
            cmd.arg(key.as_bytes()).arg(member);
            Command::plain(cmd)
        };
        let mut asked = vec![
            ask("ZRANK", entry.priority, Some(entry.member())),
            ask("ZSCORE", entry.priority, Some(entry.member())),
        ];
        asked.extend(Priority::ALL.iter().map(|&priority| ask("ZCARD", priority, None)));
        let mut replies = self.router().many(asked).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::Decode("a reply is missing".to_owned())));
        let wrong = |fault: redis::ParsingError| StoreError::Decode(fault.to_string());
        let rank = redis::from_redis_value::<Option<u64>>(next()?).map_err(wrong)?;
        let score = redis::from_redis_value::<Option<f64>>(next()?).map_err(wrong)?;
        let (mut more_urgent, mut waiting) = (0, 0);
        for priority in Priority::ALL {
            let len: u64 = number(&next()?)?;
            waiting += len;
            // Declared from first to last.
            more_urgent += if *priority < entry.priority { len } else { 0 };
        }
        let (Some(rank), Some(score)) = (rank, score) else { return Ok(None) };
        let claimed_until = (score < 0.0).then_some(Time((score + CLAIM) as u64));
        Ok(Some(QueuePlace { ahead: more_urgent + rank, waiting, claimed_until }))
    }

    /// How many jobs wait in each topic's backlog.
    pub async fn queue_lens(&self, topics: &[(Tenant, Topic)]) -> Result<Vec<u64>, StoreError> {
        let command = |key: keys::Key| {
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let keys = topics.iter().flat_map(|(tenant, topic)| {
            Priority::ALL.iter().map(move |&priority| keys::queue(tenant, topic, priority))
        });
        let replies = self.router().many(keys.map(command).collect()).await;
        let lens = replies.into_iter().map(|reply| number::<u64>(&reply?)).collect::<Result<Vec<_>, _>>()?;
        Ok(lens.chunks(Priority::ALL.len()).map(|four| four.iter().sum()).collect())
    }
}
