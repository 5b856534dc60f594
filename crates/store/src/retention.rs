//! Retention: removes ended jobs after a while, and with them their listings and dead letters.
//!
//! This module reads the listings, oldest first, and notes when each is worth the next check. It deletes a record only
//! if its job ended long enough ago, by the clock of the record's node, and the effects of the end are done. It drops a
//! listing when no job on it is left and none was added in the meantime. Each step is bounded and may be repeated, also
//! by a second leader. The cost grows with the number of jobs to delete: a listing whose jobs stay is not read again
//! before one of them can be due. All jobs of a listing are checked together, so a record may be deleted late, by up to
//! a twenty-fourth of the shortest retention. The callers decide how long to keep jobs, and how often to run.

mod visit;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::AddAssign,
    time::Duration,
};

use muster_domain::{State, Tenant, Time, Topic, topic::TopicRetention};
use redis::Value;

use self::visit::Visit;
use crate::{
    LeaderLock, Lease, Store, StoreError, keys,
    place::{BUCKET, Bucket, Listing},
    router::Command,
    script::{list, number},
};

/// The most dead letters that one call removes.
const LETTERS: usize = 500;

/// How long ended jobs are kept, from their end on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Jobs that succeeded or were cancelled.
    pub succeeded: Duration,
    /// Jobs that ended badly, and their dead letters.
    pub failed: Duration,
    /// Other times for the records of these topics. Their dead letters are listed as long as all others.
    pub topics: BTreeMap<(Tenant, Topic), TopicRetention>,
}

impl Retention {
    /// The same times for all topics.
    pub const fn of_all(succeeded: Duration, failed: Duration) -> Retention {
        Retention { succeeded, failed, topics: BTreeMap::new() }
    }

    fn of(&self, tenant: &Tenant, topic: &Topic, end: State) -> Duration {
        let told = match self.topics.is_empty() {
            true => None,
            false => self.topics.get(&(tenant.clone(), topic.clone())),
        };
        let (own, usual) = match end.is_bad_end() {
            true => (told.and_then(|told| told.failed_ms), self.failed),
            false => (told.and_then(|told| told.succeeded_ms), self.succeeded),
        };
        own.map_or(usual, Duration::from_millis)
    }

    /// The shortest time of all: no job is deleted sooner than this after its submit.
    fn least(&self) -> Duration {
        let told = self.topics.values().flat_map(|told| [told.succeeded_ms, told.failed_ms]).flatten();
        let usual = self.succeeded.min(self.failed);
        told.map(Duration::from_millis).fold(usual, Duration::min)
    }

    /// How much later than due a record may be deleted, so that many are deleted together.
    fn grain(&self) -> Duration {
        self.least() / 24
    }

    /// The newest ten minutes whose listings may hold a job that is due.
    fn newest_due(&self, now: Time) -> Option<u64> {
        now.0.checked_sub(self.first_look(Bucket::first(0)).0).map(|age| age / BUCKET)
    }

    /// When a listing is checked for the first time: most of its jobs can be deleted then.
    fn first_look(&self, bucket: Bucket) -> Time {
        bucket.begins() + self.least() + self.grain()
    }
}

/// The progress of a round over all tenants. If it is lost, only checks are repeated.
#[derive(Debug, Default)]
pub struct RetentionWalk {
    /// The tenants that are left in this round; none between two rounds.
    tenants: Option<VecDeque<Tenant>>,
    /// The listings of the first tenant that are due; none before they were read.
    buckets: Option<VecDeque<Bucket>>,
    visit: Option<Visit>,
    next: Option<Time>,
}

impl RetentionWalk {
    /// A walk that has not begun yet.
    pub fn new() -> RetentionWalk {
        RetentionWalk::default()
    }

    fn due_at(&mut self, at: Time) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Continues with the next tenant.
    fn leave_tenant(&mut self) {
        if let Some(tenants) = &mut self.tenants {
            tenants.pop_front();
        }
        (self.buckets, self.visit) = (None, None);
    }
}

/// What was removed of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Records.
    pub records: u64,
    /// Listings.
    pub listings: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

