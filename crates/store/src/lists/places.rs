//! Places: where new jobs and runs are listed, and which lists are noted before they are put on them.
//!
//! This module knows the lists of a tenant, and which of them are noted for readers. No job is put on a list that is
//! not noted. A node that is away stops no tenant for which this process has placed jobs before, for at least ten
//! minutes. The list of the current ten minutes is the first choice. If its node has not answered after [`PATIENCE`],
//! the same jobs are put on another list of the same ten minutes, which is on another node, and the first answer
//! counts: if the entries on the other list arrive too, they are at places that no record remembers. A single server
//! has no other list. A place counts only once the record remembers it.
//!
//! Lists are noted ahead, so that the note exists when the node of the note is away: the list of the next ten minutes,
//! and a second choice if the first one is on the same node as the note. Any other second choice is noted when it is
//! needed. So hardly any list is noted and stays empty.

use std::{
    collections::{BTreeMap, HashSet},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::{join_all, select_ok};
use muster_domain::{JobId, RunId, ShardedId, Tenant, Time};
use tokio::time::{sleep, timeout};

use crate::{
    NewJob, Store, StoreError, keys,
    place::{Bucket, Listing, Place},
    router::Command,
    script::number,
};

/// How long the first choice may take before the second is tried as well.
const PATIENCE: Duration = Duration::from_millis(200);
/// How many second choices are tried to find one on another node.
const CHOICES: u8 = 8;
/// How many noted lists a process remembers. It notes forgotten ones again.
const MOST_NOTED: usize = 100_000;

/// Lists that this process has noted. Clones share the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted(Arc<Mutex<HashSet<(Listing, Tenant, Bucket)>>>);

impl Noted {
    fn has(&self, of: Listing, tenant: &Tenant, bucket: Bucket) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&(of, tenant.clone(), bucket))
    }

    fn add(&self, of: Listing, tenant: &Tenant, buckets: &[Bucket]) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(oldest)) = (noted.len() >= MOST_NOTED, buckets.iter().min()) {
            noted.retain(|(.., bucket)| bucket.span + 1 >= oldest.span);
        }
        if noted.len() >= MOST_NOTED {
            noted.clear();
        }
        noted.extend(buckets.iter().map(|bucket| (of, tenant.clone(), *bucket)));
    }
}

/// An id whose things are listed.
pub(crate) trait Listed: ShardedId {
    /// The lists.
    const LISTING: Listing;
}

impl Listed for JobId {
    const LISTING: Listing = Listing::Jobs;
}

impl Listed for RunId {
    const LISTING: Listing = Listing::Runs;
}

impl Store {
    /// Gives new jobs a place in their tenants' listings; a failure affects only its own tenant.
    pub(crate) async fn place_jobs(&self, jobs: &[NewJob]) -> Vec<Result<Place, StoreError>> {
        let bucket = Bucket::at(self.now());
        let mut tenants: BTreeMap<&Tenant, Vec<usize>> = BTreeMap::new();
        for (n, job) in jobs.iter().enumerate() {
            tenants.entry(&job.spec.tenant).or_default().push(n);
        }
        let mut places: Vec<_> = jobs.iter().map(|_| Err(StoreError::Decode("no place".into()))).collect();
        let all = tenants.into_iter().map(|(tenant, members)| async move {
            let ids: Vec<JobId> = members.iter().map(|n| jobs[*n].id).collect();
            (members, self.place(tenant, bucket, &ids).await)
        });
        for (members, placed) in join_all(all).await {
            match placed {
                Ok(placed) => members.into_iter().zip(placed).for_each(|(n, place)| places[n] = Ok(place)),
                Err(fault) => members.into_iter().for_each(|n| places[n] = Err(fault.clone())),
            }
        }
        places
    }

    /// Lists jobs of a tenant under a time; returns their places, in order. A repetition adds entries, and gives other
    /// places.
    pub async fn index_jobs(&self, tenant: &Tenant, jobs: &[(JobId, Time)]) -> Result<Vec<Place>, StoreError> {
        let mut buckets: BTreeMap<Bucket, Vec<usize>> = BTreeMap::new();
        for (n, (_, at)) in jobs.iter().enumerate() {
            buckets.entry(Bucket::at(*at)).or_default().push(n);
        }
        let mut places = vec![Place::new(Bucket::LAST, 0); jobs.len()];
        for (bucket, members) in buckets {
            if !self.noted.has(Listing::Jobs, tenant, bucket) {
                self.note(Listing::Jobs, tenant, vec![bucket]).await?;
            }
            let ids: Vec<JobId> = members.iter().map(|n| jobs[*n].0).collect();
            let placed = self.push(tenant, bucket, &ids).await?;
            members.into_iter().zip(placed).for_each(|(n, place)| places[n] = place);
        }
        Ok(places)
    }

    /// Gives new jobs or runs of a tenant a place in its listing. A repetition adds entries, and gives other places.
    pub(crate) async fn place<I: Listed>(
        &self,
        tenant: &Tenant,
        bucket: Bucket,
        ids: &[I],
    ) -> Result<Vec<Place>, StoreError> {
        if !self.noted.has(I::LISTING, tenant, bucket) {
            self.note(I::LISTING, tenant, self.ahead(I::LISTING, tenant, bucket)).await?;
        }
        let note_next = async {
            if !self.noted.has(I::LISTING, tenant, bucket.next()) {
                // A failure is harmless: there are ten minutes left to try again.
                let ahead = self.ahead(I::LISTING, tenant, bucket);
                let _ = timeout(PATIENCE, self.note(I::LISTING, tenant, ahead)).await;
            }
        };
        tokio::join!(self.push_to_either(tenant, bucket, ids), note_next).0
    }

