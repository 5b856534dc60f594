//! What the indexes have lost is put back from the records, and nothing else is touched. The walk
//! goes over everybody's jobs, so these tests have servers of their own.

use std::time::Duration;

use muster_domain::{Event, Head, JobId, Line, Priority, State, Tenant, job::next_look};
use muster_store::{Fields, LeaderLock, ListFilter, ScrubWalk, Scrubbed, Step};
use muster_testkit::{RedisCluster, RedisServer, until};

use crate::bench::{Bench, HOUR, Job, PATIENCE, spec, tenant, topic};

const S: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_standalone_server_is_scrubbed() {
    let server = RedisServer::start().await;
    let bench = Bench::at(server.url()).await;
    everything(&bench).await;

    let mut walk = ScrubWalk::new();
    pass(&bench, &mut walk).await;
    assert!(!walk.is_urgent());
    step(&bench, &mut walk).await;
    assert!(!walk.is_urgent(), "nothing has happened");
    server.restart().await;
    step(&bench, &mut walk).await;
    assert!(walk.is_urgent(), "a server that started again may have lost writes");
}

#[tokio::test]
async fn a_cluster_is_scrubbed_on_every_primary_and_at_once_after_a_failover() {
    let cluster = RedisCluster::start().await;
    let bench = Bench::at(cluster.url()).await;
    everything(&bench).await;

    let mut walk = ScrubWalk::new();
    pass(&bench, &mut walk).await;
    assert!(!walk.is_urgent());
    cluster.kill9(0);
    let lease = bench.leads(LeaderLock::Scrub).await;
    until(Duration::from_secs(60), "the failover to be noticed", async || {
        let stepped = bench.store.scrub(&lease, &mut walk, 100).await;
        (stepped.is_ok_and(|done| done.faults == 0) && walk.is_urgent()).then_some(())
    })
    .await;
    pass(&bench, &mut walk).await;
    assert!(!walk.is_urgent());
}

async fn everything(bench: &Bench) {
    living_and_unfinished_jobs_get_a_home_and_others_do_not(bench).await;
    homes_that_are_due_too_late_are_brought_nearer(bench).await;
    queued_jobs_get_their_entry_and_claims_stay(bench).await;
    a_lost_listing_comes_back_in_its_order(bench).await;
    a_listing_that_was_cut_short_and_written_on_names_everybody_once(bench).await;
    homes_in_a_wrong_shard_are_removed_once_due(bench).await;
    jobs_that_come_and_go_meanwhile_are_left_alone(bench).await;
    steps_are_bounded_and_a_pass_sees_everybody(bench).await;
}

async fn step(bench: &Bench, walk: &mut ScrubWalk) -> Scrubbed {
    let done = bench.store.scrub(&bench.leads(LeaderLock::Scrub).await, walk, 200).await.expect("primaries are known");
    assert_eq!((done.faults, done.unreadable), (0, 0));
    done
}

/// The rest of a pass, and what it put back.
async fn pass(bench: &Bench, walk: &mut ScrubWalk) -> Scrubbed {
    let mut sum = Scrubbed::default();
    loop {
        let done = step(bench, walk).await;
        sum.scanned += done.scanned;
        sum.homes += done.homes;
        sum.late += done.late;
        sum.unfinished += done.unfinished;
        sum.queued += done.queued;
        sum.listings += done.listings;
        sum.strays += done.strays;
        sum.lines.extend(done.lines);
        sum.soonest = [sum.soonest, done.soonest].into_iter().flatten().min();
        if done.passed {
            return sum;
        }
    }
}

