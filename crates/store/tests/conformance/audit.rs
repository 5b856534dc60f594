//! The audit log: one entry for each act, a chain that shows every change, a bounded length. Each
//! test has a Redis of its own, because there is one log.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use muster_domain::{Act, Time};
use muster_store::{AuditFilter, AuditReport, AuditRetention, RedisSettings, Store};
use muster_testkit::{RedisCluster, RedisServer};

const LOG: &str = "muster:audit";
const EVER: Duration = Duration::from_secs(365 * 24 * 3600);

async fn store(url: String) -> Store {
    // Patient, so that a busy machine causes no repeats: a repeat finds nothing new to count.
    let patience = Duration::from_secs(20);
    let settings = RedisSettings { response_timeout: patience, budget: patience, ..RedisSettings::new(url) };
    let store = Store::connect(settings).await.unwrap();
    store.ping().await.unwrap();
    store
}

fn act(store: &Store, id: &str) -> Act {
    Act::by_system(id.to_owned(), store.now(), "acme", "job_retry").with("text", "ü\n\"")
}

async fn tell(store: &Store, ids: impl IntoIterator<Item = String>) -> u64 {
    let acts: Vec<Act> = ids.into_iter().map(|id| act(store, &id)).collect();
    store.audit(&acts).await.unwrap()
}

fn numbered(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|n| format!("a{n}"))
}

/// The whole walk, a few entries a call.
async fn verify(store: &Store, step: usize) -> AuditReport {
    let mut cursor = None;
    loop {
        let report = store.verify_audit(cursor.as_deref(), step).await.unwrap();
        match report.next_cursor {
            Some(next) => cursor = Some(next),
            None => return report,
        }
    }
}

/// Ids of all entries, newest first.
async fn ids(store: &Store, filter: &AuditFilter) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = store.list_audit(filter, cursor.as_deref(), 7).await.unwrap();
        found.extend(page.into_iter().map(|entry| entry.id));
        match next {
            Some(next) => cursor = Some(next),
            None => return found,
        }
    }
}

/// An entry's place in the stream.
async fn place(server: &RedisServer, n: usize) -> String {
    let text = server.cli(&["XRANGE", LOG, "-", "+", "COUNT", &n.to_string()]).await;
    let mut places =
        text.lines().filter(|line| line.contains('-') && line.split('-').all(|p| p.parse::<u64>().is_ok()));
    places.next_back().unwrap().to_owned()
}

#[tokio::test]
async fn an_act_that_many_tell_many_times_is_one_entry() {
    let server = RedisServer::start().await;
    // Each has its own view of how the log ends.
    let stores = join_all((0..6).map(|_| store(server.url()))).await;
    let told = join_all(stores.iter().map(|store| async move {
        let mut added = 0;
        for round in 0..20 {
            added += tell(store, numbered(0..10 * (round + 1))).await;
        }
        added
    }));
    assert_eq!(told.await.into_iter().sum::<u64>(), 200, "new ones are counted once, whoever tells them");
    let all = ids(&stores[0], &AuditFilter::default()).await;
    assert_eq!(all.len(), 200);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 200);
    let report = verify(&stores[1], 1).await;
    assert_eq!((report.checked, report.first, report.last, report.broken), (200, 1, 200, None));
    assert_eq!(server.cli(&["XLEN", LOG]).await, "200");
    assert_eq!(tell(&stores[2], ["a0".to_owned(), "b".to_owned(), "b".to_owned()]).await, 1);
}

#[tokio::test]
async fn what_was_told_is_found_by_what_is_asked() {
    let server = RedisServer::start().await;
    let store = store(server.url()).await;
    let (early, late) = (Time(store.now().0 - 3_600_000_000), store.now());
    let job = muster_domain::JobId::mint(1);
    let acts = [
        Act::by_key("1".into(), early, "k1", "acme", "key_create").target("key/x"),
        Act::by_key("2".into(), late, "k2", "acme", "job_cancel").job(job),
        Act::by_system("3".into(), late, "other", "job_retry").job(job),
    ];
    store.audit(&acts).await.unwrap();
    let all = AuditFilter::default();
    let filters = [
        (all.clone(), vec!["3", "2", "1"]),
        (AuditFilter { tenant: Some("acme".into()), ..all.clone() }, vec!["2", "1"]),
        (AuditFilter { action: Some("job_retry".into()), ..all.clone() }, vec!["3"]),
        (AuditFilter { actor: Some("k1".into()), ..all.clone() }, vec!["1"]),
        (AuditFilter { job: Some(job.to_string()), ..all.clone() }, vec!["3", "2"]),
        (AuditFilter { after: Some(Time(early.0 + 1_000)), ..all.clone() }, vec!["3", "2"]),
        (AuditFilter { before: Some(Time(early.0 + 1_000_000)), ..all.clone() }, vec!["1"]),
    ];
    for (filter, expected) in filters {
        assert_eq!(ids(&store, &filter).await, expected, "{filter:?}");
    }
    assert!(store.list_audit(&all, Some("x"), 5).await.is_err(), "a cursor of another list");
    let (page, _) = store.list_audit(&all, None, 1).await.unwrap();
    assert_eq!(page[0].act().unwrap(), acts[2], "as it was told");
}

