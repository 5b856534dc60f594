//! Ended jobs leave after their time, and with them listings and dead letters. The round goes over
//! all tenants, so these tests have servers of their own.

use std::time::Duration;

use muster_domain::{Event, JobId, RunId, Tenant, Time};
use muster_store::{CreatedRun, Fields, LeaderLock, ListFilter, NewJob, Retained, Retention, RetentionWalk, Step};
use muster_testkit::{RedisCluster, RedisServer, until};

use crate::bench::{Bench, HOUR, Job, PATIENCE, job_key, new_job, spec, tenant};

const DAY: Duration = Duration::from_secs(24 * 3600);
const LONG: Retention = Retention::of_all(Duration::from_secs(7 * 24 * 3600), Duration::from_secs(30 * 24 * 3600));
/// Whoever has ended is due.
const SHORT: Retention = Retention::of_all(Duration::from_micros(1), Duration::from_micros(1));

#[tokio::test]
async fn records_leave_a_standalone_server() {
    let server = RedisServer::start().await;
    everything(&Bench::at(server.url()).await).await;
}

#[tokio::test]
async fn records_leave_a_cluster() {
    let cluster = RedisCluster::start_steady().await;
    everything(&Bench::at(cluster.url()).await).await;
}

async fn everything(bench: &Bench) {
    each_end_is_kept_for_its_own_time(bench).await;
    living_jobs_and_unfinished_ends_keep_their_listing(bench).await;
    a_listing_of_which_all_are_gone_is_dropped(bench).await;
    a_listing_that_somebody_else_dropped_is_forgotten(bench).await;
    a_listing_that_is_still_written_to_is_not_dropped(bench).await;
    steps_are_bounded_and_go_on_where_they_stopped(bench).await;
    dead_letters_leave_with_their_jobs(bench).await;
    jobs_of_a_run_stay_as_long_as_the_run(bench).await;
    a_tenant_that_cannot_be_read_stops_nobody_else(bench).await;
}

async fn round(bench: &Bench, keep: Retention) -> Retained {
    let (mut walk, mut sum) = (RetentionWalk::new(), Retained::default());
    let lease = bench.leads(LeaderLock::Retention).await;
    loop {
        let done = bench.store.retain(&lease, &mut walk, &keep, 1000).await.expect("redis answers");
        sum.looked += done.looked;
        sum.records += done.records;
        sum.listings += done.listings;
        sum.dead_letters += done.dead_letters;
        sum.unreadable += done.unreadable;
        if done.passed {
            return Retained { passed: true, next: done.next, ..sum };
        }
    }
}

/// Jobs that were created so long ago, in the listing and in their records.
async fn submitted(bench: &Bench, tenant: &Tenant, n: usize, ago: Duration) -> Vec<Job> {
    let created = bench.store.ping().await.unwrap().before(ago);
    let mut jobs: Vec<NewJob> = (0..n).map(|_| new_job(spec(tenant))).collect();
    let entries: Vec<_> = jobs.iter().map(|job| (job.id, created)).collect();
    let places = bench.store.index_jobs(tenant, &entries).await.unwrap();
    jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
    let mut submitted = Vec::new();
    for (job, created) in jobs.iter().zip(bench.store.submit(&jobs).await) {
        created.unwrap();
        submitted.push(Job { id: job.id, head: bench.record(job.id).await.head });
    }
    submitted
}

/// Ends a job by a cancel or, badly, by a denial, so long ago.
async fn ended(bench: &Bench, job: &Job, badly: bool, ago: Duration) {
    let event = if badly { Event::Deny } else { Event::Cancel };
    let job = bench.go(job, job.step(event)).await;
    // When it entered its state, as the packed head has it.
    bench.patch(job.id, 26..34, bench.store.now().before(ago).0).await;
}

async fn exists(bench: &Bench, id: JobId) -> bool {
    !bench.raw(id).await.is_empty()
}

async fn buckets(bench: &Bench, tenant: &Tenant) -> Vec<String> {
    let index = bench.command("ZRANGE", &format!("muster:idx:{tenant}:buckets"), &[b"0", b"-1"]).await;
    redis::from_redis_value(index).unwrap()
}

