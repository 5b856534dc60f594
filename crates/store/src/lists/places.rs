//! Places: where new jobs are listed, and what is noted of the lists before anybody is put on them.
//!
//! Knows: the lists of a tenant, and which of them readers have been told of. Promises: nobody is put
//! on a list that is not noted; a node that is away stops nobody whose tenant this process has placed jobs
//! for before, for ten minutes at least. The list of these ten minutes is the first choice. If its node has
//! not answered after [`PATIENCE`], the same jobs are put on another list of the same ten minutes,
//! which stands on another node, and whoever answers first counts: the other's entries, should they
//! land, are at places that no record remembers. A single server has no other list. Leaves to
//! others: the record, which makes a place count.
//!
//! What is noted is noted ahead, so that it is there when the node of the note is away: the list of
//! the next ten minutes, and a second choice whose list stands with the note. Any other second choice
//! is noted when it is needed. So hardly any list is noted and stays empty.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::{join_all, select_ok};
use muster_domain::{JobId, Tenant, Time};
use tokio::time::{sleep, timeout};

use crate::{NewJob, Store, StoreError, keys, router::Command, script::number};

/// Length of a list's time, in microseconds.
pub(crate) const BUCKET: u64 = 600_000_000;

/// How long the first choice may take before the second is tried as well.
const PATIENCE: Duration = Duration::from_millis(200);
/// Second choices that are looked at for one on another node.
const CHOICES: u8 = 8;
/// Lists that a process remembers to have noted. It notes again what it has forgotten.
const MOST_NOTED: usize = 100_000;

/// One list of a tenant's jobs: which ten minutes since 1970, and which choice for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bucket {
    pub(crate) span: u32,
    pub(crate) choice: u8,
}

impl Bucket {
    /// Bits of a number that say which ten minutes it is: enough until the year 2288.
    const SPAN_BITS: u32 = 24;
    const LAST_SPAN: u32 = (1 << Bucket::SPAN_BITS) - 1;
    /// Later than all that there are.
    pub(crate) const LAST: Bucket = Bucket { span: Bucket::LAST_SPAN, choice: u8::MAX };

    /// The first choice of the ten minutes that began so many times ten minutes after 1970.
    pub(crate) fn first(span: u64) -> Bucket {
        let span = u32::try_from(span).unwrap_or(u32::MAX).min(Bucket::LAST_SPAN);
        Bucket { span, choice: 0 }
    }

    /// The first choice at a moment.
    pub(crate) fn at(time: Time) -> Bucket {
        Bucket::first(time.0 / BUCKET)
    }

    /// As stored: a first choice has the number of its ten minutes.
    pub(crate) fn number(self) -> u32 {
        u32::from(self.choice) << Bucket::SPAN_BITS | self.span
    }

    pub(crate) fn from_number(number: u32) -> Bucket {
        Bucket { span: number & Bucket::LAST_SPAN, choice: (number >> Bucket::SPAN_BITS) as u8 }
    }

    /// A member of the index of lists.
    pub(crate) fn parse(text: &[u8]) -> Option<Bucket> {
        Some(Bucket::from_number(std::str::from_utf8(text).ok()?.parse().ok()?))
    }

    /// When its ten minutes began.
    pub(crate) fn begins(self) -> Time {
        Time(u64::from(self.span) * BUCKET)
    }

    /// When they are over.
    pub(crate) fn ends(self) -> Time {
        Time((u64::from(self.span) + 1) * BUCKET)
    }

    fn next(self) -> Bucket {
        Bucket::first(u64::from(self.span) + 1)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// Where a listing names a job: which list, and at which position of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    bucket: Bucket,
    position: u32,
}

impl Place {
    pub(crate) fn new(bucket: Bucket, position: u64) -> Place {
        Place { bucket, position: u32::try_from(position).unwrap_or(u32::MAX) }
    }

    pub(crate) fn bucket(self) -> Bucket {
        self.bucket
    }

    pub(crate) fn position(self) -> u64 {
        self.position.into()
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.bucket.number()) << 32 | u64::from(self.position)).to_be_bytes()
    }

    pub(crate) fn from_bytes(raw: &[u8]) -> Option<Place> {
        let both = u64::from_be_bytes(raw.try_into().ok()?);
        Some(Place { bucket: Bucket::from_number((both >> 32) as u32), position: both as u32 })
    }
}

/// Lists that this process has noted. Copies are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted(Arc<Mutex<HashSet<(Tenant, Bucket)>>>);

impl Noted {
    fn has(&self, tenant: &Tenant, bucket: Bucket) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&(tenant.clone(), bucket))
    }

    fn add(&self, tenant: &Tenant, buckets: &[Bucket]) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(oldest)) = (noted.len() >= MOST_NOTED, buckets.iter().min()) {
            noted.retain(|(_, bucket)| bucket.span + 1 >= oldest.span);
        }
        if noted.len() >= MOST_NOTED {
            noted.clear();
        }
        noted.extend(buckets.iter().map(|bucket| (tenant.clone(), *bucket)));
    }
}

impl Store {
    /// Gives new jobs a place in their tenants' listings, each tenant for itself.
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

    /// Lists jobs of a tenant under a moment; the places they got, in order. A repeat adds entries, and
    /// gives other places.
    pub async fn index_jobs(&self, tenant: &Tenant, jobs: &[(JobId, Time)]) -> Result<Vec<Place>, StoreError> {
        let mut buckets: BTreeMap<Bucket, Vec<usize>> = BTreeMap::new();
        for (n, (_, at)) in jobs.iter().enumerate() {
            buckets.entry(Bucket::at(*at)).or_default().push(n);
        }
        let mut places = vec![Place::new(Bucket::LAST, 0); jobs.len()];
        for (bucket, members) in buckets {
            if !self.noted.has(tenant, bucket) {
                self.note(tenant, vec![bucket]).await?;
            }
            let ids: Vec<JobId> = members.iter().map(|n| jobs[*n].0).collect();
            let placed = self.push(tenant, bucket, &ids).await?;
            members.into_iter().zip(placed).for_each(|(n, place)| places[n] = place);
        }
        Ok(places)
    }