#[tokio::test]
async fn a_look_at_the_newest_entries_finds_what_was_done_to_them_and_no_more() {
    let server = RedisServer::start().await;
    let store = store(server.url()).await;
    let tail = async || store.verify_audit_tail(5).await.unwrap();
    assert_eq!(tail().await, None, "an empty log is whole");
    tell(&store, numbered(0..20)).await;
    assert_eq!(tail().await, None);
    // What is older is left to a walk over all of it.
    let (old, young) = (place(&server, 3).await, place(&server, 18).await);
    server.cli(&["XDEL", LOG, &old]).await;
    assert_eq!(tail().await, None);
    server.cli(&["XDEL", LOG, &young]).await;
    let broken = tail().await.expect("an entry is missing");
    assert!(broken.reason.contains("removed or inserted"), "{broken:?}");
    // The newest one is missed, too.
    let server = RedisServer::start().await;
    let store = self::store(server.url()).await;
    tell(&store, numbered(0..4)).await;
    server.cli(&["XDEL", LOG, &place(&server, 4).await]).await;
    let broken = store.verify_audit_tail(100).await.unwrap().expect("the end is missing");
    assert!(broken.reason.contains("newest entries"), "{broken:?}");
}

#[tokio::test]
async fn whoever_changes_the_log_by_hand_is_found_out_and_where() {
    for (what, number, says) in [
        ("change", 5, "changed"),
        ("rename", 5, "id"),
        ("remove", 5, "removed or inserted"),
        ("cut the beginning", 3, "retention"),
        ("cut the end", 10, "newest entries"),
        ("cut the end and go on", 11, "recorded ids are missing"),
        ("insert", 11, "not written by Muster"),
        ("relink", 11, "linked"),
    ] {
        let server = RedisServer::start().await;
        let store = store(server.url()).await;
        tell(&store, numbered(1..11)).await;
        assert_eq!(verify(&store, 500).await.broken, None);
        let fifth = place(&server, 5).await;
        match what {
            // A stream's entries cannot be changed in place: somebody has to write it anew, as here.
            "change" | "rename" => rewrite(&server, what).await,
            "remove" => drop(server.cli(&["XDEL", LOG, &fifth]).await),
            "cut the beginning" => drop(server.cli(&["XTRIM", LOG, "MAXLEN", "7"]).await),
            "cut the end" => drop(server.cli(&["XDEL", LOG, &place(&server, 10).await]).await),
            "cut the end and go on" => {
                server.cli(&["XDEL", LOG, &place(&server, 10).await]).await;
                tell(&store, ["later".to_owned(), "last".to_owned()]).await;
            }
            "insert" => drop(server.cli(&["XADD", LOG, "*", "hello", "world"]).await),
            _ => {
                let body = "{}";
                let fields = ["id", "x", "n", "11", "prev", "abc", "hash", "abc", "body", body];
                server.cli(&[&["XADD", LOG, "*"], &fields[..]].concat()).await;
            }
        }
        let broken = verify(&store, 500).await.broken.unwrap_or_else(|| panic!("{what}"));
        assert!(broken.reason.contains(says), "{what}: {broken:?}");
        assert_eq!(broken.number, number, "{what}: {broken:?}");
        if matches!(what, "change" | "rename") {
            assert_eq!(broken.id, if what == "rename" { "b5" } else { "a5" });
        }
    }
}

/// Writes the log anew with the fifth entry changed.
async fn rewrite(server: &RedisServer, what: &str) {
    let script = "local all = redis.call('XRANGE', KEYS[1], '-', '+') redis.call('XTRIM', KEYS[1], 'MAXLEN', 0) \
        for n, e in ipairs(all) do local f = e[2] if n == 5 then \
        if ARGV[1] == 'rename' then f[2] = 'b5' else f[10] = string.gsub(f[10], 'acme', 'evil') end end \
        redis.call('XADD', KEYS[1], '*', unpack(f)) end return 1";
    assert_eq!(server.cli(&["EVAL", script, "1", LOG, what]).await, "1");
}

