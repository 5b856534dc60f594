//! Deletes ended jobs and runs after their retention time, with their listings, dead letters and timelines, to bound the
//! storage.
//!
//! Works in steps until nothing is due, at most half of the time, then sleeps until something is due. After each
//! pass, the loop writes one audit entry for each tenant with what the pass deleted; if that fails, the next pass
//! includes it. Leaves to others: finding what is due, and conditional writes (`store`).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::{Act, JobId, Tenant};
use muster_replica::{LoopOf, Member};
use muster_runs::{AGE_FIELDS, run_age};
use muster_store::{LeaderLock, Lease, Removed, Retention, RetentionWalk, RunRetentionWalk, Store, StoreError};

use crate::{settings, state::Gateway, topics};

/// The most entries of listings that one step reads.
const BATCH: usize = 500;
/// The shortest pause between two rounds.
const PAUSE: Duration = Duration::from_secs(1);

/// The loop that deletes ended jobs and runs.
pub(super) struct RetentionLoop {
    store: Store,
    /// Returns the retention times that apply now: of jobs, and of runs.
    keep: Box<dyn Fn() -> (Retention, Duration) + Send + Sync>,
    walk: RetentionWalk,
    runs: RunRetentionWalk,
    /// What was deleted and is not in the audit log yet; with it, how many runs.
    untold: BTreeMap<Tenant, (Removed, u64)>,
}

impl LoopOf<Gateway> for RetentionLoop {
    fn make(member: &Member, gateway: &Gateway) -> Option<RetentionLoop> {
        // The loop calls this before every pass, because the retention times may change while it runs.
        let keeping = gateway.clone();
        let keep = move || {
            let values = keeping.config.now();
            let jobs = topics::retention(&keeping.flow.settings, &settings::retention(&values));
            (jobs, settings::run_retention(&values))
        };
        Some(RetentionLoop::new(member.flow.store.clone(), keep))
    }
}

impl RetentionLoop {
    fn new(store: Store, keep: impl Fn() -> (Retention, Duration) + Send + Sync + 'static) -> RetentionLoop {
        let (walk, runs) = (RetentionWalk::new(), RunRetentionWalk::new());
        RetentionLoop { store, keep: Box::new(keep), walk, runs, untold: BTreeMap::new() }
    }

    async fn tell(&mut self) -> Result<(), StoreError> {
        if self.untold.is_empty() {
            return Ok(());
        }
        let act = |(tenant, (removed, runs)): (&Tenant, &(Removed, u64))| {
            let Removed { records, listings, dead_letters } = *removed;
            // A minted id: if two replicas both believe to lead, each logs what it deleted.
            let id = format!("retention:{}", JobId::mint(0));
            let act = Act::by_system(id, self.store.now(), tenant.as_str(), "retention_removed");
            let act = act.with("records", records).with("listings", listings).with("dead_letters", dead_letters);
            if *runs > 0 { act.with("runs", *runs) } else { act }
        };
        let acts: Vec<Act> = self.untold.iter().map(act).collect();
        self.store.audit(&acts).await?;
        self.untold.clear();
        Ok(())
    }
}

impl Loop for RetentionLoop {
    const NAME: &'static str = "retention";
    const EVERY: &'static str = "1h";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Retention.as_str(),
        why: "a record is judged by its age and deleted in one script; what is gone already is passed over",
        duplicate_costs: "a second look at the same listings",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        let done = self.pass(lease, &budget, &mut counts).await;
        let done = match done {
            Ok(()) => self.runs(lease, &budget, &mut counts).await,
            fault => fault,
        };
        self.tell().await?;
        done.map(|()| counts)
    }
}

impl RetentionLoop {
    /// Deletes runs. Their jobs go in a later pass.
    async fn runs(&mut self, lease: &Lease, budget: &Budget, counts: &mut Counts) -> anyhow::Result<()> {
        let (_, keep) = (self.keep)();
        loop {
            let began = Instant::now();
            let done = self.store.retain_runs(lease, &mut self.runs, keep, BATCH, &AGE_FIELDS, &run_age).await?;
            for (tenant, runs) in done.by_tenant {
                self.untold.entry(tenant).or_default().1 += runs;
            }
            for (what, n) in [("runs", done.runs), ("run_listings", done.listings), ("unreadable", done.unreadable)] {
                if n > 0 {
                    counts.add(what, n);
                }
            }
            if done.passed {
                done.next.into_iter().for_each(|next| counts.due_in(next.max(PAUSE)));
                return Ok(());
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(());
            }
            tokio::time::sleep(began.elapsed()).await;
        }
    }