async fn homes_that_are_due_too_late_are_brought_nearer(bench: &Bench) {
    let pending = bench.submit(spec(&tenant())).await.id;
    let other = bench.submit(spec(&tenant())).await.id;
    for id in [pending, other] {
        bench.store.set_homes(&[id], Duration::from_secs(30)).await.unwrap();
    }
    let stands = bench.store.home_of(other).await.unwrap();
    let (key, member) = (format!("muster:due:job:{:x}", pending.shard()), pending.to_string());
    let far = (bench.store.now() + HOUR).0.to_string();
    bench.command("ZADD", &key, &[b"XX", far.as_bytes(), member.as_bytes()]).await;
    let done = scrub(bench).await;
    assert_eq!(done.late, 1);
    let due = bench.store.home_of(pending).await.unwrap().expect("a home");
    assert!(due.remaining(bench.store.now()) <= 31 * S, "a pending job is looked at every 30 s at first");
    assert!(done.soonest.is_some_and(|soonest| soonest <= 31 * S));
    assert_eq!(bench.store.home_of(other).await.unwrap(), stands, "a home that is due in time stays");
    assert_eq!(scrub(bench).await.late, 0);
}

async fn scrub(bench: &Bench) -> Scrubbed {
    pass(bench, &mut ScrubWalk::new()).await
}

/// What a pass put back: homes, queue entries, listings.
fn put_back(done: &Scrubbed) -> (u64, u64, u64) {
    (done.homes, done.queued, done.listings)
}

async fn living_and_unfinished_jobs_get_a_home_and_others_do_not(bench: &Bench) {
    scrub(bench).await;
    let mut jobs = Vec::new();
    for state in State::ALL {
        // Driven here by events alone: none of them was ever given a home.
        jobs.push(bench.ripe(*state, Event::Cancel, false).await);
    }
    let housed = bench.calm(State::Running).await;
    bench.store.set_homes(&[housed.id], 5 * S).await.unwrap();
    let stands = bench.store.home_of(housed.id).await.unwrap();
    let from = bench.store.now();
    let done = scrub(bench).await;
    // Nobody did the effects of these ends: the bad ones left no dead letter.
    let is_due = |head: &Head| !head.state().is_end() || head.state().is_bad_end();
    let due = jobs.iter().filter(|job| is_due(&job.head)).count() as u64;
    let living = jobs.iter().filter(|job| !job.head.state().is_end()).count() as u64;
    assert!(living >= 7 && due > living);
    assert_eq!((done.homes, done.unfinished), (due, due - living));
    assert!(done.soonest.is_some_and(|soonest| soonest <= 30 * S), "{:?}", done.soonest);
    for Job { id, head } in &jobs {
        let home = bench.store.home_of(*id).await.unwrap();
        assert_eq!(home.is_some(), is_due(head), "{}", head.state());
        // For what passes between a look at the clock and the write.
        let slack = 10 * S;
        let latest = next_look(head, bench.store.now()) + slack;
        assert!(home.is_none_or(|at| at <= latest && at + slack > from), "{}: {home:?} {latest:?}", head.state());
    }
    assert_eq!(bench.store.home_of(housed.id).await.unwrap(), stands, "one that is there is not touched");
    assert_eq!(put_back(&scrub(bench).await), (0, 0, 0), "a second pass finds nothing");
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    bench.store.drop_homes(&ids).await.unwrap();
    assert_eq!(scrub(bench).await.homes, due, "once more");
    // Those whose dead letters are there have been seen to.
    for (id, record) in ids.iter().zip(bench.store.read(&ids, Fields::NONE).await) {
        let record = record.unwrap().unwrap();
        if record.head.state().is_bad_end() {
            bench.store.add_dead_letters(&[(record.spec.tenant, *id, record.head.since)]).await.unwrap();
        }
    }
    bench.store.drop_homes(&ids).await.unwrap();
    let done = scrub(bench).await;
    assert_eq!((done.homes, done.unfinished), (living, 0));
}