async fn listed(bench: &Bench, tenant: &Tenant) -> Vec<JobId> {
    let page = bench.store.list(tenant, None, 500, &ListFilter::default(), Fields::NONE).await.unwrap();
    page.items.iter().map(|job| job.id).collect()
}

async fn each_end_is_kept_for_its_own_time(bench: &Bench) {
    let tenant = tenant();
    let jobs = submitted(bench, &tenant, 5, 40 * DAY).await;
    ended(bench, &jobs[0], false, 8 * DAY).await;
    ended(bench, &jobs[1], false, 6 * DAY).await;
    ended(bench, &jobs[2], true, 29 * DAY).await;
    ended(bench, &jobs[3], true, 31 * DAY).await;
    let done = round(bench, LONG).await;
    assert_eq!((done.looked, done.records, done.listings), (5, 2, 0));
    let left: Vec<bool> = [exists(bench, jobs[0].id).await, exists(bench, jobs[1].id).await].into();
    assert_eq!(left, [false, true]);
    assert!(exists(bench, jobs[2].id).await && !exists(bench, jobs[3].id).await && exists(bench, jobs[4].id).await);
    assert_eq!(listed(bench, &tenant).await, [jobs[4].id, jobs[2].id, jobs[1].id]);
    // Somebody is due in a day, and not before: the listing is not even read.
    let next = done.next.expect("somebody stays");
    assert!(next > DAY - HOUR && next <= DAY, "{next:?}");
    let again = round(bench, LONG).await;
    assert_eq!((again.looked, again.records), (0, 0));
    assert!(again.next.is_some_and(|again| again <= next));
    // Younger listings are not read either.
    let young = submitted(bench, &tenant, 3, DAY).await;
    ended(bench, &young[0], false, DAY).await;
    assert_eq!(round(bench, LONG).await.looked, 0);
    forget(bench, &tenant).await;
}

/// What a tenant's tests leave must not be counted by the next.
async fn forget(bench: &Bench, tenant: &Tenant) {
    for id in listed(bench, tenant).await {
        bench.command("DEL", &job_key(id), &[]).await;
    }
    for rest in ["buckets", "kept"] {
        bench.command("DEL", &format!("muster:idx:{tenant}:{rest}"), &[]).await;
    }
    bench.command("DEL", &format!("muster:dlq:{tenant}"), &[]).await;
    bench.command("SREM", "muster:idx:tenants", &[tenant.as_str().as_bytes()]).await;
}

async fn jobs_of_a_run_stay_as_long_as_the_run(bench: &Bench) {
    let (tenant, run) = (tenant(), RunId::mint(9));
    let CreatedRun::Created { version, .. } = bench.store.create_run(run, &tenant, &[], 1).await.unwrap() else {
        panic!("a new run")
    };
    let mut jobs: Vec<NewJob> = (0..3).map(|_| new_job(spec(&tenant))).collect();
    jobs[0].spec.run = Some(run);
    jobs[1].spec.run = Some(RunId::mint(9));
    let created = bench.store.ping().await.unwrap().before(40 * DAY);
    let entries: Vec<_> = jobs.iter().map(|job| (job.id, created)).collect();
    let places = bench.store.index_jobs(&tenant, &entries).await.unwrap();
    jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
    bench.store.submit(&jobs).await.into_iter().for_each(|made| drop(made.unwrap()));
    for job in &jobs {
        ended(bench, &Job { id: job.id, head: bench.record(job.id).await.head }, true, 39 * DAY).await;
    }
    assert_eq!(round(bench, LONG).await.records, 2, "the one of a run that is gone, and the one of none");
    assert_eq!(listed(bench, &tenant).await, [jobs[0].id]);
    bench.store.delete_run(run, version).await.unwrap();
    // The listing is due again after a while; not to wait for that, it is as if nobody had looked.
    bench.command("DEL", &format!("muster:idx:{tenant}:kept"), &[]).await;
    assert_eq!(round(bench, LONG).await.records, 1);
    bench.store.drop_homes(&[run]).await.unwrap();
    forget(bench, &tenant).await;
}

