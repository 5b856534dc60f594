//! One commit: rate tokens, ids, both stores, answers.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use muster_domain::{JobId, Tenant};
use muster_flow::{Flow, SubmitRefused};
use muster_store::{NewJob, StoreError, Taken, Want};

use super::{Answer, Entry, Item, Refused, deferred::Deferred};
use crate::limits::{Bucket, Limits};

/// What a group needs to be committed. Copies are the same.
#[derive(Clone)]
pub(crate) struct Committer {
    flow: Flow,
    limits: Arc<Limits>,
    /// What the bus did not confirm.
    deferred: Arc<Deferred>,
    /// The home shard of the next group. Each group writes one, and they take turns.
    shard: Arc<AtomicU8>,
}

impl Committer {
    pub(crate) fn new(flow: Flow, limits: Arc<Limits>, deferred: Arc<Deferred>) -> Committer {
        Committer { flow, limits, deferred, shard: Arc::new(AtomicU8::new(fastrand::u8(..))) }
    }

    /// Commits a group and answers each of its entries. Whoever has left is left out.
    pub(crate) fn commit(&self, group: Vec<Entry>) -> impl Future<Output = ()> + use<> {
        let committer = self.clone();
        async move { committer.carry_out(group).await }
    }

    async fn carry_out(&self, group: Vec<Entry>) {
        let group = Entry::in_time(group);
        let mut tokens = self.tokens(&group).await;
        let shard = self.flow.store.home_shard(self.shard.fetch_add(1, Ordering::Relaxed));
        let mint = || self.flow.store.mint(shard);
        let mut jobs = Vec::with_capacity(group.len());
        let mut plans = Vec::with_capacity(group.len());
        for Entry { items, reply, .. } in group {
            let plan = items.into_iter().map(|item| plan(item, &mut tokens, mint, &mut jobs)).collect::<Vec<_>>();
            plans.push((plan, reply));
        }
        let outcomes = if jobs.is_empty() { Vec::new() } else { self.flow.submit(&mut jobs).await };
        let mut outcomes = jobs.into_iter().zip(outcomes);
        for (plan, reply) in plans {
            let mut answer = |refused: Option<Refused>| -> Answer {
                if let Some(refused) = refused {
                    return Err(refused);
                }
                match outcomes.next() {
                    Some((job, Ok(accepted))) => Ok((job, accepted)),
                    Some((_, Err(SubmitRefused::Mismatch))) => Err(Refused::Mismatch),
                    Some((_, Err(SubmitRefused::Store(error)))) => Err(Refused::Store(error)),
                    None => Err(Refused::Store(StoreError::Decode("no answer".to_owned()))),
                }
            };
            let answers: Vec<Answer> = plan.into_iter().map(&mut answer).collect();
            self.deferred.note(&answers);
            // Nobody listens any more: the job is stored all the same, and found by its key.
            let _ = reply.send(answers);
        }
    }

    /// One call per tenant, for all of its items at once.
    async fn tokens(&self, group: &[Entry]) -> HashMap<Tenant, Taken> {
        let mut wanted: HashMap<&Tenant, u32> = HashMap::new();
        for item in group.iter().flat_map(|entry| &entry.items).filter(|item| !item.paid) {
            *wanted.entry(&item.spec.tenant).or_default() += 1;
        }
        let asks = wanted.into_iter().map(|(tenant, n)| async move {
            (tenant.clone(), self.limits.take(tenant, Bucket::Submit, n, Want::Some).await)
        });
        futures_util::future::join_all(asks).await.into_iter().collect()
    }
}

/// Puts an admitted item among the jobs; says why not otherwise. First come, first served.
fn plan(
    item: Item,
    tokens: &mut HashMap<Tenant, Taken>,
    mint: impl FnOnce() -> JobId,
    jobs: &mut Vec<NewJob>,
) -> Option<Refused> {
    if !item.paid {
        match tokens.get_mut(&item.spec.tenant) {
            Some(left) if left.granted > 0 => left.granted -= 1,
            other => return Some(Refused::RateLimited(other.map_or(Duration::ZERO, |t| t.retry_after))),
        }
    }
    let id = item.id.unwrap_or_else(mint);
    jobs.push(NewJob { id, spec: item.spec, payload: item.payload, body_hash: item.hash, place: None, at: None });
    None
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use muster_domain::{JobSpec, Topic};

    use super::*;

    fn item(tenant: &str, paid: bool) -> Item {
        let spec = JobSpec::new(Tenant::parse(tenant).unwrap(), Topic::parse("t").unwrap());
        Item { id: None, spec, payload: Bytes::new(), hash: None, paid }
    }

    #[test]
    fn the_first_are_admitted_and_one_tenant_never_pays_for_another() {
        let taken = |granted| Taken { granted, retry_after: Duration::from_secs(6) };
        let mut tokens: HashMap<Tenant, Taken> =
            [("a", taken(2)), ("b", taken(1))].map(|(t, taken)| (Tenant::parse(t).unwrap(), taken)).into();
        let mut jobs = Vec::new();
        let mut refused = Vec::new();
        for tenant in ["a", "a", "b", "a", "b"] {
            refused.push(plan(item(tenant, false), &mut tokens, || JobId::mint(3), &mut jobs));
        }
        assert!(plan(item("a", true), &mut tokens, || JobId::mint(3), &mut jobs).is_none(), "a batch has paid before");
        let over = Some(Refused::RateLimited(Duration::from_secs(6)));
        assert_eq!(refused, [None, None, None, over.clone(), over]);
        assert_eq!(jobs.len(), 4);
    }

    #[test]
    fn minted_ids_share_their_groups_shard_and_derived_ones_stay() {
        let (mut tokens, mut jobs) = (HashMap::new(), Vec::new());
        let derived = JobId::derive("job", &Tenant::default(), "k");
        for n in 0..4 {
            plan(
                Item { id: (n == 2).then_some(derived), ..item("a", true) },
                &mut tokens,
                || JobId::mint(19),
                &mut jobs,
            );
        }
        assert_eq!(jobs[2].id, derived);
        assert!([0, 1, 3].iter().all(|n| jobs[*n as usize].id.shard() == 3));
    }
}