async fn queued_jobs_get_their_entry_and_claims_stay(bench: &Bench) {
    scrub(bench).await;
    let (tenant, lane) = (tenant(), topic("scrubbed"));
    let mut jobs = Vec::new();
    for priority in [Priority::Normal, Priority::Critical] {
        let mut spec = spec(&tenant);
        (spec.topic, spec.priority) = (lane.clone(), priority);
        for _ in 0..5 {
            let job = bench.submit(spec.clone()).await;
            jobs.push(bench.go(&job, job.step(Event::Hold)).await);
        }
    }
    let moved_on = bench.go(&jobs[4], jobs[4].step(Event::Dispatch)).await;
    assert_eq!(moved_on.head.state(), State::Dispatched);
    let done = scrub(bench).await;
    assert_eq!((done.queued, done.homes), (9, 10));
    assert_eq!(done.lines.into_iter().collect::<Vec<_>>(), [(tenant.clone(), Line::from(&lane))]);

    let claim = async |n| bench.store.claim_queued(&tenant, &lane, n, HOUR, None).await.unwrap();
    let first = claim(6).await;
    let wanted: Vec<(JobId, u32)> = jobs[5..].iter().chain(&jobs[..1]).map(|job| (job.id, job.head.version)).collect();
    assert_eq!(
        first.iter().map(|entry| (entry.job, entry.version)).collect::<Vec<_>>(),
        wanted,
        "by priority, then age"
    );
    assert_eq!(scrub(bench).await.queued, 0, "a claimed entry is there");
    assert_eq!(claim(9).await.len(), 3, "and stays claimed");
}