#[tokio::test]
async fn old_entries_leave_and_the_rest_can_still_be_verified() {
    let server = RedisServer::start().await;
    let store = store(server.url()).await;
    let repeat = act(&store, "a0");
    tell(&store, numbered(0..100)).await;
    let keep = |entries| AuditRetention { age: EVER, entries };
    assert_eq!(store.trim_audit(&keep(100), 500).await.unwrap(), 0);
    assert_eq!(store.trim_audit(&keep(60), 30).await.unwrap(), 30, "no more than asked for at once");
    assert_eq!(store.trim_audit(&keep(60), 30).await.unwrap(), 11);
    assert_eq!(store.trim_audit(&keep(61), 30).await.unwrap(), 0);
    let report = verify(&store, 7).await;
    assert_eq!((report.broken, report.first, report.last), (None, 42, 102));
    // What has left is not taken for something new when it is told again.
    assert_eq!(store.audit(&[repeat]).await.unwrap(), 0);
    assert_eq!(server.cli(&["XLEN", LOG]).await, "61");
    // Ids leave with their entries: nothing grows for ever.
    let groups = server.cli(&["XINFO", "GROUPS", LOG]).await;
    let consumers = groups.lines().skip_while(|line| *line != "consumers").nth(1).unwrap().to_owned();
    assert_eq!(consumers, "61");

    // By age: all but the newest, and then nothing more, however often.
    let all = AuditRetention { age: Duration::ZERO, entries: u64::MAX };
    muster_testkit::until(Duration::from_secs(20), "a millisecond to pass", async || {
        (store.trim_audit(&all, 500).await.unwrap() > 0).then_some(())
    })
    .await;
    for _ in 0..3 {
        store.ping().await.unwrap();
        store.trim_audit(&all, 500).await.unwrap();
    }
    let report = verify(&store, 500).await;
    assert_eq!(report.broken, None);
    assert!(report.checked <= 2 && report.last >= 103, "{report:?}");
    // And a hand that takes away more than retention did is still found out.
    tell(&store, numbered(200..210)).await;
    server.cli(&["XTRIM", LOG, "MAXLEN", "4"]).await;
    assert!(verify(&store, 500).await.broken.unwrap().reason.contains("retention"));
}

#[tokio::test]
async fn of_many_who_trim_at_once_each_entry_leaves_once() {
    let server = RedisServer::start().await;
    let stores = join_all((0..16).map(|_| store(server.url()))).await;
    let keep = AuditRetention { age: EVER, entries: 50 };
    for round in 0..5 {
        tell(&stores[0], numbered(round * 100..round * 100 + 100)).await;
        // Not in step: some count what others are about to remove.
        let trims = stores.iter().enumerate().map(|(n, store)| async move {
            tokio::time::sleep(Duration::from_micros(100 * n as u64)).await;
            store.trim_audit(&keep, 500).await.unwrap()
        });
        join_all(trims).await;
        let report = verify(&stores[0], 500).await;
        assert_eq!(report.broken, None);
        assert!((50..=50 + stores.len() as u64).contains(&report.checked), "{report:?}");
    }
}

#[tokio::test]
async fn every_entry_is_exported_whoever_dies_meanwhile() {
    let server = RedisServer::start().await;
    let (one, two) = (store(server.url()).await, store(server.url()).await);
    let long = Duration::from_secs(600);
    assert!(one.audit_to_export(10, long).await.unwrap().is_empty(), "before there is a log");
    tell(&one, numbered(0..30)).await;
    let first = one.audit_to_export(10, long).await.unwrap();
    let second = two.audit_to_export(10, long).await.unwrap();
    assert_eq!((first.len(), second.len()), (10, 10));
    assert!(first.iter().all(|entry| !second.contains(entry)), "each to one of them");
    two.audit_exported(&second.iter().map(|entry| entry.cursor.clone()).collect::<Vec<_>>()).await.unwrap();
    // The first one dies before it confirms: another gets the same.
    let again = two.audit_to_export(10, Duration::ZERO).await.unwrap();
    assert_eq!(again, first);
    two.audit_exported(&again.iter().map(|entry| entry.cursor.clone()).collect::<Vec<_>>()).await.unwrap();
    let rest = two.audit_to_export(100, long).await.unwrap();
    assert_eq!(rest.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), numbered(20..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_log_is_one_key_on_a_cluster_too() {
    let cluster = RedisCluster::start_steady().await;
    let stores = join_all((0..3).map(|_| store(cluster.url()))).await;
    join_all(stores.iter().map(|store| tell(store, numbered(0..50)))).await;
    let keep = AuditRetention { age: EVER, entries: 20 };
    assert_eq!(stores[1].trim_audit(&keep, 500).await.unwrap(), 30);
    assert_eq!(stores[0].audit_to_export(5, Duration::from_secs(60)).await.unwrap().len(), 5);
    let report = verify(&stores[2], 500).await;
    assert_eq!((report.broken, report.checked, report.first), (None, 21, 31));
}