async fn living_jobs_and_unfinished_ends_keep_their_listing(bench: &Bench) {
    let tenant = tenant();
    let jobs = submitted(bench, &tenant, 3, 40 * DAY).await;
    ended(bench, &jobs[0], true, 39 * DAY).await;
    ended(bench, &jobs[1], false, 39 * DAY).await;
    // The effects of this end are not done: its home is still there.
    bench.store.set_homes(&[jobs[1].id], HOUR).await.unwrap();
    let done = round(bench, LONG).await;
    assert_eq!((done.records, done.listings), (1, 0));
    assert_eq!(listed(bench, &tenant).await, [jobs[2].id, jobs[1].id]);
    let next = done.next.expect("they stay");
    assert!(next > 7 * DAY - HOUR && next <= 7 * DAY, "nobody alive can be due sooner: {next:?}");
    assert_eq!(round(bench, LONG).await.looked, 0);
    forget(bench, &tenant).await;
}

async fn a_listing_of_which_all_are_gone_is_dropped(bench: &Bench) {
    let (tenant, other) = (tenant(), tenant());
    let jobs = submitted(bench, &tenant, 4, 40 * DAY).await;
    for job in &jobs {
        ended(bench, job, true, 39 * DAY).await;
    }
    // A leftover of a repeated submit, an entry of somebody else's job, one deleted by hand.
    let created = bench.store.now().before(40 * DAY);
    bench.store.index_jobs(&tenant, &[(jobs[0].id, created)]).await.unwrap();
    let foreign = submitted(bench, &other, 1, Duration::ZERO).await.remove(0);
    bench.store.index_jobs(&tenant, &[(foreign.id, created)]).await.unwrap();
    bench.store.delete_ended(jobs[2].id).await.unwrap();
    let bucket = buckets(bench, &tenant).await.remove(0);
    let done = round(bench, LONG).await;
    assert_eq!((done.looked, done.records, done.listings), (6, 3, 1));
    assert!(exists(bench, foreign.id).await);
    assert_eq!(buckets(bench, &tenant).await, [] as [String; 0]);
    let list = bench.command("EXISTS", &format!("muster:idx:{tenant}:{bucket}"), &[]).await;
    assert_eq!(list, redis::Value::Int(0));
    // Nothing of the tenant is left, and its next job brings it back.
    let named = async || bench.command("SISMEMBER", "muster:idx:tenants", &[tenant.as_str().as_bytes()]).await;
    assert_eq!(named().await, redis::Value::Int(0));
    submitted(bench, &tenant, 1, Duration::ZERO).await;
    assert_eq!(named().await, redis::Value::Int(1));
    forget(bench, &tenant).await;
    forget(bench, &other).await;
}

/// Of two that believe to lead, one dropped it while the other read it, and died before it could forget it.
async fn a_listing_that_somebody_else_dropped_is_forgotten(bench: &Bench) {
    let tenant = tenant();
    for job in &submitted(bench, &tenant, 4, 40 * DAY).await {
        ended(bench, job, true, 39 * DAY).await;
    }
    let (mut walk, lease) = (RetentionWalk::new(), bench.leads(LeaderLock::Retention).await);
    let begun = until(PATIENCE, "half of it to be read", async || {
        Some(bench.store.retain(&lease, &mut walk, &LONG, 2).await.unwrap()).filter(|done| done.looked > 0)
    })
    .await;
    assert_eq!((begun.looked, begun.listings, begun.passed), (2, 0, false));
    let bucket = buckets(bench, &tenant).await.remove(0);
    bench.command("DEL", &format!("muster:idx:{tenant}:{bucket}"), &[]).await;
    until(PATIENCE, "the round to end", async || {
        bench.store.retain(&lease, &mut walk, &LONG, 2).await.unwrap().passed.then_some(())
    })
    .await;
    for rest in ["buckets", "kept"] {
        let left = bench.command("EXISTS", &format!("muster:idx:{tenant}:{rest}"), &[]).await;
        assert_eq!(left, redis::Value::Int(0), "{rest}");
    }
    forget(bench, &tenant).await;
}