async fn listed(bench: &Bench, tenant: &Tenant) -> Vec<JobId> {
    let mut shown = Vec::new();
    let mut cursor = None;
    loop {
        let filter = ListFilter::default();
        let page = bench.store.list(tenant, cursor.as_deref(), 70, &filter, Fields::NONE).await.unwrap();
        shown.extend(page.items.iter().map(|job| job.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return shown;
        }
    }
}

/// The tenant's lists, oldest first, those that are noted ahead as well.
async fn lists(bench: &Bench, tenant: &Tenant) -> Vec<String> {
    let index = bench.command("ZRANGE", &format!("muster:idx:{tenant}:buckets"), &[b"0", b"-1"]).await;
    let buckets: Vec<String> = redis::from_redis_value(index).unwrap();
    buckets.into_iter().map(|bucket| format!("muster:idx:{tenant}:{bucket}")).collect()
}

async fn a_lost_listing_comes_back_in_its_order(bench: &Bench) {
    let tenant = tenant();
    let mut ids = bench.submit_listed(&tenant, 150).await;
    ids.extend(bench.submit_listed(&tenant, 150).await);
    scrub(bench).await;
    let before = listed(bench, &tenant).await;
    assert_eq!(before, ids.iter().rev().copied().collect::<Vec<_>>());
    // Ended and deleted ones had a place too; nobody needs it back.
    for id in &ids[200..210] {
        bench.apply(Step::new(*id, Event::Cancel, 0)).await;
        bench.store.delete_ended(*id).await.unwrap();
    }
    for list in lists(bench, &tenant).await {
        bench.command("DEL", &list, &[]).await;
    }
    bench.command("DEL", &format!("muster:idx:{tenant}:buckets"), &[]).await;
    bench.command("DEL", "muster:idx:tenants", &[]).await;
    assert_eq!(listed(bench, &tenant).await, []);

    let done = scrub(bench).await;
    // Each job, its bucket or buckets, and whatever buckets earlier tests had.
    assert!(done.listings >= 291, "{done:?}");
    let after = listed(bench, &tenant).await;
    assert_eq!(after, before.iter().filter(|id| !ids[200..210].contains(id)).copied().collect::<Vec<_>>());
    assert_eq!(scrub(bench).await.listings, 0);
    let tenants: Vec<String> =
        redis::from_redis_value(bench.command("SMEMBERS", "muster:idx:tenants", &[]).await).unwrap();
    assert!(tenants.contains(&tenant.to_string()));
}

async fn a_listing_that_was_cut_short_and_written_on_names_everybody_once(bench: &Bench) {
    let tenant = tenant();
    let old = bench.submit_listed(&tenant, 120).await;
    // As after a failover to a replica that had not heard of the last hundred.
    let mut cut = 0;
    for list in lists(bench, &tenant).await {
        cut += usize::from(bench.command("LLEN", &list, &[]).await == redis::Value::Int(120));
        bench.command("LTRIM", &list, &[b"0", b"19"]).await;
    }
    assert_eq!(cut, 1);
    let new = bench.submit_listed(&tenant, 40).await;
    let shown = listed(bench, &tenant).await;
    assert!(shown.len() < 160, "{}", shown.len());

    scrub(bench).await;
    let mut shown = listed(bench, &tenant).await;
    let mut wanted = [old, new].concat();
    shown.sort();
    wanted.sort();
    assert_eq!(shown, wanted);
    assert_eq!(scrub(bench).await.listings, 0, "records know their new places");
}

async fn homes_in_a_wrong_shard_are_removed_once_due(bench: &Bench) {
    let job = bench.calm(State::Running).await;
    bench.store.set_homes(&[job.id], HOUR).await.unwrap();
    let wrong = (job.id.shard() + 1) % 16;
    let key = format!("muster:due:job:{wrong:x}");
    bench.command("ZADD", &key, &[b"5", job.id.to_string().as_bytes()]).await;
    let mut walk = ScrubWalk::new();
    let mut strays = 0;
    // One shard a step.
    for _ in 0..16 {
        strays += step(bench, &mut walk).await.strays;
    }
    assert_eq!(strays, 1);
    let left = bench.command("ZSCORE", &key, &[job.id.to_string().as_bytes()]).await;
    assert_eq!(left, redis::Value::Nil);
    assert!(bench.store.home_of(job.id).await.unwrap().is_some());
}

async fn jobs_that_come_and_go_meanwhile_are_left_alone(bench: &Bench) {
    scrub(bench).await;
    let tenant = tenant();
    let homes = bench.store.count_homes().await.unwrap();
    let lives = async {
        for _ in 0..60 {
            let ids = bench.submit_listed(&tenant, 20).await;
            let ends = ids.iter().map(|id| Step::new(*id, Event::Cancel, 0)).collect();
            assert!(bench.store.apply(ends).await.into_iter().all(|moved| moved.is_ok()));
            bench.store.drop_homes(&ids).await.unwrap();
        }
    };
    let mut passes = 0;
    let scrubs = async {
        loop {
            assert_eq!(put_back(&scrub(bench).await), (0, 0, 0));
            passes += 1;
        }
    };
    tokio::select! {
        () = lives => {}
        () = scrubs => {}
    }
    assert!(passes > 1, "{passes}");
    assert_eq!(bench.store.count_homes().await.unwrap(), homes);
}

async fn steps_are_bounded_and_a_pass_sees_everybody(bench: &Bench) {
    let tenant = tenant();
    let before = scrub(bench).await.scanned;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(bench.submit_listed(&tenant, 300).await);
    }
    bench.store.drop_homes(&ids).await.unwrap();
    let (mut walk, mut steps, mut homes) = (ScrubWalk::new(), 0, 0);
    let mut most = 0;
    loop {
        let done = step(bench, &mut walk).await;
        most = most.max(done.scanned);
        steps += 1;
        homes += done.homes;
        if done.passed {
            break;
        }
    }
    // Redis returns a little more than what it is asked for, never much.
    assert!(most <= 400 && steps >= 8, "{most} in one of {steps} steps");
    assert_eq!(homes, 3000);
    for id in ids {
        assert!(bench.store.home_of(id).await.unwrap().is_some());
    }
    let again = async || (scrub(bench).await.scanned >= before + 3000).then_some(());
    until(PATIENCE, "all to be seen", again).await;
}
