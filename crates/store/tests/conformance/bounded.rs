//! A page of a list does bounded work, however few of however many jobs match; and whoever follows its cursors
//! is shown every match exactly once. Commands are counted by Redis, so these tests have servers of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_domain::{Event, JobId, Labels, State, Tenant, Time};
use muster_store::{Fields, ListFilter, NewJob, PAGE_WORK, Page, Step};
use muster_testkit::{RedisCluster, RedisServer};

use crate::bench::{Bench, new_job, spec, tenant};

const TEN_MINUTES: Duration = Duration::from_secs(600);
const MANY: usize = 20_000;
/// Of these few match.
const FEW: [usize; 3] = [1, 9_999, 19_998];

#[tokio::test]
async fn pages_on_a_standalone_server_do_bounded_work() {
    let server = RedisServer::start().await;
    everything(&Bench::at(server.url()).await).await;
}

#[tokio::test]
async fn pages_on_a_cluster_do_bounded_work() {
    let cluster = RedisCluster::start_steady().await;
    everything(&Bench::at(cluster.url()).await).await;
}

async fn everything(bench: &Bench) {
    a_rare_match_among_many_is_found_in_bounded_steps(bench).await;
    a_rare_bad_end_is_found_in_bounded_steps(bench).await;
    lists_with_little_on_them_are_walked_in_bounded_steps(bench).await;
    each_match_is_shown_once_whatever_is_asked_and_added(bench).await;
}

/// What Redis was asked for, by command, over all nodes.
async fn commands(bench: &Bench) -> BTreeMap<String, u64> {
    let (router, mut calls) = (bench.store.router(), BTreeMap::new());
    for node in router.primaries().await.unwrap() {
        let reply = router.call_node(&node, redis::cmd("INFO").arg("commandstats")).await.unwrap();
        let text: String = redis::from_redis_value(reply).unwrap();
        for line in text.lines() {
            let Some((name, facts)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
                continue;
            };
            let n = facts.strip_prefix("calls=").and_then(|facts| facts.split(',').next()?.parse::<u64>().ok());
            *calls.entry(name.to_owned()).or_default() += n.expect("a number of calls");
        }
    }
    calls
}

struct Walked {
    shown: Vec<JobId>,
    pages: usize,
    /// Most of each command that one page took.
    most: BTreeMap<String, u64>,
}

impl Walked {
    fn most(&self, command: &str) -> u64 {
        self.most.get(command).copied().unwrap_or(0)
    }
}

/// Follows the cursors to the end, and counts what each page took.
async fn walk(bench: &Bench, tenant: &Tenant, limit: usize, filter: &ListFilter) -> Walked {
    let mut walked = Walked { shown: Vec::new(), pages: 0, most: BTreeMap::new() };
    let mut cursor: Option<String> = None;
    loop {
        let before = commands(bench).await;
        let page = bench.store.list(tenant, cursor.as_deref(), limit, filter, Fields::NONE).await.unwrap();
        for (name, calls) in commands(bench).await {
            let took = calls - before.get(&name).copied().unwrap_or(0);
            let most = walked.most.entry(name).or_default();
            *most = took.max(*most);
        }
        let Page { items, next_cursor, .. } = page;
        walked.pages += 1;
        walked.shown.extend(items.into_iter().map(|job| job.id));
        cursor = next_cursor;
        if cursor.is_none() {
            return walked;
        }
    }
}

fn labels(kind: &str) -> Labels {
    [("kind".to_owned(), kind.to_owned())].into_iter().collect()
}

fn wants(kind: &str) -> ListFilter {
    ListFilter { labels: labels(kind), ..ListFilter::default() }
}

/// Jobs of these kinds, created and listed at a moment, in order.
async fn submitted(bench: &Bench, tenant: &Tenant, kinds: &[&str], at: Time) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(kinds.len());
    for kinds in kinds.chunks(1000) {
        let job = |kind: &&str| {
            let mut spec = spec(tenant);
            spec.labels = labels(kind);
            new_job(spec)
        };
        let mut jobs: Vec<NewJob> = kinds.iter().map(job).collect();
        let entries: Vec<_> = jobs.iter().map(|job| (job.id, at)).collect();
        let places = bench.store.index_jobs(tenant, &entries).await.unwrap();
        jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
        bench.store.submit(&jobs).await.into_iter().for_each(|made| drop(made.unwrap()));
        ids.extend(jobs.iter().map(|job| job.id));
    }
    ids
}

fn kinds() -> Vec<&'static str> {
    (0..MANY).map(|n| if FEW.contains(&n) { "rare" } else { "usual" }).collect()
}

async fn a_rare_match_among_many_is_found_in_bounded_steps(bench: &Bench) {
    let tenant = tenant();
    let ids = submitted(bench, &tenant, &kinds(), bench.store.ping().await.unwrap()).await;
    let wanted: Vec<JobId> = FEW.iter().rev().map(|n| ids[*n]).collect();
    for limit in [1, 50, 500] {
        let walked = walk(bench, &tenant, limit, &wants("rare")).await;
        assert_eq!(walked.shown, wanted, "newest first, each once, {limit} a page");
        assert!(walked.pages >= MANY / PAGE_WORK, "{} pages", walked.pages);
        assert!(walked.most("hmget") <= PAGE_WORK as u64, "{:?}", walked.most);
        assert!(walked.most("lrange") <= 40 && walked.most("llen") <= 2, "{:?}", walked.most);
    }
}