async fn a_listing_that_is_still_written_to_is_not_dropped(bench: &Bench) {
    let tenant = tenant();
    let job = submitted(bench, &tenant, 1, Duration::ZERO).await.remove(0);
    bench.go(&job, job.step(Event::Cancel)).await;
    // Due a microsecond after its end, by the clock of its node.
    until(PATIENCE, "the record to leave", async || {
        round(bench, SHORT).await;
        (!exists(bench, job.id).await).then_some(())
    })
    .await;
    assert_eq!(buckets(bench, &tenant).await.len(), 1);
    let later = submitted(bench, &tenant, 1, Duration::ZERO).await.remove(0);
    round(bench, SHORT).await;
    assert_eq!(listed(bench, &tenant).await, [later.id]);
    forget(bench, &tenant).await;
}

async fn steps_are_bounded_and_go_on_where_they_stopped(bench: &Bench) {
    let tenant = tenant();
    let old: Vec<Job> = submitted(bench, &tenant, 700, 40 * DAY).await;
    let steps: Vec<Step> = old.iter().map(|job| job.step(Event::Cancel)).collect();
    for moved in bench.store.apply(steps).await {
        moved.unwrap();
    }
    let (mut walk, mut steps, mut sum) = (RetentionWalk::new(), 0, 0);
    let lease = bench.leads(LeaderLock::Retention).await;
    // Who ended within the last moment may be left for the next round.
    until(PATIENCE, "all to leave", async || {
        let done = bench.store.retain(&lease, &mut walk, &SHORT, 100).await.unwrap();
        assert!(done.looked <= 100, "{done:?}");
        sum += done.records;
        steps += 1;
        (done.passed && sum == 700).then_some(())
    })
    .await;
    assert!(steps >= 7, "{steps}");
    assert!(buckets(bench, &tenant).await.is_empty());
    forget(bench, &tenant).await;
}

async fn dead_letters_leave_with_their_jobs(bench: &Bench) {
    let tenant = tenant();
    submitted(bench, &tenant, 1, Duration::ZERO).await;
    let now = bench.store.ping().await.unwrap();
    let letter = |n: u32, at: Time| (tenant.clone(), JobId::mint(0), at.before(Duration::from_micros(n.into())));
    let letters: Vec<_> = (0..1200).map(|n| letter(n, now.before(31 * DAY))).collect();
    bench.store.add_dead_letters(&letters).await.unwrap();
    let young: Vec<_> = (0..3).map(|n| letter(n, now.before(29 * DAY))).collect();
    bench.store.add_dead_letters(&young).await.unwrap();
    let done = round(bench, LONG).await;
    assert_eq!(done.dead_letters, 1200);
    assert!(done.next.is_some_and(|next| next < 2 * DAY), "{:?}", done.next);
    let left = bench.command("ZRANGE", &format!("muster:dlq:{tenant}"), &[b"0", b"-1"]).await;
    let left: Vec<String> = redis::from_redis_value(left).unwrap();
    assert_eq!(left, young.iter().rev().map(|(_, id, _)| id.to_string()).collect::<Vec<_>>());
    forget(bench, &tenant).await;
}

async fn a_tenant_that_cannot_be_read_stops_nobody_else(bench: &Bench) {
    let tenants = [tenant(), tenant(), tenant()];
    for tenant in &tenants {
        let job = submitted(bench, tenant, 1, 40 * DAY).await.remove(0);
        ended(bench, &job, true, 39 * DAY).await;
    }
    let broken = format!("muster:idx:{}:kept", tenants[1]);
    bench.command("SET", &broken, &[b"not a set"]).await;
    let done = round(bench, LONG).await;
    assert_eq!((done.records, done.listings, done.unreadable), (2, 2, 1));
    bench.command("DEL", &broken, &[]).await;
    assert_eq!(round(bench, LONG).await.records, 1);
    for tenant in &tenants {
        forget(bench, tenant).await;
    }
}
