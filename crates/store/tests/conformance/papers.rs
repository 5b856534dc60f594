//! What is written down once and read back: lease notes, API keys, unreadable messages.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{JobId, RequestId, Time, WorkerId};
use muster_store::{ApiKey, DeadMessage};
use muster_testkit::until;

use crate::bench::{Bench, HOUR, PATIENCE, tenant};

pub(crate) async fn the_first_note_wins_and_never_changes(bench: &Bench) {
    let (tenant, worker) = (tenant(), WorkerId::parse("w-1").unwrap());
    let request = |text: &str| RequestId::parse(text).unwrap();
    let offers = |n: u32| (0..n).map(|v| (JobId::mint(0), v * 70_000)).collect::<Vec<_>>();
    let read = async |name: &str| bench.store.read_lease_note(&tenant, &worker, &request(name)).await.unwrap().0;
    assert_eq!(read("r").await, None);
    let first = offers(3);
    let put = async |name: &str, offers: &[(JobId, u32)], ttl| {
        bench.store.note_lease(&tenant, &worker, &request(name), offers, ttl).await.unwrap()
    };
    assert_eq!(put("r", &first, HOUR).await, first);
    for other in [offers(1), offers(0), first.clone()] {
        assert_eq!(put("r", &other, HOUR).await, first);
        assert_eq!(read("r").await, Some(first.clone()));
    }
    // Nothing to give is a note as well.
    assert_eq!(put("nothing", &[], HOUR).await, []);
    assert_eq!((put("nothing", &first, HOUR).await, read("nothing").await), (vec![], Some(vec![])));
    // Two gateways at once: both give what the one note says.
    let replica = bench.replica().await;
    let notes = (0..20).map(|n| {
        let (store, name, offers) = (if n % 2 == 0 { &bench.store } else { &replica }, request("both"), offers(2));
        let (tenant, worker) = (&tenant, &worker);
        async move { store.note_lease(tenant, worker, &name, &offers, HOUR).await.unwrap() }
    });
    let stood = join_all(notes).await;
    assert!(stood.iter().all(|note| *note == stood[0]) && stood[0].len() == 2);
    // Other workers, tenants and requests have notes of their own.
    let other = WorkerId::parse("w-2").unwrap();
    assert_eq!(bench.store.read_lease_note(&tenant, &other, &request("r")).await, Ok((None, false)));
    assert_eq!(bench.store.read_lease_note(&crate::bench::tenant(), &worker, &request("r")).await, Ok((None, false)));
    // A worker that was told to leave hears so with whatever it asks, for as long as it was said.
    let leaving = WorkerId::http(&tenant, &WorkerId::parse("w-3").unwrap());
    let leave = async || bench.store.read_lease_note(&tenant, &leaving, &request("r")).await.unwrap().1;
    bench.store.drain_worker(&leaving, Duration::from_secs(3)).await.unwrap();
    assert!(leave().await);
    until(PATIENCE, "its end", async || (!leave().await).then_some(())).await;
    assert_eq!(put("short", &first, Duration::from_millis(50)).await, first);
    until(PATIENCE, "the note's end", async || read("short").await.is_none().then_some(())).await;
}

pub(crate) async fn an_api_key_is_found_listed_and_deleted(bench: &Bench) {
    let (tenant, other) = (tenant(), tenant());
    let key = |id: &str, tenant: &muster_domain::Tenant, expires_at| ApiKey {
        id: format!("{tenant}{id}"),
        name: "für die CI".into(),
        tenant: tenant.clone(),
        scopes: vec!["submit".into(), "read".into()],
        topics: vec!["email.*".into()],
        secret_hash: std::array::from_fn(|n| u8::try_from(n * 8).unwrap()),
        created_at: Time(1_800_000_000_000_001),
        expires_at,
        previous: None,
    };
    let plain = ApiKey { topics: vec![], scopes: vec![], ..key("a", &tenant, None) };
    let full = key("b", &tenant, Some(Time(1_900_000_000_000_002)));
    let theirs = key("c", &other, None);
    for stored in [&plain, &full, &theirs, &full] {
        bench.store.put_key(stored).await.unwrap();
        assert_eq!(bench.store.find_key(&stored.id).await, Ok(Some(stored.clone())));
    }
    assert_eq!(bench.store.list_keys(Some(&tenant)).await, Ok(vec![plain.clone(), full.clone()]));
    let everybody = bench.store.list_keys(None).await.unwrap();
    assert!([&plain, &full, &theirs].iter().all(|key| everybody.contains(key)));
    assert_eq!(bench.store.delete_key(&full.id).await, Ok(true));
    assert_eq!(bench.store.delete_key(&full.id).await, Ok(false));
    assert_eq!(bench.store.find_key(&full.id).await, Ok(None));
    assert_eq!(bench.store.list_keys(Some(&tenant)).await, Ok(vec![plain]));
}

pub(crate) async fn a_dead_message_is_read_back_as_it_came(bench: &Bench) {
    let message = DeadMessage {
        id: format!("MUSTER_SYS:{}", fastrand::u64(..)),
        subject: "sys.job.submit".into(),
        reason: "not protobuf: ü".into(),
        original: Bytes::from_static(b"\0\xff\r\n{"),
        at: Time(1_800_000_000_000_003),
    };
    assert_eq!(bench.store.dead_message(&message.id).await, Ok(None));
    for _ in 0..2 {
        bench.store.add_dead_message(&message).await.unwrap();
        assert_eq!(bench.store.dead_message(&message.id).await, Ok(Some(message.clone())));
    }
    let (listed, _) = bench.store.list_dead_messages(None, 500).await.unwrap();
    assert_eq!(listed.iter().filter(|found| **found == message).count(), 1, "listed once");
    assert!(bench.store.count_dead_messages().await.unwrap() > 0);
    let ttl: i64 =
        redis::from_redis_value(bench.command("TTL", &format!("muster:dlq:message:{}", message.id), &[]).await)
            .unwrap();
    assert!((29 * 86_400..=30 * 86_400).contains(&ttl), "{ttl}");
}