impl AddAssign for Removed {
    fn add_assign(&mut self, more: Removed) {
        self.records += more.records;
        self.listings += more.listings;
        self.dead_letters += more.dead_letters;
    }
}

/// The result of one step of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Entries of listings that were checked.
    pub looked: u64,
    /// Records that were deleted.
    pub records: u64,
    /// Listings that were dropped.
    pub listings: u64,
    /// Dead letters that were removed.
    pub dead_letters: u64,
    /// The same three by tenant, for tenants of which something was removed.
    pub by_tenant: BTreeMap<Tenant, Removed>,
    /// Tenants, listings or records that could not be read; they stay unchanged.
    pub unreadable: u64,
    /// The round is over; the next step begins another.
    pub passed: bool,
    /// When something is due again; set at the end of a round.
    pub next: Option<Duration>,
}

impl Retained {
    fn removed(&self) -> Removed {
        Removed { records: self.records, listings: self.listings, dead_letters: self.dead_letters }
    }

    /// Adds what was removed since `before` to this tenant's numbers.
    fn note(&mut self, tenant: &Tenant, before: Removed) {
        let removed = Removed {
            records: self.records - before.records,
            listings: self.listings - before.listings,
            dead_letters: self.dead_letters - before.dead_letters,
        };
        if removed != Removed::default() {
            *self.by_tenant.entry(tenant.clone()).or_default() += removed;
        }
    }
}

impl Store {
    /// One step of a round: checks about `limit` entries of listings that are due, and deletes what is old enough.
    /// Repeating is harmless. After an error, including a lost lease, the next step continues where this one stopped.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{Lease, Retention, RetentionWalk, Store};
    /// async fn tick(store: &Store, lease: &Lease, walk: &mut RetentionWalk, keep: &Retention) {
    ///     store.retain(lease, walk, keep, 500).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{Retention, RetentionWalk, Store};
    /// async fn tick(store: &Store, walk: &mut RetentionWalk, keep: &Retention) {
    ///     store.retain(walk, keep, 500).await;
    /// }
    /// ```
    pub async fn retain(
        &self,
        lease: &Lease,
        walk: &mut RetentionWalk,
        keep: &Retention,
        limit: usize,
    ) -> Result<Retained, StoreError> {
        let mut done = Retained::default();
        if walk.tenants.is_none() {
            walk.next = None;
            walk.tenants = Some(self.listed_tenants().await?);
        }
        // A tenant costs a few calls even if nothing is due.
        let mut calls = 0;
        while done.looked < limit as u64 && done.dead_letters < limit as u64 && calls < limit {
            calls += 1;
            lease.leads(LeaderLock::Retention)?;
            let Some(tenant) = walk.tenants.as_ref().and_then(|tenants| tenants.front()).cloned() else {
                walk.tenants = None;
                done.passed = true;
                done.next = walk.next.map(|at| at.remaining(self.now()));
                break;
            };
            let before = done.removed();
            let retained = self.retain_tenant(&tenant, walk, keep, limit, &mut done).await;
            done.note(&tenant, before);
            match retained {
                Ok(()) => {}
                Err(fault) if fault.is_retryable() => return Err(fault),
                // Waiting does not repair this, so continue with the other tenants.
                Err(_) => {
                    done.unreadable += 1;
                    walk.leave_tenant();
                }
            }
        }
        Ok(done)
    }

    /// Does the work of about one call for the tenant.
    async fn retain_tenant(
        &self,
        tenant: &Tenant,
        walk: &mut RetentionWalk,
        keep: &Retention,
        limit: usize,
        done: &mut Retained,
    ) -> Result<(), StoreError> {
        if let Some(mut visit) = walk.visit.take() {
            let left = limit - usize::try_from(done.looked).unwrap_or(limit).min(limit);
            let seen = self.visit(tenant, &mut visit, keep, left.max(1), done).await;
            if !visit.is_over() {
                walk.visit = Some(visit);
                return seen;
            }
            if let Some(next) = self.close(tenant, &visit, keep, done).await? {
                walk.due_at(next);
            }
            return seen;
        }
        let Some(buckets) = &mut walk.buckets else {
            let (due, next) = self.due_buckets(tenant, keep).await?;
            walk.buckets = Some(due);
            next.into_iter().for_each(|next| walk.due_at(next));
            return Ok(());
        };
        if let Some(bucket) = buckets.front().copied() {
            let length = self.bucket_length(Listing::Jobs, tenant, bucket).await?;
            buckets.pop_front();
            walk.visit = Some(Visit::new(bucket, length));
            return Ok(());
        }
        let removed = self.drop_dead_letters(tenant, keep).await?;
        done.dead_letters += removed;
        if removed < LETTERS as u64 {
            if let Some(next) = self.rest_of(tenant, keep).await? {
                walk.due_at(next);
            }
            walk.leave_tenant();
        }
        Ok(())
    }

