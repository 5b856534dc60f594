//! Settings that change at run time: one winner, one write, and every change can be found.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use muster_domain::{TopicSettings, topic::Paused};
use muster_store::{FORMAT, Put, SeenVersion, StoreError, TopicChange, TopicRecord};
use muster_testkit::until;

use crate::bench::{Bench, PATIENCE, tenant, topic};

const FORMAT_KEY: &str = "muster:meta:version";

fn bounded(n: u64) -> TopicChange {
    TopicChange::Settings(TopicSettings { max_backlog: Some(n), ..TopicSettings::default() })
}

fn stored(put: Put<TopicRecord>) -> TopicRecord {
    match put {
        Put::Stored(record) => record,
        Put::Mismatch(stands) => panic!("{stands:?} stands"),
    }
}

pub(crate) async fn of_64_writers_who_saw_the_same_version_one_wins(bench: &Bench) {
    let (tenant, topic, replica) = (tenant(), topic("mail"), bench.replica().await);
    let mut seen = 0;
    for round in 0..3 {
        let writes =
            (0..64).map(|n| {
                let store = if n % 2 == 0 { &bench.store } else { &replica };
                let (tenant, topic) = (&tenant, &topic);
                async move {
                    (n, store.put_topic(tenant, topic, SeenVersion::Exactly(seen), &bounded(n + 1)).await.unwrap())
                }
            });
        let (mut winners, mut stands) = (Vec::new(), Vec::new());
        for (n, put) in join_all(writes).await {
            match put {
                Put::Stored(record) => winners.push((n, record)),
                Put::Mismatch(record) => stands.push(record),
            }
        }
        let [(n, winner)] = winners.as_slice() else { panic!("round {round}: {} won", winners.len()) };
        assert_eq!(winner.settings.max_backlog, Some(n + 1));
        assert!(stands.iter().all(|record| record == winner), "who lost is told what stands");
        assert!(winner.version > seen);
        seen = winner.version;
    }
}

pub(crate) async fn settings_and_a_pause_are_written_apart(bench: &Bench) {
    let (tenant, topic) = (tenant(), topic("mail"));
    let put = async |change: TopicChange| {
        stored(bench.store.put_topic(&tenant, &topic, SeenVersion::Any, &change).await.unwrap())
    };
    let read = async || bench.store.read_topics(&[(tenant.clone(), topic.clone())]).await.remove(0).unwrap();
    assert_eq!(read().await, None);
    let paused = Paused { since: 7, by: "k".into(), reason: "a\"b\n".into() };
    let first = put(TopicChange::Pause(paused.clone())).await;
    assert_eq!((first.paused.as_ref(), &first.settings), (Some(&paused), &TopicSettings::default()));
    let second = put(bounded(3)).await;
    assert_eq!((second.paused.as_ref(), second.settings.max_backlog), (Some(&paused), Some(3)));
    let third = put(TopicChange::Resume).await;
    assert_eq!((third.paused.as_ref(), third.settings.max_backlog), (None, Some(3)));
    assert!(first.version < second.version && second.version < third.version);
    assert_eq!(read().await, Some(third));
}

pub(crate) async fn what_changed_since_is_found_and_so_is_everything(bench: &Bench) {
    let (tenant, other) = (tenant(), crate::bench::tenant());
    let names = [(tenant.clone(), topic("a.b")), (tenant.clone(), topic("a_b")), (other, topic("a.b"))];
    for (tenant, topic) in &names {
        stored(bench.store.put_topic(tenant, topic, SeenVersion::Any, &bounded(1)).await.unwrap());
    }
    let since = bench.store.ping().await.unwrap();
    stored(bench.store.put_topic(&names[1].0, &names[1].1, SeenVersion::Any, &bounded(2)).await.unwrap());
    let ours = |found: Vec<_>| found.into_iter().filter(|name| names.contains(name)).collect::<Vec<_>>();
    assert_eq!(ours(bench.store.topics_changed(since).await.unwrap()), names[1..2]);
    assert_eq!(ours(bench.store.topics_changed(muster_domain::Time::NONE).await.unwrap()).len(), 3);
    // A topic that somebody writes meanwhile goes to the end, and those behind it move up: the next walk sees
    // whom this one has passed over.
    until(PATIENCE, "a walk that sees all three", async || {
        let (mut place, mut all) = (0, Vec::new());
        loop {
            let slice = bench.store.topics_from(place, 2).await.unwrap();
            place += slice.len();
            if slice.is_empty() {
                return names.iter().all(|name| all.contains(name)).then_some(());
            }
            all.extend(ours(slice));
        }
    })
    .await;
}

/// The only test that writes the cluster's settings of its server.
pub(crate) async fn the_clusters_settings_are_replaced_as_a_whole(bench: &Bench) {
    let values = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let nothing = bench.store.read_config().await.unwrap();
    assert_eq!((nothing.version, nothing.values.len()), (0, 0));
    let both = values(&[("a", "1"), ("b", "2")]);
    let Put::Stored(first) = bench.store.put_config(SeenVersion::Exactly(0), &both).await.unwrap() else { panic!() };
    assert_eq!(first.values, both);
    let again = bench.store.put_config(SeenVersion::Exactly(0), &values(&[])).await.unwrap();
    assert_eq!(again, Put::Mismatch(first.clone()));
    let seen = SeenVersion::Exactly(first.version);
    let Put::Stored(next) = bench.store.put_config(seen, &values(&[("b", "3")])).await.unwrap() else { panic!() };
    assert_eq!(next.values, values(&[("b", "3")]), "what is not given is gone");
    assert_eq!(bench.store.read_config().await.unwrap(), next);
}

pub(crate) async fn the_first_to_come_notes_the_format_of_the_data(bench: &Bench) {
    let (one, two) = (&bench.store, bench.replica().await);
    let noted = async || redis::from_redis_value::<u64>(bench.command("GET", FORMAT_KEY, &[]).await).unwrap();
    for store in [one, &two, one] {
        store.check_format().await.unwrap();
        assert_eq!(noted().await, FORMAT);
    }
    // What is older is read and raised; what is newer is left as it is.
    bench.command("SET", FORMAT_KEY, &[b"1"]).await;
    two.check_format().await.unwrap();
    assert_eq!(noted().await, FORMAT);
    let newer = FORMAT + 1;
    bench.command("SET", FORMAT_KEY, &[newer.to_string().as_bytes()]).await;
    assert_eq!(one.check_format().await, Err(StoreError::Newer { found: newer, known: FORMAT }));
    assert_eq!(noted().await, newer);
    bench.command("SET", FORMAT_KEY, &[b"odd"]).await;
    assert!(matches!(one.check_format().await, Err(StoreError::Decode(_))));
    bench.command("DEL", FORMAT_KEY, &[]).await;
}
