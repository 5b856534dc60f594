//! Runs: created once, saved under the version that was read, listed newest first, with a timeline of both ends.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{RunId, Tenant, Time};
use muster_store::{
    CreatedRun, LeaderLock, ListError, RunAge, RunPage, RunRetentionWalk, RunScan, RunSpan, RunVersion, SavedRun,
    StoreError, StoredRun, TIMELINE_ENDS,
};

use crate::bench::{Bench, tenant};

fn fields(pairs: &[(&str, &str)]) -> Vec<(Bytes, Bytes)> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    pairs.iter().map(|(name, value)| (bytes(name), bytes(value))).collect()
}

fn run() -> RunId {
    RunId::mint(fastrand::u8(6..15))
}

fn nonce() -> u64 {
    fastrand::u64(..)
}

async fn created(bench: &Bench, tenant: &Tenant, what: &[(&str, &str)]) -> (RunId, RunVersion) {
    let id = run();
    match bench.store.create_run(id, tenant, &fields(what), nonce()).await.unwrap() {
        CreatedRun::Created { version, .. } => (id, version),
        CreatedRun::Exists => panic!("a new id"),
    }
}

async fn read(bench: &Bench, id: RunId) -> StoredRun {
    bench.store.read_run(id).await.unwrap().expect("a run")
}

fn of(run: &StoredRun) -> HashMap<Bytes, Bytes> {
    run.fields.clone()
}

pub(crate) async fn a_run_is_created_once_and_a_repeat_is_the_same_creation(bench: &Bench) {
    let (id, tenant, nonce) = (run(), tenant(), nonce());
    assert_eq!(bench.store.read_run(id).await, Ok(None));
    assert_eq!(bench.store.home_of(id).await, Ok(None));
    let first = fields(&[("head", "\0\u{1}ü"), ("s:a", "")]);
    for _ in 0..2 {
        let made = bench.store.create_run(id, &tenant, &first, nonce).await.unwrap();
        let CreatedRun::Created { version, now } = made else { panic!("{made:?}") };
        assert_eq!(version, RunVersion { counter: 1, nonce });
        let left = bench.store.home_of(id).await.unwrap().expect("a home").since(now);
        assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30), "{left:?}");
    }
    // Another start of the same id, whatever it wants: the run is as it was, and is looked at now.
    let taken = bench.store.create_run(id, &tenant, &fields(&[("head", "other"), ("x", "y")]), nonce + 1).await;
    assert_eq!(taken, Ok(CreatedRun::Exists));
    let stored = read(bench, id).await;
    assert_eq!((stored.version, of(&stored)), (RunVersion { counter: 1, nonce }, first.into_iter().collect()));
    assert!(bench.store.home_of(id).await.unwrap().expect("a home").reached(bench.store.ping().await.unwrap()));
    // Once it was saved, the first call is no longer the last word.
    let version = RunVersion { counter: 1, nonce };
    bench.store.save_run(id, version, 5, &[], &[]).await.unwrap();
    assert_eq!(bench.store.create_run(id, &tenant, &[], nonce).await, Ok(CreatedRun::Exists));
    assert_eq!(bench.store.have_runs(&[id, run()]).await, [Ok(true), Ok(false)]);
}

pub(crate) async fn a_save_writes_what_changed_under_the_version_that_was_read(bench: &Bench) {
    let (id, version) = created(bench, &tenant(), &[("head", "0"), ("a", "1"), ("b", "2"), ("c", "3")]).await;
    let remove = [Bytes::from_static(b"b"), Bytes::from_static(b"never")];
    let change = fields(&[("a", "10"), ("d", "4")]);
    for _ in 0..2 {
        // The second is a repeat of the first, by its nonce.
        let saved = bench.store.save_run(id, version, 7, &change, &remove).await.unwrap();
        assert!(matches!(saved, SavedRun::Saved { version: RunVersion { counter: 2, nonce: 7 }, .. }), "{saved:?}");
    }
    let stored = read(bench, id).await;
    assert_eq!(stored.version, RunVersion { counter: 2, nonce: 7 });
    let expected = fields(&[("head", "0"), ("a", "10"), ("c", "3"), ("d", "4")]);
    assert_eq!(of(&stored), expected.into_iter().collect());
    assert!(stored.now.0 > 0);
    // Only some fields, with those left out that are not there.
    let some = bench.store.read_run_fields(id, &[b"d", b"b", b"head"]).await.unwrap().unwrap();
    assert_eq!(of(&some), fields(&[("head", "0"), ("d", "4")]).into_iter().collect());
    assert!(bench.store.read_run_fields(id, &[]).await.unwrap().unwrap().fields.is_empty());
    assert_eq!(bench.store.read_run_fields(run(), &[b"head"]).await, Ok(None));
    // The store's own fields are nobody else's.
    for own in ["v", "l"] {
        let refused = bench.store.save_run(id, stored.version, 9, &fields(&[(own, "x")]), &[]).await;
        assert!(matches!(refused, Err(StoreError::Decode(_))), "{refused:?}");
    }
}

