//! The backlog: queued jobs of one topic (or of one of its lines), by priority, then age. Nothing is popped: an entry is
//! claimed for a few seconds, its job dispatched by version, and then removed.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{JobId, Line, Phase, Priority, State, Tenant, Time, job::transition, time::micros};

use crate::{Record, Store, StoreError, keys, router::Command, script::number, scripts};

/// One job in the backlog. The member is job and version, so that a late removal never hits a newer entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Whose.
    pub tenant: Tenant,
    /// Of which topic, and who may be offered it.
    pub line: Line,
    /// How urgent.
    pub priority: Priority,
    /// Which job.
    pub job: JobId,
    /// The version under which it is `queued`.
    pub version: u32,
    /// Since when it waits; earlier goes first.
    pub since: Time,
    /// It needs a concurrency slot to be released. The member says so too: `<job>:<version>+`.
    pub limited: bool,
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

/// Most entries that one claim takes of one priority.
const MOST_CLAIMED: u64 = 1000;
/// Ends the member of an entry that needs a slot.
const LIMITED: &str = "+";
/// What a claim takes from a score; as in `lua/queue/claim.lua`.
const CLAIM: f64 = 8_000_000_000_000_000.0;

impl QueueEntry {
    /// The entry of a job that is `queued`.
    pub fn of(record: &Record) -> QueueEntry {
        QueueEntry {
            tenant: record.spec.tenant.clone(),
            line: record.spec.line(),
            priority: record.spec.priority,
            job: record.id,
            version: record.head.version,
            since: record.head.created_at,
            limited: !record.spec.concurrency_key.is_empty(),
        }
    }

    /// The entry that a job may have left behind, if it has ended by what also ends a queued one. Whether it
    /// was one is not asked: where none stands, removing finds nothing.
    pub fn left_by(record: &Record) -> Option<QueueEntry> {
        let Phase::Ended { lease_end: None, .. } = record.head.phase else { return None };
        let ends_queued = |event| transition(State::Queued, event).is_some_and(State::is_end);
        let version = record.head.version.checked_sub(1)?;
        record.head.last_event.is_some_and(ends_queued).then(|| QueueEntry { version, ..QueueEntry::of(record) })
    }

    pub(crate) fn member(&self) -> Vec<u8> {
        // Nearly all stand there as they were accepted.
        match (self.version, self.limited) {
            (1, false) => self.job.text_within("", ":1"),
            (version, limited) => {
                self.job.text_within("", &format!(":{version}{}", if limited { LIMITED } else { "" }))
            }
        }
    }
}

pub(crate) fn by_queue(items: &[QueueEntry]) -> BTreeMap<keys::Key, Vec<&QueueEntry>> {
    let mut queues: BTreeMap<keys::Key, Vec<&QueueEntry>> = BTreeMap::new();
    // Neighbours mostly stand in the same queue: its key is made once for all of them.
    let same = |a: &QueueEntry, b: &QueueEntry| (a.priority, &a.line, &a.tenant) == (b.priority, &b.line, &b.tenant);
    for run in items.chunk_by(same) {
        let key = keys::queue(&run[0].tenant, &run[0].line, run[0].priority);
        queues.entry(key).or_default().extend(run);
    }
    queues
}

impl Store {
    /// Adds entries; one that is there already stays as it is.
    pub async fn enqueue(&self, items: &[QueueEntry]) -> Result<(), StoreError> {
        self.score_queued(items, "NX", |entry| entry.since.0.cast_signed()).await
    }

    /// Adds entries that are claimed from their first moment on, until `hold` after they began to wait. One that is
    /// there already stays as it is.
    pub async fn enqueue_claimed(&self, items: &[QueueEntry], hold: Duration) -> Result<(), StoreError> {
        // A clock that was set back makes no claim longer.
        let now = self.now();
        self.score_queued(items, "NX", |entry| (entry.since.min(now) + hold).0.cast_signed() - CLAIM as i64).await
    }

