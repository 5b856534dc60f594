//! Rate limits of tenants.
//!
//! Knows: one limit for all tenants, with one bucket for submits and one for reads per tenant. Promises: all replicas
//! share the limit, which is counted in Redis. If Redis does not answer, or the limit is configured per replica, a
//! bucket of this process is used instead, with the rate divided by the last known number of replicas. As soon as
//! Redis answers again, it alone decides: refusals by the local bucket are not remembered. Leaves to others: what is
//! refused, and how.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use muster_domain::Tenant;
use muster_store::{RateLimit, Store, StoreError, Taken, Want};
use muster_telemetry::{Counter, count};

use super::refusal::Refusal;

/// How long Redis may take to grant a token before the local bucket decides. While Redis does not answer, a submit
/// must be refused within two seconds in all.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often the replicas are counted: as often as they announce themselves.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// The longest `Retry-After` of a refusal by the local bucket: Redis may answer again by then, and may decide
/// otherwise.
const LATEST_WITHOUT_REDIS: Duration = Duration::from_secs(5);
/// The most local buckets that are kept. A full bucket carries no information and can be dropped.
const MOST_BUCKETS: usize = 10_000;

/// The kinds of requests that are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Submits of jobs.
    Submit,
    /// Reads.
    Read,
}

impl Bucket {
    fn name(self) -> &'static str {
        match self {
            Bucket::Submit => "submit",
            Bucket::Read => "read",
        }
    }
}

/// The rate limits, as this replica knows them.
pub struct Limits {
    /// `None`: no limit.
    limit: ArcSwapOption<RateLimit>,
    shared: Option<Store>,
    local: Mutex<HashMap<(Tenant, Bucket), Gcra>>,
    /// Tenants that get no token before the given instant. Until then their submits are refused without asking Redis.
    refused: Mutex<HashMap<Tenant, Instant>>,
    /// The last known number of replicas that share the limit.
    replicas: AtomicU32,
}

impl Limits {
    /// `per_second` 0 means no limit. Without a store each replica counts by itself.
    pub(super) fn new(per_second: f64, burst: u32, shared: Option<Store>) -> Limits {
        let limit = ArcSwapOption::empty();
        let limits = Limits { limit, shared, local: Mutex::default(), refused: Mutex::default(), replicas: 1.into() };
        limits.set(per_second, burst);
        limits
    }