pub(crate) async fn a_save_compares_counter_and_nonce(bench: &Bench) {
    let (id, version) = created(bench, &tenant(), &[("a", "1")]).await;
    let change = fields(&[("a", "wrong")]);
    let others = [
        RunVersion { counter: version.counter, nonce: version.nonce ^ 1 },
        RunVersion { counter: version.counter + 1, nonce: version.nonce },
        RunVersion { counter: 0, nonce: version.nonce },
    ];
    for other in others {
        let saved = bench.store.save_run(id, other, 7, &change, &[]).await.unwrap();
        assert_eq!(saved, SavedRun::Conflict { now: Some(version) }, "{other:?}");
    }
    assert_eq!(of(&read(bench, id).await), fields(&[("a", "1")]).into_iter().collect());
    let nowhere = bench.store.save_run(run(), version, 7, &change, &[]).await;
    assert_eq!(nowhere, Ok(SavedRun::Conflict { now: None }), "a save never creates");

    // Of many that read the same version, one saves.
    let saves = (0..32).map(|n| {
        let change = fields(&[("a", &format!("{n}"))]);
        async move { bench.store.save_run(id, version, 1000 + n, &change, &[]).await.unwrap() }
    });
    let won: Vec<SavedRun> =
        join_all(saves).await.into_iter().filter(|saved| matches!(saved, SavedRun::Saved { .. })).collect();
    let [SavedRun::Saved { version: last, .. }] = won[..] else { panic!("{won:?}") };
    let stored = read(bench, id).await;
    assert_eq!(stored.version, last);
    assert_eq!(stored.fields[&b"a"[..]], (last.nonce - 1000).to_string(), "with what it wrote");
}

pub(crate) async fn a_large_run_is_saved_and_read_whole(bench: &Bench) {
    let many: Vec<(Bytes, Bytes)> =
        (0..5000).map(|n| (Bytes::from(format!("s:{n}")), Bytes::from(vec![7; 100]))).collect();
    let id = run();
    let made = bench.store.create_run(id, &tenant(), &many, 1).await.unwrap();
    let CreatedRun::Created { version, .. } = made else { panic!("{made:?}") };
    assert_eq!(read(bench, id).await.fields.len(), 5000);
    let names: Vec<Bytes> = many.iter().map(|(name, _)| name.clone()).collect();
    let (changed, removed) = (many[..2500].iter(), &names[2500..]);
    let changed: Vec<(Bytes, Bytes)> = changed.map(|(name, _)| (name.clone(), Bytes::from_static(b"x"))).collect();
    bench.store.save_run(id, version, 2, &changed, removed).await.unwrap();
    let asked: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
    for stored in [read(bench, id).await, bench.store.read_run_fields(id, &asked).await.unwrap().unwrap()] {
        assert_eq!(of(&stored), changed.iter().cloned().collect());
    }
}

pub(crate) async fn a_run_is_deleted_as_it_was_read_with_its_timeline(bench: &Bench) {
    let (id, version) = created(bench, &tenant(), &[("a", "1")]).await;
    bench.store.add_timeline(id, 0, &[Bytes::from_static(b"began")]).await.unwrap();
    let other = RunVersion { nonce: version.nonce ^ 1, ..version };
    assert_eq!(bench.store.delete_run(id, other).await, Ok(false), "saved since");
    assert_eq!(bench.store.read_timeline(id).await.unwrap().first.len(), 1);
    for _ in 0..2 {
        assert_eq!(bench.store.delete_run(id, version).await, Ok(true));
    }
    assert_eq!(bench.store.read_run(id).await, Ok(None));
    assert_eq!(bench.store.read_timeline(id).await, Ok(Default::default()));
    // A save that was under way does not bring it back.
    let late = bench.store.save_run(id, version, 9, &fields(&[("a", "2")]), &[]).await;
    assert_eq!(late, Ok(SavedRun::Conflict { now: None }));
}