    async fn pass(&mut self, lease: &Lease, budget: &Budget, counts: &mut Counts) -> anyhow::Result<()> {
        let (keep, _) = (self.keep)();
        loop {
            let began = Instant::now();
            let done = self.store.retain(lease, &mut self.walk, &keep, BATCH).await?;
            for (tenant, removed) in done.by_tenant {
                self.untold.entry(tenant).or_default().0 += removed;
            }
            counts.add("looked", done.looked);
            counts.add("records", done.records);
            counts.add("listings", done.listings);
            counts.add("dead_letters", done.dead_letters);
            if done.unreadable > 0 {
                counts.add("unreadable", done.unreadable);
            }
            if done.passed {
                done.next.into_iter().for_each(|next| counts.due_in(next.max(PAUSE)));
                return Ok(());
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(());
            }
            tokio::time::sleep(began.elapsed()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::{Event, JobSpec, Topic};
    use muster_store::{AuditEntry, AuditFilter, Fields, LEADER_TTL, LeaseKeeper, NewJob, RedisSettings, Step};
    use muster_testkit::{RedisServer, until};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_pass_deletes_what_has_ended_and_keeps_what_lives() {
        let server = RedisServer::start().await;
        let store = Store::connect(RedisSettings::new(server.url())).await.unwrap();
        // The last 200 jobs belong to another tenant.
        let spec = |n: usize| {
            let tenant = Tenant::parse(if n < 1000 { "default" } else { "acme" }).unwrap();
            JobSpec::new(tenant, Topic::parse("t").unwrap())
        };
        let mut jobs: Vec<NewJob> = (0..1200)
            .map(|n| NewJob {
                id: JobId::mint(n as u8),
                spec: spec(n),
                payload: "1".into(),
                body_hash: None,
                place: None,
                at: None,
            })
            .collect();
        for prepared in store.prepare(&mut jobs, PATIENCE).await {
            prepared.unwrap();
        }
        for created in store.submit(&jobs).await {
            created.unwrap();
        }
        let (ended, alive) = jobs.split_at(1100);
        let ended: Vec<JobId> = ended.iter().map(|job| job.id).collect();
        for moved in store.apply(ended.iter().map(|id| Step::new(*id, Event::Cancel, 0)).collect()).await {
            moved.unwrap();
        }
        store.drop_homes(&ended).await.unwrap();

        let short = Duration::from_micros(1);
        let mut body = RetentionLoop::new(store.clone(), move || (Retention::of_all(short, short), short));
        let keeper = LeaseKeeper::new(store.clone(), LeaderLock::Retention, "g1", LEADER_TTL);
        let passes = async {
            let lease = until(PATIENCE, "the lease", async || keeper.lease()).await;
            let mut left = 1100;
            until(PATIENCE, "all to be deleted", async || {
                let counts = body.run_once(&lease, Budget::of(PATIENCE)).await.unwrap();
                left -= counts.items.iter().find(|(what, _)| *what == "records").unwrap().1;
                (left == 0).then_some(())
            })
            .await;
        };
        tokio::select! {
            () = keeper.run() => {}
            () = passes => {}
        }
        let told = store.list_audit(&AuditFilter::default(), None, 50).await.unwrap().0;
        let told = told.iter().filter_map(AuditEntry::act).filter(|act| act.action == "retention_removed");
        let mut removed = BTreeMap::<String, u64>::new();
        told.for_each(|act| *removed.entry(act.tenant).or_default() += act.detail["records"].as_u64().unwrap());
        let wanted = [("acme".to_owned(), 100), ("default".to_owned(), 1000)];
        assert_eq!(removed, BTreeMap::from(wanted), "what was deleted of each tenant is told, once");
        for (n, record) in store.read(&ended, Fields::NONE).await.into_iter().enumerate() {
            assert_eq!(record.unwrap(), None, "{n}");
        }
        for job in alive {
            assert!(store.read_one(job.id, Fields::NONE).await.unwrap().is_some());
        }
        keeper.release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", LeaderLock::Retention.as_str()]).await, "0");
    }
}