    /// Gives entries their scores, one command a queue.
    async fn score_queued(
        &self,
        items: &[QueueEntry],
        which: &str,
        score: impl Fn(&QueueEntry) -> i64,
    ) -> Result<(), StoreError> {
        let command = |(key, entries): (keys::Key, Vec<&QueueEntry>)| {
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(key.as_bytes()).arg(which);
            for entry in entries {
                cmd.arg(score(entry)).arg(entry.member());
            }
            Command::plain(cmd)
        };
        let replies = self.router().many(by_queue(items).into_iter().map(command).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Claims up to `n` heads for `hold`, most urgent first; with `ahead_of` only those that go before a job of the
    /// usual priority that waits since then. A claim that lapses gives the entry its place back.
    pub async fn claim_queued(
        &self,
        tenant: &Tenant,
        line: impl Into<Line>,
        n: usize,
        hold: Duration,
        ahead_of: Option<Time>,
    ) -> Result<Vec<QueueEntry>, StoreError> {
        let line = line.into();
        // Counted in one flight and claimed in one: so the classes of one claim stay together, and two
        // schedulers do not take one class each.
        let claimable = self.claimable(tenant, &line, ahead_of).await?;
        let (mut left, mut claims) = (n as u64, Vec::new());
        for (&priority, claimable) in Priority::ALL.iter().zip(claimable) {
            let n = claimable.min(left).min(MOST_CLAIMED);
            left -= n;
            if n > 0 {
                claims.push((
                    priority,
                    scripts::queue::Claim { key: keys::queue(tenant, &line, priority), n, hold: micros(hold) },
                ));
            }
        }
        let (priorities, claims): (Vec<Priority>, Vec<_>) = claims.into_iter().unzip();
        let mut taken: Vec<QueueEntry> = Vec::new();
        for (priority, reply) in priorities.into_iter().zip(self.run_many(claims).await) {
            taken.extend(reply?.members.iter().filter_map(|member| {
                let (job, version) = std::str::from_utf8(member).ok()?.split_once(':')?;
                let limited = version.ends_with(LIMITED);
                Some(QueueEntry {
                    tenant: tenant.clone(),
                    line: line.clone(),
                    priority,
                    job: job.parse().ok()?,
                    version: version.trim_end_matches(LIMITED).parse().ok()?,
                    since: Time::NONE,
                    limited,
                })
            }));
        }
        Ok(taken)
    }

    /// How many entries of each priority nobody has claimed, or has no more, and go before who is named.
    async fn claimable(&self, tenant: &Tenant, line: &Line, ahead_of: Option<Time>) -> Result<Vec<u64>, StoreError> {
        let lapsed = format!("{:.0}", self.now().0 as f64 - CLAIM);
        let older = ahead_of.map_or_else(|| "+inf".to_owned(), |since| format!("({}", since.0));
        let last = if ahead_of.is_some() { Priority::Normal } else { Priority::Low };
        let count = |priority: Priority, from: &str, to: &str| {
            let mut cmd = redis::cmd("ZCOUNT");
            cmd.arg(keys::queue(tenant, line, priority).as_bytes()).arg(from).arg(to);
            Command::plain(cmd)
        };
        let classes = Priority::ALL.iter().filter(|priority| **priority <= last);
        let asked = classes.flat_map(|&priority| {
            let until = if priority == Priority::Normal { older.as_str() } else { "+inf" };
            [count(priority, "0", until), count(priority, "-inf", &lapsed)]
        });
        let replies = self.router().many(asked.collect()).await;
        let counts = replies.into_iter().map(|reply| number::<u64>(&reply?)).collect::<Result<Vec<_>, _>>()?;
        Ok(counts.chunks(2).map(|two| two.iter().sum()).collect())
    }

    /// Gives claimed entries their places back, without waiting for the claim to lapse. One that is gone stays so.
    pub async fn unclaim_queued(&self, items: &[QueueEntry]) -> Result<(), StoreError> {
        self.score_queued(items, "XX", |entry| entry.since.0.cast_signed()).await
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
        let ask = |verb: &str, priority: Priority, member: Option<Vec<u8>>| {
            let key = keys::queue(&entry.tenant, &entry.line, priority);
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

    /// How many jobs wait in each line's backlog.
    pub async fn queue_lens(&self, lines: &[(Tenant, Line)]) -> Result<Vec<u64>, StoreError> {
        let command = |key: keys::Key| {
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let keys = lines
            .iter()
            .flat_map(|(tenant, line)| Priority::ALL.iter().map(move |&priority| keys::queue(tenant, line, priority)));
        let replies = self.router().many(keys.map(command).collect()).await;
        let lens = replies.into_iter().map(|reply| number::<u64>(&reply?)).collect::<Result<Vec<_>, _>>()?;
        Ok(lens.chunks(Priority::ALL.len()).map(|four| four.iter().sum()).collect())
    }
}