pub(crate) async fn a_timeline_keeps_its_first_and_last_entries(bench: &Bench) {
    let id = run();
    let entry = |n: u64| Bytes::from(format!("{n}"));
    let entries = |from: u64, to: u64| (from..to).map(entry).collect::<Vec<_>>();
    assert_eq!(bench.store.read_timeline(id).await, Ok(Default::default()));
    assert_eq!(bench.store.add_timeline(id, 0, &entries(0, 3)).await, Ok(3));
    // A repeat, and an addition that overlaps.
    assert_eq!(bench.store.add_timeline(id, 0, &entries(0, 3)).await, Ok(3));
    assert_eq!(bench.store.add_timeline(id, 2, &entries(2, 5)).await, Ok(5));
    let few = bench.store.read_timeline(id).await.unwrap();
    assert_eq!((few.first.clone(), few.missing, few.last.len(), few.next()), (entries(0, 5), 0, 0, 5));
    let refused = bench.store.add_timeline(id, 5, &[Bytes::new()]).await;
    assert!(matches!(refused, Err(StoreError::Decode(_))), "{refused:?}");

    let ends = TIMELINE_ENDS as u64;
    let mut next = 5;
    for step in [1, 500, 1494, 1, 99, 1, 1, 700, 2500, 3] {
        assert_eq!(bench.store.add_timeline(id, next, &entries(next, next + step)).await, Ok(next + step));
        next += step;
        let read = bench.store.read_timeline(id).await.unwrap();
        assert_eq!(read.next(), next);
        let kept = next.min(2 * ends);
        assert_eq!(read.missing, next - kept, "after {next}");
        assert_eq!(read.first, entries(0, next.min(ends)), "after {next}");
        assert_eq!(read.last, entries(next - (kept - next.min(ends)), next), "after {next}");
    }
    let length = bench.command("LLEN", &format!("muster:wf:timeline:{id}"), &[]).await;
    assert!(redis::from_redis_value::<u64>(length).unwrap() <= 2 * ends + 101);
    // What a failover has lost is not made up: what comes next is added all the same.
    assert_eq!(bench.store.add_timeline(id, next + 10, &[entry(7)]).await, Ok(next + 11));
    assert_eq!(bench.store.read_timeline(id).await.unwrap().last.last(), Some(&entry(7)));
}

/// Walks a list of runs to its end.
async fn walk(bench: &Bench, tenant: &Tenant, limit: usize, admits: impl Fn(&StoredRun) -> bool + Sync) -> Vec<RunId> {
    let (mut shown, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page =
            bench.store.list_runs(tenant, cursor.as_deref(), limit, RunSpan::default(), &[b"n"], |_, run| admits(run));
        let RunPage { items, next_cursor, unreadable } = page.await.unwrap();
        assert!(items.len() <= limit && unreadable.is_empty());
        assert!(items.iter().all(|(_, run)| run.fields.len() == 1), "only what was asked for");
        shown.extend(items.iter().map(|(id, _)| *id));
        cursor = next_cursor;
        if cursor.is_none() {
            return shown;
        }
    }
}

pub(crate) async fn runs_are_listed_newest_first_and_each_once(bench: &Bench) {
    let tenant = tenant();
    let mut ids = Vec::new();
    for n in 0..30 {
        let what = fields(&[("n", &format!("{}", n % 3)), ("large", "x")]);
        let (id, nonce) = (run(), nonce());
        for _ in 0..=n % 2 {
            // Every other start is sent twice: the entry that its run remembers counts.
            bench.store.create_run(id, &tenant, &what, nonce).await.unwrap();
        }
        ids.insert(0, id);
    }
    for limit in [1, 7, 30, 100] {
        let shown = walk(bench, &tenant, limit, |_| true).await;
        assert_eq!(shown, ids, "{limit} at once");
    }
    let some = walk(bench, &tenant, 4, |run| run.fields[&b"n"[..]] == "1").await;
    let expected: Vec<RunId> = ids.iter().rev().enumerate().filter(|(n, _)| n % 3 == 1).map(|(_, id)| *id).collect();
    assert_eq!(some, expected.into_iter().rev().collect::<Vec<_>>());

    // Jobs and other tenants have lists of their own.
    let job = bench.submit_listed(&tenant, 1).await[0];
    assert_eq!(walk(bench, &tenant, 50, |_| true).await.len(), 30);
    let jobs = bench.store.list(&tenant, None, 10, &Default::default(), muster_store::Fields::NONE).await.unwrap();
    assert_eq!(jobs.items.iter().map(|job| job.id).collect::<Vec<_>>(), [job]);
    let cursor =
        bench.store.list_runs(&tenant, None, 1, RunSpan::default(), &[], |_, _| true).await.unwrap().next_cursor;
    let refused =
        bench.store.list(&tenant, cursor.as_deref(), 1, &Default::default(), muster_store::Fields::NONE).await;
    assert_eq!(refused.unwrap_err(), ListError::BadCursor);
    let refused = bench.store.list_runs(&tenant, Some("b.1.2"), 1, RunSpan::default(), &[], |_, _| true).await;
    assert_eq!(refused.unwrap_err(), ListError::BadCursor);

    // A deleted run is not shown, and the span of time leaves out what is older or younger.
    let gone = read(bench, ids[3]).await;
    bench.store.delete_run(ids[3], gone.version).await.unwrap();
    assert_eq!(walk(bench, &tenant, 50, |_| true).await.len(), 29);
    let hours = |n: u64| Some(muster_domain::Time(gone.now.0 - n * 3_600_000_000));
    for (span, count) in [
        (RunSpan { created_after: hours(1), created_before: None }, 29),
        (RunSpan { created_after: None, created_before: hours(1) }, 0),
    ] {
        let page = bench.store.list_runs(&tenant, None, 100, span, &[], |_, _| true).await.unwrap();
        assert_eq!(page.items.len(), count, "{span:?}");
    }
}

