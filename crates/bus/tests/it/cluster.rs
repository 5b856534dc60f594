//! Three nodes, three copies: the bus survives the death of any one node.

use std::{collections::BTreeSet, time::Duration};

use muster_bus::{Bus, BusSettings, ConsumerSpec, subjects};
use muster_testkit::{NatsCluster, until};
use serde_json::Value;

use crate::{
    fixture::{fetched, js, number, numbered, plain},
    streams::idle_ones_go,
};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_death_of_the_streams_leader_loses_nothing_that_was_acked() {
    let cluster = NatsCluster::start().await;
    let bus = Bus::connect(BusSettings { replicas: 3, ..BusSettings::new(cluster.url(), "test") }).await.unwrap();
    bus.connected().await;
    until(PATIENCE, "streams on three nodes", async || bus.ensure_streams().await.ok()).await;
    let spec = ConsumerSpec::scheduler(subjects::submit());
    let consumer = until(PATIENCE, "a consumer on three nodes", async || bus.consumer(spec.clone()).await.ok()).await;
    let subject = subjects::submit();
    for n in 0..20 {
        bus.publish(&subject, None, None, numbered(n)).await.unwrap();
    }

    let leader = leader_of(&cluster).await;
    cluster.kill9(leader);
    // A busy machine may take longer to elect another leader than a publish usually waits.
    let late = (20..40).map(|n| bus.publish_within(&subject, None, None, numbered(n), PATIENCE));
    let sent = futures_util::future::join_all(late).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");

    let mut came = BTreeSet::new();
    until(PATIENCE, "all forty", async || {
        for delivery in fetched(&consumer, 100).await {
            delivery.ack().await;
            came.insert(number(&delivery.body));
        }
        (came.len() == 40).then_some(())
    })
    .await;
}

#[tokio::test]
async fn on_three_nodes_too_a_consumer_that_nobody_pulls_from_goes() {
    let cluster = NatsCluster::start().await;
    let request_timeout = Duration::from_secs(10);
    let settings = BusSettings { replicas: 3, request_timeout, ..BusSettings::new(cluster.url(), "test") };
    let bus = Bus::connect(settings).await.unwrap();
    bus.connected().await;
    until(PATIENCE, "streams on three nodes", async || bus.ensure_streams().await.ok()).await;
    idle_ones_go(&bus, &plain(&cluster.nodes[0]).await).await;
}

#[tokio::test]
async fn a_copy_on_a_node_that_is_away_is_told_and_so_is_its_return() {
    let cluster = NatsCluster::start().await;
    let request_timeout = Duration::from_secs(10);
    let settings = BusSettings { replicas: 3, request_timeout, ..BusSettings::new(cluster.url(), "test") };
    let bus = Bus::connect(settings).await.unwrap();
    bus.connected().await;
    until(PATIENCE, "streams on three nodes", async || bus.ensure_streams().await.ok()).await;
    let lagging = async || {
        let told = bus.stream_vitals().await.into_iter().map(|(_, vitals)| vitals.map(|it| it.lagging()));
        told.collect::<Result<Vec<usize>, _>>().ok()
    };
    let all = async |wanted: usize| (lagging().await? == [wanted; 3]).then_some(());
    until(PATIENCE, "all copies to be in step", async || all(0).await).await;
    cluster.kill9(2);
    until(PATIENCE, "each stream to miss a copy", async || all(1).await).await;
    cluster.restart(2).await;
    until(PATIENCE, "all copies to be in step again", async || all(0).await).await;
    assert!(bus.vitals().await.unwrap().clustered);
}

/// The index of the node that leads `MUSTER_SYS`.
async fn leader_of(cluster: &NatsCluster) -> usize {
    let client = plain(&cluster.nodes[0]).await;
    let info = js(&client, "STREAM.INFO.MUSTER_SYS", Value::Null).await;
    let leader = info["cluster"]["leader"].as_str().expect("the stream has a leader").to_owned();
    for (n, node) in cluster.nodes.iter().enumerate() {
        if plain(node).await.server_info().server_name == leader {
            return n;
        }
    }
    panic!("{leader} is none of the nodes");
}
