//! The backlog: queued jobs of one topic (or of one of its lines), by priority, then age. Nothing is popped: an entry
//! is claimed for a few seconds, its job is dispatched by version, and then the entry is removed.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{
    JobId, Line, Phase, Priority, State, Tenant, Time,
    job::{CLOCK_SLACK, transition},
    time::micros,
};

use crate::{Record, Store, StoreError, keys, router::Command, script::number, scripts};

/// One job in the backlog. The member is job and version, so that a late removal never hits a newer entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// The tenant that owns the job.
    pub tenant: Tenant,
    /// The line, which holds the topic and determines the workers that may be offered the job.
    pub line: Line,
    /// The priority.
    pub priority: Priority,
    /// The id of the job.
    pub job: JobId,
    /// The version under which the job is `queued`.
    pub version: u32,
    /// Since when the job waits; earlier goes first.
    pub since: Time,
    /// The job needs a concurrency slot to be released. The member contains this too: `<job>:<version>+`.
    pub limited: bool,
}

/// The place of a job in its topic's backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// How many jobs go before it: all more urgent ones, and the older ones of its own priority.
    pub ahead: u64,
    /// How many jobs wait, including this one.
    pub waiting: u64,
    /// A scheduler has claimed the entry until this time and is about to offer the job; otherwise the entry then gets
    /// its place back.
    pub claimed_until: Option<Time>,
}

/// The most entries of one priority that one claim takes.
const MOST_CLAIMED: u64 = 1000;
/// The end of the member of an entry that needs a slot.
const LIMITED: &str = "+";
/// What a claim subtracts from a score; the same as in `lua/queue/claim.lua`.
const CLAIM: f64 = 8_000_000_000_000_000.0;
/// A claim that ends so much later than a new one would was made while a clock ran ahead; the same as in
/// `lua/queue/claim.lua`.
const SLACK: Duration = CLOCK_SLACK;

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

    /// The entry that an ended job may have left behind, if its last event also ends queued jobs. This does not check
    /// whether the job was queued: if there is no entry, removing finds nothing.
    pub fn left_by(record: &Record) -> Option<QueueEntry> {
        let Phase::Ended { lease_end: None, .. } = record.head.phase else { return None };
        let ends_queued = |event| transition(State::Queued, event).is_some_and(State::is_end);
        let version = record.head.version.checked_sub(1)?;
        record.head.last_event.is_some_and(ends_queued).then(|| QueueEntry { version, ..QueueEntry::of(record) })
    }

    pub(crate) fn member(&self) -> Vec<u8> {
        // Nearly all entries have the version of the submit.
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
    // Neighbours are mostly in the same queue: build its key once for all of them.
    let same = |a: &QueueEntry, b: &QueueEntry| (a.priority, &a.line, &a.tenant) == (b.priority, &b.line, &b.tenant);
    for run in items.chunk_by(same) {
        let key = keys::queue(&run[0].tenant, &run[0].line, run[0].priority);
        queues.entry(key).or_default().extend(run);
    }
    queues
}

impl Store {
    /// Adds entries; an existing entry stays unchanged, so repeating is harmless. One command per queue: after an error
    /// some entries may be added.
    pub async fn enqueue(&self, items: &[QueueEntry]) -> Result<(), StoreError> {
        self.score_queued(items, "NX", |entry| entry.since.0.cast_signed()).await
    }

    /// Adds entries that are claimed from the start, until `hold` after they began to wait. An existing entry stays
    /// unchanged. Like [`Store::enqueue`] otherwise.
    pub async fn enqueue_claimed(&self, items: &[QueueEntry], hold: Duration) -> Result<(), StoreError> {
        // A clock that was set back makes no claim longer.
        let now = self.now();
        self.score_queued(items, "NX", |entry| (entry.since.min(now) + hold).0.cast_signed() - CLAIM as i64).await
    }

    /// Sets the scores of entries, one command per queue.
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

    /// Claims up to `n` entries for `hold`, most urgent first; with `ahead_of` only those that go before a job of
    /// normal priority that waits since then. A claim that lapses gives the entry its place back, so a lost answer
    /// costs `hold` and no entry. So does a claim that ends much later than this one would, because a clock ran ahead when
    /// it was made. A repetition claims other entries.
    pub async fn claim_queued(
        &self,
        tenant: &Tenant,
        line: impl Into<Line>,
        n: usize,
        hold: Duration,
        ahead_of: Option<Time>,
    ) -> Result<Vec<QueueEntry>, StoreError> {
        let line = line.into();
        // Counted in one round trip and claimed in another: so the priorities of one claim stay together, and two
        // schedulers do not take one priority each.
        let claimable = self.claimable(tenant, &line, hold, ahead_of).await?;
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

    /// How many entries of each priority are not claimed, or no longer, and go before `ahead_of`.
    async fn claimable(
        &self,
        tenant: &Tenant,
        line: &Line,
        hold: Duration,
        ahead_of: Option<Time>,
    ) -> Result<Vec<u64>, StoreError> {
        let now = self.now();
        let lapsed = format!("{:.0}", now.0 as f64 - CLAIM);
        let latest = format!("({:.0}", (now + hold + SLACK).0 as f64 - CLAIM);
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
            [count(priority, &latest, until), count(priority, "-inf", &lapsed)]
        });
        let replies = self.router().many(asked.collect()).await;
        let counts = replies.into_iter().map(|reply| number::<u64>(&reply?)).collect::<Result<Vec<_>, _>>()?;
        Ok(counts.chunks(2).map(|two| two.iter().sum()).collect())
    }

    /// Gives claimed entries their places back, without waiting for the claim to lapse. An entry that is gone stays
    /// gone. Repeating is harmless.
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

    /// The place of an entry among all that wait for its topic; none if it is not there. Only reads, and not in one
    /// step: if the queue moves in the meantime, the result is off by as much.
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
            // Priorities are declared from first to last.
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
