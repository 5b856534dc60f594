//! Keeps the slot map current: one refresh at a time, at least 100 ms apart. A refresh asks a connected node first, and
//! does not wait long for any one node, because the first may be the one that died.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_telemetry::caught;
use tokio::{sync::Notify, time::sleep};
use tracing::{debug, info};

use super::{
    Inner,
    node::{Fault, Node},
    slots::{SlotMap, read_ranges},
};

/// The least time between two refreshes.
const GAP: Duration = Duration::from_millis(100);
/// How long a refresh waits for a silent node before it asks the next one as well.
const HEDGE: Duration = Duration::from_millis(150);
/// How often the map is read without any error, so that an idle process notices a failover.
const PERIOD: Duration = Duration::from_secs(10);
/// A node that serves nothing and was not used for this long is dropped.
const FORGET: Duration = Duration::from_secs(30);

/// Runs until the router is dropped.
pub(super) async fn run(router: Weak<Inner>, wanted: Arc<Notify>) {
    loop {
        tokio::select! { () = wanted.notified() => {}, () = sleep(PERIOD) => {} }
        let Some(inner) = router.upgrade() else { return };
        // A panic is already logged; the next round follows.
        if let Ok(Err(fault)) = caught("slot map", once(&inner)).await {
            debug!(?fault, "the slot map could not be read");
        }
        drop(inner);
        sleep(GAP).await;
    }
}

/// Reads the map once, from the node that answers first.
pub(super) async fn once(inner: &Arc<Inner>) -> Result<(), Fault> {
    let mut candidates = candidates(inner).into_iter();
    let mut asked = FuturesUnordered::new();
    let mut fault = Fault::Away("no node of the cluster is known".into());
    loop {
        match candidates.next() {
            Some(node) => asked.push(ask(inner, node)),
            None if asked.is_empty() => return Err(fault),
            None => {}
        }
        let more = candidates.len() > 0;
        tokio::select! {
            Some(answer) = asked.next() => match answer {
                Ok(map) => {
                    adopt(inner, map);
                    return Ok(());
                }
                // A refusal says more than an unreachable node.
                Err(refused @ Fault::Refused { .. }) => fault = refused,
                Err(away) => if matches!(fault, Fault::Away(_)) { fault = away },
            },
            () = sleep(HEDGE), if more => {}
        }
    }
}

/// All nodes that may know the map: connected nodes first, starting with a different one each time, then the rest.
fn candidates(inner: &Inner) -> Vec<Arc<Node>> {
    let map = inner.map.load();
    let mut nodes: Vec<Arc<Node>> = map.primaries().to_vec();
    nodes.extend(map.replicas.iter().map(|addr| inner.node(addr)));
    nodes.extend(inner.seeds.iter().map(|addr| inner.node(addr)));
    let turn = inner.next_turn();
    if !nodes.is_empty() {
        let shift = turn % nodes.len();
        nodes.rotate_left(shift);
    }
    nodes.sort_by_key(|node| !node.is_up());
    let mut seen = std::collections::HashSet::new();
    nodes.retain(|node| seen.insert(node.addr.clone()));
    nodes
}

async fn ask(inner: &Arc<Inner>, node: Arc<Node>) -> Result<SlotMap, Fault> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let reply = inner.ask_once(&node, &slots, Instant::now() + inner.settings.connect_timeout).await?;
    let ranges = read_ranges(&reply, &node.addr).map_err(|error| Fault::Away(error.to_string()))?;
    if ranges.is_empty() {
        return Err(Fault::Away(format!("{}: reports no slots", node.addr)));
    }
    Ok(SlotMap::build(&ranges, |addr| inner.node(addr)))
}

fn adopt(inner: &Inner, map: SlotMap) {
    let before = inner.map.load_full();
    let map = Arc::new(map);
    inner.map.store(Arc::clone(&map));
    if !map.same_owners(&before) {
        info!(primaries = ?map.primaries().iter().map(|node| &node.addr).collect::<Vec<_>>(), "slots moved");
        inner.topology.send_modify(|version| *version += 1);
    }
    let serving = |node: &Arc<Node>| map.primaries().iter().any(|primary| Arc::ptr_eq(primary, node));
    inner.nodes().retain(|addr, node| {
        if serving(node) {
            return true;
        }
        // Replicas are connected only for the map. An unknown node may be about to receive its first slots.
        if node.idle() > FORGET || map.replicas.contains(addr) {
            node.close();
        }
        node.idle() <= FORGET
    });
}
