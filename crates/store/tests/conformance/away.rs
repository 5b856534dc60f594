//! One shard of a cluster hangs, primary and replica together, so nobody takes over. A tenant whose
//! listing stands there, or whose lists are noted there, is served all the same, and every job is
//! listed once when the shard is back. On a cluster of its own.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use muster_domain::{Event, JobId, Tenant, Time};
use muster_store::{
    Fields, LeaderLock, ListFilter, NewJob, RedisSettings, Retention, RetentionWalk, ScrubWalk, Step, Store, Submitted,
    router::slot_of,
};
use muster_testkit::{RedisCluster, until};

use crate::{
    bench::{Bench, HOUR, PATIENCE, job_key, new_job, spec, tenant},
    failover::slots,
};

const TEN_MINUTES: u64 = 600_000_000;
/// Far longer than a busy machine takes, and less than whoever waits for the node that hangs.
const IN_TIME: Duration = Duration::from_secs(5);
const BUDGET: Duration = Duration::from_secs(10);

/// A tenant, the ten minutes that its jobs are listed under, and its jobs so far.
struct Case {
    what: &'static str,
    tenant: Tenant,
    span: u64,
    /// The jobs that come during the outage come so many times ten minutes later.
    later: u64,
    jobs: Vec<JobId>,
}

struct Scene {
    bench: Bench,
    /// With the limit for one answer that services have.
    store: Store,
    /// The slots of the shard that hangs.
    away: RangeInclusive<u16>,
    /// The ten minutes in which the test began.
    span: u64,
}

impl Scene {
    fn is_away(&self, key: &str) -> bool {
        self.away.contains(&slot_of(key.as_bytes()))
    }

    /// A tenant of which the list that is needed during the outage and the note of it stand as asked: on the
    /// shard that hangs, or not. Slots of such keys differ in the same way for all tenants, so not every ten
    /// minutes have one.
    fn case(&self, what: &'static str, later: u64, list: bool, note: bool) -> Case {
        let candidates = (self.span..).flat_map(|span| std::iter::repeat_n(span, 1000));
        let mut cases = candidates.map(|span| Case { what, tenant: tenant(), span, later, jobs: Vec::new() });
        let stands = |case: &Case, rest: String| self.is_away(&format!("muster:idx:{}:{rest}", case.tenant));
        let fits = |case: &Case| {
            (stands(case, (case.span + later).to_string()), stands(case, "buckets".to_owned())) == (list, note)
        };
        cases.find(fits).expect("there is always one")
    }

    /// A job whose record and home are on shards that answer.
    fn job(&self, tenant: &Tenant) -> NewJob {
        loop {
            let job = new_job(spec(tenant));
            let home = format!("muster:due:job:{:x}", job.id.shard());
            if !self.is_away(&job_key(job.id)) && !self.is_away(&home) {
                return job;
            }
        }
    }

    /// Submits as a gateway does, in these or in later ten minutes.
    async fn submit(&self, case: &mut Case, later: u64) {
        let mut jobs: Vec<NewJob> = (0..5).map(|_| self.job(&case.tenant)).collect();
        let began = Instant::now();
        set_clock(&self.store, (case.span + later) * TEN_MINUTES + TEN_MINUTES / 2);
        for prepared in self.store.prepare(&mut jobs, HOUR).await {
            assert_eq!(prepared, Ok(()), "{}", case.what);
        }
        assert!(began.elapsed() < IN_TIME, "{}: {:?}", case.what, began.elapsed());
        for created in self.store.submit(&jobs).await {
            // Who had no answer within a second asks again.
            let made = matches!(created, Ok(Submitted::Created(_) | Submitted::Exists(_)));
            assert!(made, "{}: {created:?}", case.what);
        }
        case.jobs.extend(jobs.iter().map(|job| job.id));
    }

