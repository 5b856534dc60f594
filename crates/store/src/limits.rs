//! Rate limits shared by all replicas: GCRA on Redis time, exact whichever replica asks.

use std::time::Duration;

use muster_domain::Tenant;

use crate::{Store, StoreError, keys, scripts};

/// A steady rate, and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Tokens per second; above zero.
    pub per_second: f64,
    /// Tokens at once; at least one.
    pub burst: u32,
}

impl RateLimit {
    /// Nanoseconds between two tokens at the steady rate.
    pub fn interval_ns(self) -> u64 {
        (1e9 / self.per_second.max(1e-6)) as u64
    }
}

/// The result of taking tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How many of the requested tokens were granted.
    pub granted: u32,
    /// When to ask again for the rest.
    pub retry_after: Duration,
}

/// Whether a part of the requested tokens is useful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// As many as there are.
    Some,
    /// All or none.
    All,
}

impl Store {
    /// Takes up to `n` tokens. Not repeatable: a lost answer costs tokens, but never grants too
    /// many.
    pub async fn take_tokens(
        &self,
        tenant: &Tenant,
        scope: &str,
        n: u32,
        want: Want,
        limit: RateLimit,
    ) -> Result<Taken, StoreError> {
        let reply = self
            .run(scripts::limit::Take {
                key: keys::rate(tenant, scope),
                n: n.into(),
                interval: limit.interval_ns(),
                burst: limit.burst.max(1).into(),
                whole: u64::from(want == Want::All),
            })
            .await?;
        let granted = u32::try_from(reply.granted).unwrap_or(u32::MAX).min(n);
        Ok(Taken { granted, retry_after: Duration::from_micros(reply.retry_after) })
    }

    /// Gives tokens back. Not repeatable: a call whose answer was lost may give them back twice.
    pub async fn give_tokens(&self, tenant: &Tenant, scope: &str, n: u32, limit: RateLimit) -> Result<(), StoreError> {
        let call = scripts::limit::Give { key: keys::rate(tenant, scope), n: n.into(), interval: limit.interval_ns() };
        self.run(call).await.map(|_| ())
    }
}