    /// Changes the limit from now on. `per_second` 0 means no limit.
    pub fn set(&self, per_second: f64, burst: u32) {
        let limit = (per_second > 0.0).then(|| RateLimit { per_second, burst: burst.max(1) });
        self.limit.store(limit.map(Arc::new));
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes `n` submit tokens, or none.
    pub(super) async fn take_all(&self, tenant: &Tenant, n: u32) -> Result<(), Refusal> {
        let burst = self.limit.load().as_deref().map(|limit| limit.burst);
        if let Some(most) = burst.filter(|most| n > *most) {
            return Err(Refusal::NeverFits { n, most });
        }
        let taken = self.take(tenant, Bucket::Submit, n, Want::All).await;
        if taken.granted < n { Err(Refusal::RateLimited { retry_after: taken.retry_after }) } else { Ok(()) }
    }

    /// How long all submits of this tenant are refused, according to the last answer of the limiter. A flood beyond
    /// the limit ends here, and takes no room in the queue from other tenants.
    pub(super) fn refused(&self, tenant: &Tenant) -> Option<Duration> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let left = refused.get(tenant)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            refused.remove(tenant);
            return None;
        }
        count(Counter::RateLimitHits, &[], 1);
        Some(left)
    }

    fn note_refusal(&self, tenant: &Tenant, wait: Duration) {
        let (now, mut refused) = (Instant::now(), self.refused.lock().unwrap_or_else(PoisonError::into_inner));
        if refused.len() >= MOST_BUCKETS {
            refused.retain(|_, until| *until > now);
        }
        refused.insert(tenant.clone(), now + wait);
    }

    /// Counts the replicas of the services that share the limit, for ever. While Redis does not answer, the last count
    /// stays valid.
    pub(super) async fn count_replicas(&self, store: &Store, sharers: &[&str]) {
        loop {
            if let Ok(counts) = store.replica_counts().await {
                let count: usize = sharers.iter().filter_map(|service| counts.get(*service)).sum();
                self.replicas.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
            }
            tokio::time::sleep(COUNT_EVERY).await;
        }
    }

    /// Takes `n` tokens, or as many as there are.
    pub async fn take(&self, tenant: &Tenant, bucket: Bucket, n: u32, want: Want) -> Taken {
        let Some(limit) = self.limit.load().as_deref().copied() else {
            return Taken { granted: n, retry_after: Duration::ZERO };
        };
        let (taken, lasts) = match &self.shared {
            None => (self.take_here(tenant, bucket, n, want, limit), true),
            Some(store) => match shared(store, tenant, bucket, n, want, limit).await {
                Ok(taken) => (taken, true),
                Err(_) => (self.take_without_redis(tenant, bucket, n, want, limit), false),
            },
        };
        if taken.granted < n {
            count(Counter::RateLimitHits, &[], (n - taken.granted).into());
            if lasts && bucket == Bucket::Submit && want == Want::Some {
                self.note_refusal(tenant, taken.retry_after);
            }
        }
        taken
    }

    /// Returns submit tokens that were taken for repeats: their first submit had paid already.
    pub(super) async fn give_back(&self, tenant: &Tenant, n: u32) {
        let Some(limit) = self.limit.load().as_deref().copied() else { return };
        let Some(store) = &self.shared else {
            let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(gcra) = local.get_mut(&(tenant.clone(), Bucket::Submit)) {
                gcra.give_back(n, limit);
            }
            return;
        };
        // If Redis does not answer, the tokens are lost: the limit errs on the strict side.
        let _ = tokio::time::timeout(PATIENCE, store.give_tokens(tenant, Bucket::Submit.name(), n, limit)).await;
    }

    fn take_without_redis(&self, tenant: &Tenant, bucket: Bucket, n: u32, want: Want, limit: RateLimit) -> Taken {
        let share = divided(limit, self.replicas.load(Ordering::Relaxed));
        let taken = self.take_here(tenant, bucket, n, want, share);
        Taken { retry_after: taken.retry_after.min(LATEST_WITHOUT_REDIS), ..taken }
    }

    fn take_here(&self, tenant: &Tenant, bucket: Bucket, n: u32, want: Want, limit: RateLimit) -> Taken {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if local.len() >= MOST_BUCKETS {
            local.retain(|_, gcra| gcra.full_at > now);
        }
        let gcra = local.entry((tenant.clone(), bucket)).or_insert(Gcra { full_at: now });
        gcra.take(now, n, want, limit)
    }
}

async fn shared(
    store: &Store,
    tenant: &Tenant,
    bucket: Bucket,
    n: u32,
    want: Want,
    limit: RateLimit,
) -> Result<Taken, StoreError> {
    let asked = store.take_tokens(tenant, bucket.name(), n, want, limit);
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::Unavailable { detail: "no token in time".to_owned() }),
    }
}

fn divided(limit: RateLimit, replicas: u32) -> RateLimit {
    let replicas = replicas.max(1);
    RateLimit { per_second: limit.per_second / f64::from(replicas), burst: (limit.burst / replicas).max(1) }
}

/// A bucket of this process, stored as the instant at which it would be full again.
struct Gcra {
    full_at: Instant,
}

impl Gcra {
    fn take(&mut self, now: Instant, n: u32, want: Want, limit: RateLimit) -> Taken {
        let interval = Duration::from_nanos(limit.interval_ns().max(1));
        let owed = self.full_at.saturating_duration_since(now);
        let room = (interval * limit.burst).saturating_sub(owed);
        let there = u32::try_from(room.as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX);
        let granted = match want {
            Want::All if there < n => 0,
            Want::All | Want::Some => there.min(n),
        };
        self.full_at = self.full_at.max(now) + interval * granted;
        let wanted = if want == Want::All { n.min(limit.burst) } else { 1 };
        let missing = (interval * wanted)
            .saturating_sub((interval * limit.burst).saturating_sub(self.full_at.saturating_duration_since(now)));
        Taken { granted, retry_after: if granted < n { missing } else { Duration::ZERO } }
    }