    async fn listed(&self, tenant: &Tenant, limit: usize, filter: &ListFilter) -> Vec<JobId> {
        let (mut shown, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let page = self.bench.store.list(tenant, cursor.as_deref(), limit, filter, Fields::NONE).await.unwrap();
            shown.extend(page.items.iter().map(|job| job.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return shown;
            }
        }
    }

    /// Every job of a case is shown once, whatever the size of a page, and by the time it was created.
    async fn is_listed_once(&self, case: &Case) {
        let mut wanted = case.jobs.clone();
        wanted.sort();
        let records = self.bench.store.read(&wanted, Fields::NONE).await;
        let created: Vec<Time> = records.into_iter().map(|record| record.unwrap().unwrap().head.created_at).collect();
        let before = *created.iter().max().unwrap() + Duration::from_micros(1);
        let mut filters = vec![
            ListFilter::default(),
            ListFilter { created_after: created.iter().min().copied(), ..ListFilter::default() },
            ListFilter { created_before: Some(before), ..ListFilter::default() },
        ];
        // Who is listed under another time than that of its creation is not found by that.
        filters.truncate(if case.span + case.later <= self.span + 1 { 3 } else { 1 });
        for (limit, filter) in [1, 3, 500].into_iter().flat_map(|limit| filters.iter().map(move |f| (limit, f))) {
            let mut shown = self.listed(&case.tenant, limit, filter).await;
            shown.sort();
            assert_eq!(shown, wanted, "{}, pages of {limit}, {filter:?}", case.what);
        }
    }

    /// The tenant's lists, oldest first.
    async fn lists(&self, tenant: &Tenant) -> Vec<String> {
        let index = self.bench.command("ZRANGE", &format!("muster:idx:{tenant}:buckets"), &[b"0", b"-1"]).await;
        redis::from_redis_value(index).unwrap()
    }
}

/// Has the store take it to be this moment. A step back is believed bit by bit.
fn set_clock(store: &Store, at: u64) {
    while store.now().0.abs_diff(at) > 1_000_000 {
        store.router().note_time(at);
    }
}

/// The nodes of a shard: its primary and whoever follows that one.
async fn shard(cluster: &RedisCluster, primary: usize) -> Vec<usize> {
    let port = cluster.nodes[primary].port().to_string();
    let mut members = vec![primary];
    for node in 0..cluster.nodes.len() {
        let role = cluster.cli(node, &["ROLE"]).await;
        if role.starts_with("slave") && role.lines().any(|line| line == port) {
            members.push(node);
        }
    }
    assert_eq!(members.len(), 2);
    members
}

#[tokio::test]
async fn a_shard_that_is_away_stops_no_tenant_that_was_served_before() {
    let cluster = RedisCluster::start().await;
    let bench = Bench::at(cluster.url()).await;
    let settings = RedisSettings { budget: BUDGET, ..RedisSettings::new(cluster.url()) };
    let store = Store::connect(settings).await.unwrap();
    let span = store.ping().await.unwrap().0 / TEN_MINUTES;
    let scene = Scene { bench, store, away: slots(&cluster).await.remove(0), span };
    let mut cases = [
        scene.case("its list is away", 0, true, false),
        scene.case("its list is away, and so is the note of it", 0, true, true),
        scene.case("the note is away when ten minutes begin", 1, false, true),
        scene.case("the same after twenty minutes", 2, false, true),
        scene.case("list and note are away when ten minutes begin", 1, true, true),
        scene.case("all that is its own answers", 0, false, false),
    ];
    for case in &mut cases {
        // Three times, because what is noted ahead is given up on when it takes a moment, and tried again.
        for later in (0..case.later.max(1)).flat_map(|later| [later; 3]) {
            scene.submit(case, later).await;
        }
    }

    let members = shard(&cluster, 0).await;
    members.iter().for_each(|node| cluster.nodes[*node].pause());
    // While the connection is thought to be open, and when it has been given up.
    for _ in 0..3 {
        for case in &mut cases {
            scene.submit(case, case.later).await;
        }
    }
    // Whoever has a choice avoids the node that did not answer.
    let there = (0..).map(|n: u32| JobId::mint(n as u8)).find(|id| scene.is_away(&job_key(*id))).unwrap();
    assert!(scene.store.read(&[there], Fields::NONE).await[0].is_err());
    for wished in 0..64 {
        let id = scene.store.mint(scene.store.home_shard(wished));
        let home = format!("muster:due:job:{:x}", id.shard());
        assert!(!scene.is_away(&job_key(id)) && !scene.is_away(&home), "{id}");
    }
    members.iter().for_each(|node| cluster.nodes[*node].resume());
    cluster.wait_healthy().await;

    for case in &cases {
        scene.is_listed_once(case).await;
        // Entries that land late, at places that no record remembers.
        let late: Vec<(JobId, Time)> = case.jobs.iter().map(|id| (*id, Time(case.span * TEN_MINUTES))).collect();
        scene.bench.store.index_jobs(&case.tenant, &late).await.unwrap();
        scene.is_listed_once(case).await;
    }
    lists_that_were_lost_come_back(&scene, &cases).await;
    all_of_them_leave(&scene, &cases).await;
}

async fn lists_that_were_lost_come_back(scene: &Scene, cases: &[Case]) {
    for Case { tenant, .. } in cases {
        for list in scene.lists(tenant).await.into_iter().chain(["buckets".to_owned()]) {
            scene.bench.command("DEL", &format!("muster:idx:{tenant}:{list}"), &[]).await;
        }
    }
    let (mut walk, lease) = (ScrubWalk::new(), scene.bench.leads(LeaderLock::Scrub).await);
    while !scene.bench.store.scrub(&lease, &mut walk, 500).await.unwrap().passed {}
    for case in cases {
        scene.is_listed_once(case).await;
    }
}

/// Nobody writes to any of the lists an hour later: all of them leave, with everybody on them.
async fn all_of_them_leave(scene: &Scene, cases: &[Case]) {
    let store = &scene.bench.store;
    for case in cases {
        store.drop_homes(&case.jobs).await.unwrap();
        let ends = case.jobs.iter().map(|id| Step::new(*id, Event::Cancel, 0)).collect();
        assert!(store.apply(ends).await.iter().all(Result::is_ok));
    }
    let keep = Retention::of_all(Duration::from_micros(1), Duration::from_micros(1));
    let (mut walk, lease) = (RetentionWalk::new(), scene.bench.leads(LeaderLock::Retention).await);
    let last = cases.iter().map(|case| case.span + case.later).max().unwrap();
    until(PATIENCE, "all lists to leave", async || {
        set_clock(store, (last + 6) * TEN_MINUTES);
        while !store.retain(&lease, &mut walk, &keep, 1000).await.unwrap().passed {}
        for case in cases {
            if !scene.lists(&case.tenant).await.is_empty() {
                return None;
            }
        }
        Some(())
    })
    .await;
    for case in cases {
        for record in store.read(&case.jobs, Fields::NONE).await {
            assert!(record.unwrap().is_none(), "{}", case.what);
        }
    }
}
