//! One commit: takes rate tokens, mints ids, writes both stores and answers.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use muster_domain::{JobId, Tenant};
use muster_store::{NewJob, Taken, Want};

use super::{Entry, Item, NotCommitted, Outcome, deferred::Deferred};
use crate::{
    Accepted, Flow, SubmitRefused,
    admission::{
        limits::{Bucket, Limits},
        refusal::Refusal,
    },
};

/// Commits groups. Clones share the same state.
#[derive(Clone)]
pub(super) struct Committer {
    flow: Flow,
    limits: Arc<Limits>,
    /// Submits that the bus did not confirm.
    deferred: Arc<Deferred>,
    /// Selects the home shard of the next group. Each group writes to one shard, and the shards take turns.
    shard: Arc<AtomicU8>,
}

impl Committer {
    pub(super) fn new(flow: Flow, limits: Arc<Limits>, deferred: Arc<Deferred>) -> Committer {
        Committer { flow, limits, deferred, shard: Arc::new(AtomicU8::new(fastrand::u8(..))) }
    }

    /// Commits a group and answers each of its entries.
    pub(super) fn commit(&self, group: Vec<Entry>) -> impl Future<Output = ()> + use<> {
        let committer = self.clone();
        async move { committer.carry_out(group).await }
    }

    async fn carry_out(&self, group: Vec<Entry>) {
        let mut tokens = self.tokens(&group).await;
        let shard = self.flow.store.home_shard(self.shard.fetch_add(1, Ordering::Relaxed));
        let mint = || self.flow.store.mint(shard);
        let mut jobs = Vec::with_capacity(group.len());
        let mut plans = Vec::with_capacity(group.len());
        let mut unpaid = Vec::new();
        for Entry { items, reply, .. } in group {
            // These jobs may turn out to be repeats.
            unpaid.extend(items.iter().filter(|item| !item.paid).filter_map(|item| item.id));
            let plan = items.into_iter().map(|item| plan(item, &mut tokens, mint, &mut jobs)).collect::<Vec<_>>();
            plans.push((plan, reply));
        }
        let outcomes = if jobs.is_empty() { Vec::new() } else { self.flow.submit(&mut jobs).await };
        if !unpaid.is_empty() {
            self.give_back(&unpaid, &jobs, &outcomes).await;
        }
        let mut outcomes = jobs.into_iter().zip(outcomes);
        for (plan, reply) in plans {
            let mut answer = |unpaid: Option<NotCommitted>| -> Outcome {
                if let Some(unpaid) = unpaid {
                    return Err(unpaid);
                }
                match outcomes.next() {
                    Some((job, Ok(accepted))) => Ok((job, accepted)),
                    Some((_, Err(refused))) => Err(NotCommitted::Refused(refused.into())),
                    None => Err(NotCommitted::Refused(Refusal::Lost)),
                }
            };
            let answers: Vec<Outcome> = plan.into_iter().map(&mut answer).collect();
            self.deferred.note(&answers);
            // The send fails if the client has left. The job is stored all the same, and the client finds it by its
            // key.
            let _ = reply.send(answers);
        }
    }

    /// Returns the tokens of jobs that were stored before: a repeat costs nothing. This happens before the answers go
    /// out, so that a client that has its answer finds the token returned.
    async fn give_back(&self, unpaid: &[JobId], jobs: &[NewJob], outcomes: &[Result<Accepted, SubmitRefused>]) {
        let mut back: HashMap<&Tenant, u32> = HashMap::new();
        for (job, outcome) in jobs.iter().zip(outcomes) {
            if matches!(outcome, Ok(accepted) if accepted.replayed) && unpaid.contains(&job.id) {
                *back.entry(&job.spec.tenant).or_default() += 1;
            }
        }
        let gives = back.into_iter().map(|(tenant, n)| self.limits.give_back(tenant, n));
        futures_util::future::join_all(gives).await;
    }

    /// Takes the rate tokens with one call per tenant, for all of the tenant's items at once.
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

/// Adds an item to `jobs`, or returns it if its tenant is over the rate. Items take their tokens in order of arrival.
fn plan(
    item: Item,
    tokens: &mut HashMap<Tenant, Taken>,
    mint: impl FnOnce() -> JobId,
    jobs: &mut Vec<NewJob>,
) -> Option<NotCommitted> {
    if !item.paid {
        match tokens.get_mut(&item.spec.tenant) {
            Some(left) if left.granted > 0 => left.granted -= 1,
            other => {
                let retry_after = other.map_or(Duration::ZERO, |t| t.retry_after);
                return Some(NotCommitted::Unpaid { item: Box::new(item), retry_after });
            }
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
            let unpaid = plan(item(tenant, false), &mut tokens, || JobId::mint(3), &mut jobs);
            refused.push(unpaid.map(Refusal::from));
        }
        assert!(plan(item("a", true), &mut tokens, || JobId::mint(3), &mut jobs).is_none(), "a batch has paid before");
        let over = Some(Refusal::RateLimited { retry_after: Duration::from_secs(6) });
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