    fn give_back(&mut self, n: u32, limit: RateLimit) {
        let given = Duration::from_nanos(limit.interval_ns().max(1)) * n;
        self.full_at = self.full_at.checked_sub(given).unwrap_or(self.full_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { per_second: 10.0, burst: 5 };

    #[test]
    fn a_burst_is_granted_and_then_the_rate() {
        let begin = Instant::now();
        let mut bucket = Gcra { full_at: begin };
        assert_eq!(bucket.take(begin, 3, Want::Some, LIMIT).granted, 3);
        let rest = bucket.take(begin, 10, Want::Some, LIMIT);
        assert_eq!(rest.granted, 2);
        assert_eq!(rest.retry_after, Duration::from_millis(100));
        let later = begin + Duration::from_millis(250);
        assert_eq!(bucket.take(later, 10, Want::Some, LIMIT).granted, 2);
        let much_later = begin + Duration::from_secs(60);
        assert_eq!(bucket.take(much_later, 10, Want::Some, LIMIT).granted, 5, "never more than the burst");
    }

    #[test]
    fn all_or_none_takes_nothing_when_it_cannot_have_all() {
        let begin = Instant::now();
        let mut bucket = Gcra { full_at: begin };
        assert_eq!(bucket.take(begin, 4, Want::All, LIMIT).granted, 4);
        let refused = bucket.take(begin, 3, Want::All, LIMIT);
        assert_eq!((refused.granted, refused.retry_after), (0, Duration::from_millis(200)));
        assert_eq!(bucket.take(begin, 1, Want::All, LIMIT).granted, 1, "what was refused cost nothing");
    }

    #[test]
    fn a_limit_shared_without_redis_is_divided() {
        assert_eq!(divided(LIMIT, 2), RateLimit { per_second: 5.0, burst: 2 });
        assert_eq!(divided(LIMIT, 50).burst, 1);
        assert_eq!(divided(LIMIT, 0), LIMIT);
    }

    #[tokio::test]
    async fn no_limit_grants_everything() {
        let limits = Limits::new(0.0, 0, None);
        let taken = limits.take(&Tenant::default(), Bucket::Submit, 1_000_000, Want::All).await;
        assert_eq!(taken.granted, 1_000_000);
    }

    #[tokio::test]
    async fn whoever_is_over_its_limit_is_refused_without_a_question_until_there_is_one_more() {
        let limits = Limits::new(1.0, 2, None);
        let (flood, calm) = (Tenant::parse("flood").unwrap(), Tenant::parse("calm").unwrap());
        assert_eq!(limits.take(&flood, Bucket::Submit, 2, Want::Some).await.granted, 2);
        assert_eq!(limits.refused(&flood), None, "it got all it asked for");
        assert_eq!(limits.take(&flood, Bucket::Submit, 1, Want::Some).await.granted, 0);
        assert!(limits.refused(&flood).is_some_and(|left| left <= Duration::from_secs(1)));
        assert_eq!(limits.refused(&calm), None);
        limits.set(1_000.0, 1_000);
        assert_eq!(limits.refused(&flood), None, "another limit, another answer");
    }

    #[tokio::test]
    async fn submits_and_reads_have_buckets_of_their_own() {
        let limits = Limits::new(1.0, 2, None);
        let tenant = Tenant::default();
        assert_eq!(limits.take(&tenant, Bucket::Submit, 5, Want::Some).await.granted, 2);
        assert_eq!(limits.take(&tenant, Bucket::Read, 5, Want::Some).await.granted, 2);
        assert_eq!(limits.take(&Tenant::parse("b").unwrap(), Bucket::Submit, 1, Want::Some).await.granted, 1);
        assert_eq!(limits.take(&tenant, Bucket::Submit, 1, Want::Some).await.granted, 0);
    }
}
