//! Retention of runs: removes ended runs after a while, with their timelines and listings.
//!
//! A round reads the listings of runs that may hold a run that is due, oldest first. A run is deleted only if it ended
//! long enough ago, has no home any more, and no stored run needs it; the delete compares the version that was read. A
//! listing is dropped when no run on it is left and none was added meanwhile. Each step is bounded and may be repeated,
//! also by a second leader. The caller says what a stored run is, because its fields are opaque here. The jobs of a run
//! stay while the run does; the retention of jobs deletes them afterwards.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use muster_domain::{RunId, Tenant, Time};

use crate::{
    LeaderLock, Lease, Store, StoreError, StoredRun, keys,
    place::{BUCKET, Bucket, Listing, Place},
    router::Command,
    script::list,
    scripts,
};

/// The most runs that one call reads.
const SLICE: usize = 500;
/// How long after its ten minutes a late gateway may still add runs to a listing.
const LATE: Duration = Duration::from_micros(BUCKET);
/// The most listings whose next check is remembered. Forgotten ones are checked again.
const MOST_REMEMBERED: usize = 100_000;

/// What retention must know of a stored run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAge {
    /// When it ended; [`Time::NONE`] before.
    pub ended: Time,
    /// The runs that need it while they are stored.
    pub needed_by: Vec<RunId>,
}

/// How the caller reads the age of a run; none for a run that cannot be read.
pub type ReadAge = dyn Fn(&StoredRun) -> Option<RunAge> + Send + Sync;

/// The progress of a round over all tenants. If it is lost, only checks are repeated.
#[derive(Debug, Default)]
pub struct RunRetentionWalk {
    /// The tenants that are left in this round; none between two rounds.
    tenants: Option<VecDeque<Tenant>>,
    /// The listings of the first tenant that are due; none before they were read.
    buckets: Option<VecDeque<Bucket>>,
    visit: Option<Visit>,
    /// When to check listings again whose runs stayed.
    looks: HashMap<(Tenant, Bucket), Time>,
    next: Option<Time>,
}

impl RunRetentionWalk {
    /// A walk that has not begun yet.
    pub fn new() -> RunRetentionWalk {
        RunRetentionWalk::default()
    }

    fn due_at(&mut self, at: Time) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

/// The progress of reading one listing.
#[derive(Debug)]
struct Visit {
    bucket: Bucket,
    /// The length at the first read.
    length: u64,
    position: u64,
    /// A run stays.
    stays: bool,
    /// When the first of the ended runs is due.
    due: Option<Time>,
}

/// The result of one step of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunsRetained {
    /// Entries of listings that were checked.
    pub looked: u64,
    /// Runs that were deleted.
    pub runs: u64,
    /// The same by tenant, for tenants of which some were deleted.
    pub by_tenant: BTreeMap<Tenant, u64>,
    /// Listings that were dropped.
    pub listings: u64,
    /// Runs that could not be read; they stay.
    pub unreadable: u64,
    /// The round is over; the next step begins another.
    pub passed: bool,
    /// When something is due again; set at the end of a round.
    pub next: Option<Duration>,
}

/// How much later than due a run may be deleted, so that many are deleted together.
fn grain(keep: Duration) -> Duration {
    keep / 24
}

/// When a listing is checked for the first time.
fn first_look(bucket: Bucket, keep: Duration) -> Time {
    bucket.begins() + keep + grain(keep)
}

impl Store {
    /// One step of a round: checks about `limit` entries of listings that are due, and deletes the runs that ended
    /// before `keep`. Reads `fields` of each run for `age`, which returns none for a run that cannot be read. Repeating
    /// is harmless. After an error, including a lost lease, the next step continues where this one stopped.
    pub async fn retain_runs(
        &self,
        lease: &Lease,
        walk: &mut RunRetentionWalk,
        keep: Duration,
        limit: usize,
        fields: &[&[u8]],
        age: &ReadAge,
    ) -> Result<RunsRetained, StoreError> {
        let mut done = RunsRetained::default();
        if walk.tenants.is_none() {
            walk.next = None;
            walk.tenants = Some(self.tenants_with(Listing::Runs).await?);
        }
        let mut calls = 0;
        while done.looked < limit as u64 && calls < limit {
            calls += 1;
            lease.leads(LeaderLock::Retention)?;
            let Some(tenant) = walk.tenants.as_ref().and_then(|tenants| tenants.front()).cloned() else {
                walk.tenants = None;
                done.passed = true;
                done.next = walk.next.map(|at| at.remaining(self.now()));
                break;
            };
            if let Some(mut visit) = walk.visit.take() {
                let seen = self.visit_runs(&tenant, &mut visit, keep, (fields, age), &mut done).await;
                if seen.is_err() || visit.position < visit.length {
                    walk.visit = Some(visit);
                    seen?;
                    continue;
                }
                self.close_runs(&tenant, &visit, keep, walk, &mut done).await?;
                continue;
            }
            if walk.buckets.is_none() {
                walk.buckets = Some(self.due_runs(&tenant, keep, walk).await?);
            }
            match walk.buckets.as_mut().and_then(VecDeque::pop_front) {
                Some(bucket) => {
                    let length = self.bucket_length(Listing::Runs, &tenant, bucket).await?;
                    walk.visit = Some(Visit { bucket, length, position: 0, stays: false, due: None });
                }
                None => {
                    walk.buckets = None;
                    walk.tenants.as_mut().and_then(VecDeque::pop_front);
                }
            }
        }
        Ok(done)
    }