    /// All tenants that have jobs, or had some lately.
    pub(crate) async fn listed_tenants(&self) -> Result<VecDeque<Tenant>, StoreError> {
        self.tenants_with(Listing::Jobs).await
    }

    /// All tenants that have jobs or runs, or had some lately.
    pub(crate) async fn tenants_with(&self, of: Listing) -> Result<VecDeque<Tenant>, StoreError> {
        let key = keys::listed_tenants(of);
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(key.as_bytes());
        let names = list(self.router().call(Command::plain(cmd)).await?)?;
        Ok(names.iter().filter_map(|name| Tenant::parse(std::str::from_utf8(name).ok()?).ok()).collect())
    }

    /// A tenant's listings that are due for a check, oldest first, and when the next one is due.
    async fn due_buckets(
        &self,
        tenant: &Tenant,
        keep: &Retention,
    ) -> Result<(VecDeque<Bucket>, Option<Time>), StoreError> {
        let now = self.now();
        let (buckets, kept) = (keys::buckets(Listing::Jobs, tenant), keys::kept_buckets(tenant));
        let Some(newest) = keep.newest_due(now) else { return Ok(Default::default()) };
        let mut old = redis::cmd("ZRANGEBYSCORE");
        old.arg(buckets.as_bytes()).arg("-inf").arg(newest);
        let mut ahead = redis::cmd("ZRANGEBYSCORE");
        ahead.arg(buckets.as_bytes()).arg(format!("({newest}")).arg("+inf").arg("LIMIT").arg(0).arg(1);
        let mut looked_at = redis::cmd("ZRANGE");
        looked_at.arg(kept.as_bytes()).arg(0).arg(-1).arg("WITHSCORES");
        let [old, ahead, looked_at] = self.three([old, ahead, looked_at]).await?;
        let parse = |member: &Vec<u8>| Bucket::parse(member);
        let looks: BTreeMap<Bucket, Time> = list(looked_at)?
            .chunks(2)
            .filter_map(|pair| Some((parse(&pair[0])?, Time(score(pair.get(1)?)?))))
            .collect();
        let (mut due, mut next) = (VecDeque::new(), None::<Time>);
        let mut later = |at: Time| next = Some(next.map_or(at, |next| next.min(at)));
        // Include listings that are kept but no longer noted; otherwise their entries would stay for ever.
        let noted: BTreeSet<Bucket> = list(old)?.iter().filter_map(parse).chain(looks.keys().copied()).collect();
        for bucket in noted {
            match looks.get(&bucket) {
                Some(at) if !at.reached(now) => later(*at),
                _ => due.push_back(bucket),
            }
        }
        list(ahead)?.iter().filter_map(parse).for_each(|bucket| later(keep.first_look(bucket)));
        Ok((due, next))
    }

    /// Removes a tenant's oldest dead letters, if they are old enough. Returns how many.
    async fn drop_dead_letters(&self, tenant: &Tenant, keep: &Retention) -> Result<u64, StoreError> {
        let key = keys::dead_letters(tenant);
        let mut old = redis::cmd("ZRANGEBYSCORE");
        let until = self.now().before(keep.failed);
        old.arg(key.as_bytes()).arg("-inf").arg(until.0).arg("LIMIT").arg(0).arg(LETTERS);
        let letters = list(self.router().call(Command::plain(old)).await?)?;
        if letters.is_empty() {
            return Ok(0);
        }
        let mut remove = redis::cmd("ZREM");
        remove.arg(key.as_bytes()).arg(&letters);
        self.router().call(Command::plain(remove)).await?;
        Ok(letters.len() as u64)
    }