    /// Uses the first choice or, if its node does not answer soon, the second.
    async fn push_to_either<I: Listed>(
        &self,
        tenant: &Tenant,
        first: Bucket,
        ids: &[I],
    ) -> Result<Vec<Place>, StoreError> {
        let Some(second) = self.second_choice(I::LISTING, tenant, first) else {
            return self.push(tenant, first, ids).await;
        };
        let instead = async {
            sleep(PATIENCE).await;
            if !self.noted.has(I::LISTING, tenant, second) {
                self.note_lists(I::LISTING, tenant, &[second]).await?;
                self.noted.add(I::LISTING, tenant, &[second]);
            }
            self.push(tenant, second, ids).await
        };
        let (first, instead) = (pin!(self.push(tenant, first, ids)), pin!(instead));
        let both: [Pin<&mut (dyn Future<Output = _> + Send)>; 2] = [first, instead];
        select_ok(both).await.map(|(places, _)| places)
    }

    /// Puts jobs or runs on a list, in order.
    async fn push<I: Listed>(&self, tenant: &Tenant, bucket: Bucket, ids: &[I]) -> Result<Vec<Place>, StoreError> {
        let key = keys::listing(I::LISTING, tenant, bucket);
        let mut cmd = redis::cmd("RPUSH");
        cmd.arg(key.as_bytes());
        for id in ids {
            cmd.arg(id.as_bytes().as_slice());
        }
        let length: u64 = number(&self.router().call(Command::plain(cmd)).await?)?;
        let first = length.saturating_sub(ids.len() as u64);
        Ok((first..length).map(|position| Place::new(bucket, position)).collect())
    }

    /// A list of the same ten minutes on another node; none if there is no other node.
    fn second_choice(&self, of: Listing, tenant: &Tenant, first: Bucket) -> Option<Bucket> {
        if !self.router().is_cluster() {
            return None;
        }
        let away = keys::listing(of, tenant, first);
        (1..=CHOICES)
            .map(|choice| Bucket { choice, ..first })
            .find(|second| !self.router().share_a_node(away.as_bytes(), keys::listing(of, tenant, *second).as_bytes()))
    }

    /// The lists that are noted together with a list, because they could not be noted when they are needed.
    fn ahead(&self, of: Listing, tenant: &Tenant, bucket: Bucket) -> Vec<Bucket> {
        let note = keys::buckets(of, tenant);
        let mut lists = Vec::new();
        for first in [bucket, bucket.next()] {
            lists.push(first);
            if self.router().share_a_node(note.as_bytes(), keys::listing(of, tenant, first).as_bytes()) {
                lists.extend(self.second_choice(of, tenant, first));
            }
        }
        lists
    }

    /// Notes lists and their tenant, and remembers that.
    async fn note(&self, of: Listing, tenant: &Tenant, buckets: Vec<Bucket>) -> Result<(), StoreError> {
        self.note_buckets(of, tenant, &buckets).await?;
        self.noted.add(of, tenant, &buckets);
        Ok(())
    }

    /// Notes that these listings exist, and their tenant; returns how many had not been noted. Repeating is harmless.
    pub(crate) async fn note_buckets(
        &self,
        of: Listing,
        tenant: &Tenant,
        buckets: &[Bucket],
    ) -> Result<u64, StoreError> {
        let tenants = keys::listed_tenants(of);
        let mut name = redis::cmd("SADD");
        name.arg(tenants.as_bytes()).arg(tenant.as_str());
        let named = self.router().call(Command::plain(name));
        let (noted, named) = tokio::join!(self.note_lists(of, tenant, buckets), named);
        named?;
        noted
    }

    /// The same for a tenant that is known to have listings.
    async fn note_lists(&self, of: Listing, tenant: &Tenant, buckets: &[Bucket]) -> Result<u64, StoreError> {
        let key = keys::buckets(of, tenant);
        let mut note = redis::cmd("ZADD");
        note.arg(key.as_bytes());
        for bucket in buckets {
            note.arg(bucket.span).arg(bucket.number());
        }
        number(&self.router().call(Command::plain(note)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let (noted, tenant) = (Noted::default(), Tenant::default());
        let old: Vec<Bucket> = (0..MOST_NOTED as u64 - 1).map(Bucket::first).collect();
        noted.add(Listing::Jobs, &tenant, &old);
        let now = Bucket::first(MOST_NOTED as u64);
        noted.add(Listing::Jobs, &tenant, &[now]);
        noted.add(Listing::Jobs, &tenant, &[now.next()]);
        let has = |bucket| noted.has(Listing::Jobs, &tenant, bucket);
        assert!(has(now.next()) && has(now) && !has(old[0]));
        assert!(!noted.has(Listing::Runs, &tenant, now), "lists of runs are others");
        // No list is old: all are forgotten, and noted again.
        let tenants = (0..MOST_NOTED).map(|n| Tenant::parse(&format!("t{n}")).unwrap());
        tenants.for_each(|tenant| noted.add(Listing::Jobs, &tenant, &[now]));
        assert!(noted.0.lock().unwrap().len() <= MOST_NOTED);
    }
}