/// The age of the runs of one test; those of the other tests never end.
fn age_of(mark: String) -> impl Fn(&StoredRun) -> Option<RunAge> + Send + Sync {
    move |run| {
        let field = |name: &'static str| std::str::from_utf8(run.fields.get(name.as_bytes())?).ok();
        if field("mark") != Some(mark.as_str()) {
            return Some(RunAge { ended: Time::NONE, needed_by: Vec::new() });
        }
        let ended = Time(field("ended")?.parse().ok()?);
        Some(RunAge { ended, needed_by: field("needed").and_then(|id| id.parse().ok()).into_iter().collect() })
    }
}

async fn retained(bench: &Bench, mark: &str) -> (u64, u64) {
    let lease = bench.leads(LeaderLock::Retention).await;
    let (mut walk, keep, age) = (RunRetentionWalk::new(), Duration::from_micros(1), age_of(mark.to_owned()));
    let fields: [&[u8]; 3] = [b"mark", b"ended", b"needed"];
    let (mut runs, mut unreadable) = (0, 0);
    loop {
        let done = bench.store.retain_runs(&lease, &mut walk, keep, 100, &fields, &age).await.unwrap();
        (runs, unreadable) = (runs + done.runs, unreadable + done.unreadable);
        if done.passed {
            return (runs, unreadable);
        }
    }
}

pub(crate) async fn an_ended_run_leaves_unless_it_has_a_home_or_another_run_needs_it(bench: &Bench) {
    let (tenant, mark) = (tenant(), run().to_string());
    let long_ago = bench.store.ping().await.unwrap().before(Duration::from_secs(60)).0.to_string();
    let ended = [("mark", mark.as_str()), ("ended", &long_ago)];
    let needs = created(bench, &tenant, &[("mark", &mark), ("ended", "0")]).await.0;
    let needs_text = needs.to_string();
    let (plain, (needed, _)) = (
        created(bench, &tenant, &ended).await.0,
        created(bench, &tenant, &[ended[0], ended[1], ("needed", &needs_text)]).await,
    );
    let at_home = created(bench, &tenant, &ended).await.0;
    let broken = created(bench, &tenant, &[("mark", &mark), ("ended", "x")]).await.0;
    bench.store.add_timeline(plain, 0, &[Bytes::from_static(b"x")]).await.unwrap();
    bench.store.drop_homes(&[plain, needed]).await.unwrap();

    assert_eq!(retained(bench, &mark).await, (1, 1));
    let all = [plain, needs, needed, at_home, broken];
    assert_eq!(bench.store.have_runs(&all).await, [Ok(false), Ok(true), Ok(true), Ok(true), Ok(true)]);
    assert_eq!(bench.store.read_timeline(plain).await.unwrap().first.len(), 0);

    let version = read(bench, needs).await.version;
    assert!(bench.store.delete_run(needs, version).await.unwrap());
    bench.store.drop_homes(&[at_home]).await.unwrap();
    assert_eq!(retained(bench, &mark).await, (2, 1), "what nobody can read stays");
    assert_eq!(bench.store.have_runs(&[needed, at_home, broken]).await, [Ok(false), Ok(false), Ok(true)]);
}

pub(crate) async fn a_run_without_a_home_is_found_on_whatever_node_it_is(bench: &Bench) {
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(created(bench, &tenant(), &[("head", "0")]).await.0);
    }
    let (lost, at_home) = ids.split_at(15);
    bench.store.drop_homes(lost).await.unwrap();
    let (mut scan, mut found) = (RunScan::default(), Vec::new());
    while let Some(page) = bench.store.homeless_runs(&mut scan, 7).await.unwrap() {
        found.extend(page);
    }
    assert!(lost.iter().all(|id| found.contains(id)), "{found:?}");
    assert!(!at_home.iter().any(|id| found.contains(id)));
}