async fn a_rare_bad_end_is_found_in_bounded_steps(bench: &Bench) {
    let tenant = tenant();
    let now = bench.store.ping().await.unwrap();
    let ids = submitted(bench, &tenant, &kinds(), now).await;
    for chunk in ids.chunks(1000) {
        let ended = bench.store.apply(chunk.iter().map(|id| Step::new(*id, Event::Deny, 1)).collect()).await;
        let at = |n: usize| ended[n].as_ref().unwrap().now;
        let letters: Vec<_> = chunk.iter().enumerate().map(|(n, id)| (tenant.clone(), *id, at(n))).collect();
        bench.store.add_dead_letters(&letters).await.unwrap();
    }
    let filter = ListFilter { states: vec![State::Denied], ..wants("rare") };
    let walked = walk(bench, &tenant, 50, &filter).await;
    let wanted: BTreeSet<JobId> = FEW.iter().map(|n| ids[*n]).collect();
    assert_eq!((walked.shown.len(), walked.shown.into_iter().collect()), (FEW.len(), wanted));
    assert!(walked.pages >= MANY / PAGE_WORK, "{} pages", walked.pages);
    assert!(walked.most["hmget"] <= PAGE_WORK as u64 && walked.most["zrevrangebyscore"] == 1, "{:?}", walked.most);
}

async fn lists_with_little_on_them_are_walked_in_bounded_steps(bench: &Bench) {
    let (tenant, now) = (tenant(), bench.store.ping().await.unwrap());
    // One job every ten minutes for a week, the newest first.
    let mut ids = Vec::new();
    for n in 0..1000 {
        let kind = if n % 400 == 7 { "rare" } else { "usual" };
        ids.extend(submitted(bench, &tenant, &[kind], now.before(n * TEN_MINUTES)).await);
    }
    for (filter, wanted) in [(wants("rare"), 3), (wants("usual"), 997), (wants("nothing"), 0)] {
        let walked = walk(bench, &tenant, 500, &filter).await;
        let shown: BTreeSet<JobId> = walked.shown.iter().copied().collect();
        assert_eq!((walked.shown.len(), shown.len()), (wanted, wanted), "each once");
        assert!(walked.pages >= 3, "{} pages", walked.pages);
        assert!(walked.most("llen") <= 200 && walked.most("lrange") <= 200, "{:?}", walked.most);
    }
    // The lists are gone, but for the first that each page would begin with, and the last.
    let kept = [200, 400, 600, 800, 999];
    for n in (0..1000).filter(|n| !kept.contains(n)) {
        let bucket = now.before(u32::try_from(n).unwrap() * TEN_MINUTES).0 / 600_000_000;
        bench.command("DEL", &format!("muster:idx:{tenant}:{bucket}"), &[]).await;
    }
    let walked = walk(bench, &tenant, 500, &ListFilter::default()).await;
    assert_eq!(walked.shown, kept.map(|n| ids[n]));
    assert!(walked.pages >= 5 && walked.most("llen") <= 200, "{} pages, {:?}", walked.pages, walked.most);
}

/// Kinds, sizes of pages and what is added between them are drawn; what must hold is always the same.
async fn each_match_is_shown_once_whatever_is_asked_and_added(bench: &Bench) {
    for round in 0..6 {
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (tenant, now) = (tenant(), bench.store.ping().await.unwrap());
        let kind = |rng: &mut fastrand::Rng| *rng.choice(&["a", "b", "b", "b"]).unwrap();
        let mut wanted: BTreeMap<&str, BTreeSet<JobId>> = BTreeMap::new();
        for _ in 0..rng.usize(1..250) {
            let at = now.before(rng.u32(0..400) * TEN_MINUTES);
            let kinds: Vec<&str> = (0..rng.usize(1..40)).map(|_| kind(&mut rng)).collect();
            for (id, kind) in submitted(bench, &tenant, &kinds, at).await.into_iter().zip(&kinds) {
                wanted.entry(kind).or_default().insert(id);
            }
        }
        for (kind, wanted) in &wanted {
            let limit = rng.usize(1..=500);
            let (mut shown, mut cursor) = (Vec::new(), None::<String>);
            loop {
                let filter = wants(kind);
                let page = bench.store.list(&tenant, cursor.as_deref(), limit, &filter, Fields::NONE).await.unwrap();
                shown.extend(page.items.iter().map(|job| job.id));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
                // Late ones, and newcomers, on lists that were and that were not walked yet.
                let at = now.before(rng.u32(0..400) * TEN_MINUTES);
                submitted(bench, &tenant, &["a", "b"], at).await;
            }
            let unique: BTreeSet<JobId> = shown.iter().copied().collect();
            assert_eq!(shown.len(), unique.len(), "nobody twice: seed {seed}, round {round}, {limit} a page");
            assert!(unique.is_superset(wanted), "nobody left out: seed {seed}, round {round}, {limit} a page");
        }
    }
}