    async fn place(&self, tenant: &Tenant, bucket: Bucket, ids: &[JobId]) -> Result<Vec<Place>, StoreError> {
        if !self.noted.has(tenant, bucket) {
            self.note(tenant, self.ahead(tenant, bucket)).await?;
        }
        let note_next = async {
            if !self.noted.has(tenant, bucket.next()) {
                // Whether it succeeds or not: there are ten minutes left to try.
                let _ = timeout(PATIENCE, self.note(tenant, self.ahead(tenant, bucket))).await;
            }
        };
        tokio::join!(self.push_to_either(tenant, bucket, ids), note_next).0
    }

    /// The first choice or, if its node does not answer soon, the second.
    async fn push_to_either(&self, tenant: &Tenant, first: Bucket, ids: &[JobId]) -> Result<Vec<Place>, StoreError> {
        let Some(second) = self.second_choice(tenant, first) else { return self.push(tenant, first, ids).await };
        let instead = async {
            sleep(PATIENCE).await;
            if !self.noted.has(tenant, second) {
                self.note_lists(tenant, &[second]).await?;
                self.noted.add(tenant, &[second]);
            }
            self.push(tenant, second, ids).await
        };
        let (first, instead) = (pin!(self.push(tenant, first, ids)), pin!(instead));
        let both: [Pin<&mut (dyn Future<Output = _> + Send)>; 2] = [first, instead];
        select_ok(both).await.map(|(places, _)| places)
    }

    /// Puts jobs on a list, in order.
    async fn push(&self, tenant: &Tenant, bucket: Bucket, ids: &[JobId]) -> Result<Vec<Place>, StoreError> {
        let key = keys::listing(tenant, bucket);
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
    fn second_choice(&self, tenant: &Tenant, first: Bucket) -> Option<Bucket> {
        if !self.router().is_cluster() {
            return None;
        }
        let away = keys::listing(tenant, first);
        (1..=CHOICES)
            .map(|choice| Bucket { choice, ..first })
            .find(|second| !self.router().share_a_node(away.as_bytes(), keys::listing(tenant, *second).as_bytes()))
    }

    /// What is noted together with a list, because it could not be noted when it is needed.
    fn ahead(&self, tenant: &Tenant, bucket: Bucket) -> Vec<Bucket> {
        let note = keys::buckets(tenant);
        let mut lists = Vec::new();
        for first in [bucket, bucket.next()] {
            lists.push(first);
            if self.router().share_a_node(note.as_bytes(), keys::listing(tenant, first).as_bytes()) {
                lists.extend(self.second_choice(tenant, first));
            }
        }
        lists
    }

    /// Notes lists, and whose they are, and remembers that.
    async fn note(&self, tenant: &Tenant, buckets: Vec<Bucket>) -> Result<(), StoreError> {
        self.note_buckets(tenant, &buckets).await?;
        self.noted.add(tenant, &buckets);
        Ok(())
    }

    /// Notes that these listings exist, and whose they are; tells how many had not been noted. Repeating
    /// is harmless.
    pub(crate) async fn note_buckets(&self, tenant: &Tenant, buckets: &[Bucket]) -> Result<u64, StoreError> {
        let tenants = keys::listed_tenants();
        let mut name = redis::cmd("SADD");
        name.arg(tenants.as_bytes()).arg(tenant.as_str());
        let named = self.router().call(Command::plain(name));
        let (noted, named) = tokio::join!(self.note_lists(tenant, buckets), named);
        named?;
        noted
    }

    /// The same for a tenant that is known to have listings.
    async fn note_lists(&self, tenant: &Tenant, buckets: &[Bucket]) -> Result<u64, StoreError> {
        let key = keys::buckets(tenant);
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
    fn a_first_choice_has_the_number_of_its_ten_minutes_and_places_survive_their_bytes() {
        let first = Bucket::at(Time(2_962_000 * BUCKET + 7));
        assert_eq!((first.number(), first.to_string().as_str()), (2_962_000, "2962000"));
        let second = Bucket { choice: 3, ..first };
        assert_eq!((second.begins(), second.ends()), (Time(2_962_000 * BUCKET), Time(2_962_001 * BUCKET)));
        for bucket in [first, second, Bucket::LAST] {
            assert_eq!(Bucket::parse(bucket.to_string().as_bytes()), Some(bucket));
            let place = Place::new(bucket, 77);
            assert_eq!(Place::from_bytes(&place.to_bytes()), Some(place));
        }
        assert!(first < second && second < first.next(), "by time, then by choice");
        assert_eq!(Bucket::parse(b"buckets"), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let (noted, tenant) = (Noted::default(), Tenant::default());
        let old: Vec<Bucket> = (0..MOST_NOTED as u64 - 1).map(Bucket::first).collect();
        noted.add(&tenant, &old);
        let now = Bucket::first(MOST_NOTED as u64);
        noted.add(&tenant, &[now]);
        noted.add(&tenant, &[now.next()]);
        assert!(noted.has(&tenant, now.next()) && noted.has(&tenant, now) && !noted.has(&tenant, old[0]));
        // Nobody is old: all is forgotten, and noted again.
        let tenants = (0..MOST_NOTED).map(|n| Tenant::parse(&format!("t{n}")).unwrap());
        tenants.for_each(|tenant| noted.add(&tenant, &[now]));
        assert!(noted.0.lock().unwrap().len() <= MOST_NOTED);
    }
}