    /// When the next dead letter of a tenant is due. A tenant without listings and dead letters is removed from the set
    /// of tenants; its next job notes it again.
    async fn rest_of(&self, tenant: &Tenant, keep: &Retention) -> Result<Option<Time>, StoreError> {
        let (buckets, letters, kept) =
            (keys::buckets(Listing::Jobs, tenant), keys::dead_letters(tenant), keys::kept_buckets(tenant));
        let mut count = redis::cmd("ZCARD");
        count.arg(buckets.as_bytes());
        let mut oldest = redis::cmd("ZRANGE");
        oldest.arg(letters.as_bytes()).arg(0).arg(0).arg("WITHSCORES");
        let mut looked_at = redis::cmd("ZCARD");
        looked_at.arg(kept.as_bytes());
        let [count, oldest, looked_at] = self.three([count, oldest, looked_at]).await?;
        let oldest = list(oldest)?.get(1).and_then(|text| score(text)).map(Time);
        if number::<u64>(&count)? == 0 && oldest.is_none() && number::<u64>(&looked_at)? == 0 {
            let key = keys::listed_tenants(Listing::Jobs);
            let mut forget = redis::cmd("SREM");
            forget.arg(key.as_bytes()).arg(tenant.as_str());
            self.router().call(Command::plain(forget)).await?;
        }
        Ok(oldest.map(|at| at + keep.failed + keep.grain()))
    }

    async fn three(&self, commands: [redis::Cmd; 3]) -> Result<[Value; 3], StoreError> {
        let replies = self.router().many(commands.into_iter().map(Command::plain).collect()).await;
        let replies = replies.into_iter().collect::<Result<Vec<Value>, StoreError>>()?;
        replies.try_into().map_err(|_| StoreError::Decode("three commands, three replies".into()))
    }
}

/// Parses a score of whole microseconds.
fn score(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse::<f64>().ok().map(|score| score as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_listing_is_looked_at_when_most_of_its_jobs_can_leave() {
        let keep = Retention::of_all(7 * DAY, 30 * DAY);
        let look = keep.first_look(Bucket::first(1000));
        assert_eq!(look.since(Time(1000 * BUCKET)), 7 * DAY + Duration::from_secs(7 * 3600));
        assert_eq!(keep.newest_due(look), Some(1000));
        assert_eq!(keep.newest_due(Time(look.0 - 1)), Some(999));
        assert_eq!(keep.newest_due(Time(BUCKET)), None, "a young clock");
    }

    #[test]
    fn only_bad_ends_are_kept_long() {
        let (keep, topic) = (Retention::of_all(DAY, 3 * DAY), Topic::parse("t").unwrap());
        for state in State::ALL.iter().filter(|state| state.is_end()) {
            let long = !matches!(state, State::Succeeded | State::Cancelled);
            let expected = if long { 3 * DAY } else { DAY };
            assert_eq!(keep.of(&Tenant::default(), &topic, *state), expected, "{state}");
        }
        assert_eq!((keep.least(), keep.grain()), (DAY, Duration::from_secs(3600)));
    }

    #[test]
    fn a_topic_may_keep_its_jobs_longer_or_shorter() {
        let (tenant, topic) = (Tenant::default(), Topic::parse("t").unwrap());
        let hour = TopicRetention { succeeded_ms: Some(3_600_000), failed_ms: None };
        let topics = [((tenant.clone(), topic.clone()), hour)].into();
        let keep = Retention { topics, ..Retention::of_all(2 * DAY, 3 * DAY) };
        assert_eq!(keep.of(&tenant, &topic, State::Succeeded), DAY / 24);
        assert_eq!(keep.of(&tenant, &topic, State::Failed), 3 * DAY, "what it does not say is as usual");
        assert_eq!(keep.of(&tenant, &Topic::parse("u").unwrap(), State::Succeeded), 2 * DAY);
        assert_eq!(keep.least(), DAY / 24, "its listings are looked at in time");
    }
}