    /// A tenant's listings of runs that are due for a check, oldest first.
    async fn due_runs(
        &self,
        tenant: &Tenant,
        keep: Duration,
        walk: &mut RunRetentionWalk,
    ) -> Result<VecDeque<Bucket>, StoreError> {
        let (now, key) = (self.now(), keys::buckets(Listing::Runs, tenant));
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(key.as_bytes()).arg(0).arg(-1);
        let noted = list(self.router().call(Command::plain(cmd)).await?)?;
        if noted.is_empty() {
            // Its next run notes it again.
            let mut forget = redis::cmd("SREM");
            forget.arg(keys::listed_tenants(Listing::Runs).as_bytes()).arg(tenant.as_str());
            self.router().call(Command::plain(forget)).await?;
        }
        let mut due = VecDeque::new();
        for bucket in noted.iter().filter_map(|member| Bucket::parse(member)) {
            let at = walk.looks.get(&(tenant.clone(), bucket)).copied();
            let at = at.unwrap_or_else(|| first_look(bucket, keep));
            if at.reached(now) {
                due.push_back(bucket);
            } else {
                walk.due_at(at);
            }
        }
        Ok(due)
    }

    /// Checks the next slice of a listing, and deletes the runs that are due.
    async fn visit_runs(
        &self,
        tenant: &Tenant,
        visit: &mut Visit,
        keep: Duration,
        (fields, age): (&[&[u8]], &ReadAge),
        done: &mut RunsRetained,
    ) -> Result<(), StoreError> {
        if visit.length == 0 {
            // Lists are noted before there are runs.
            return Ok(());
        }
        let end = visit.length.min(visit.position + SLICE as u64);
        let ids = self.bucket_slice::<RunId>(tenant, visit.bucket, visit.position, end).await?;
        let runs = self.read_runs(&ids, fields).await;
        let (now, mut leaving) = (self.now(), Vec::new());
        for ((position, id), run) in (visit.position..).zip(&ids).zip(runs) {
            let run = match run {
                Err(fault) if fault.is_retryable() => return Err(fault),
                Err(_) => None,
                Ok(None) => continue,
                Ok(Some(run)) if run.place != Some(Place::new(visit.bucket, position)) => continue,
                Ok(Some(run)) => age(&run).map(|age| (run.version, age)),
            };
            match run {
                // An operator must repair it; until then it stays.
                None => (visit.stays, done.unreadable) = (true, done.unreadable + 1),
                Some((_, age)) if age.ended == Time::NONE => visit.stays = true,
                Some((version, age)) => {
                    let due = age.ended + keep;
                    if due.reached(now) {
                        leaving.push((*id, version, age.needed_by));
                    } else {
                        visit.due = Some(visit.due.map_or(due, |first| first.min(due)));
                    }
                }
            }
        }
        let needed: HashSet<RunId> = leaving.iter().flat_map(|(.., needed_by)| needed_by).copied().collect();
        let asked: Vec<RunId> = needed.into_iter().collect();
        let mut stored = HashSet::new();
        for (run, answer) in asked.iter().zip(self.have_runs(&asked).await) {
            if answer? {
                stored.insert(*run);
            }
        }
        for (id, version, needed_by) in leaving {
            // A run with a home has something left to do.
            let stays = needed_by.iter().any(|run| stored.contains(run)) || self.home_of(id).await?.is_some();
            if stays || !self.delete_run(id, version).await? {
                visit.stays = true;
                continue;
            }
            done.runs += 1;
            *done.by_tenant.entry(tenant.clone()).or_default() += 1;
        }
        done.looked += ids.len() as u64;
        visit.position = end;
        Ok(())
    }

    /// Ends the visit of a listing: drops it if no run is left, otherwise remembers when to check it again.
    async fn close_runs(
        &self,
        tenant: &Tenant,
        visit: &Visit,
        keep: Duration,
        walk: &mut RunRetentionWalk,
        done: &mut RunsRetained,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let is_empty = !visit.stays && visit.due.is_none();
        if is_empty && (visit.bucket.ends() + LATE).reached(now) {
            let key = keys::listing(Listing::Runs, tenant, visit.bucket);
            if self.run(scripts::listing::Drop { key, length: visit.length }).await?.dropped == 1 {
                // If the process dies here, the next check finds an empty list and removes its note.
                let buckets = keys::buckets(Listing::Runs, tenant);
                let mut cmd = redis::cmd("ZREM");
                cmd.arg(buckets.as_bytes()).arg(visit.bucket.number());
                self.router().call(Command::plain(cmd)).await?;
                walk.looks.remove(&(tenant.clone(), visit.bucket));
                done.listings += 1;
                return Ok(());
            }
        }
        let latest = now + keep;
        let at = match (visit.stays, visit.due) {
            (false, None) => visit.bucket.ends() + LATE,
            // A run that stays may be needed by one that is deleted in this round.
            (true, None) => now + grain(keep),
            // The time may be shortened meanwhile.
            (_, Some(due)) => due.min(latest),
        };
        let at = at.max(now + grain(keep));
        if walk.looks.len() >= MOST_REMEMBERED {
            walk.looks.clear();
        }
        walk.looks.insert((tenant.clone(), visit.bucket), at);
        walk.due_at(at);
        Ok(())
    }
}
