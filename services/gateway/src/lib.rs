//! The gateway: the HTTP API for clients, and the proxy for workers that speak HTTP.
//!
//! Knows: the public API, its access rules, and how requests become commits. Promises: everything answered with 2xx
//! is in Redis; every request is answered within its time limit, also when a store does not answer; any gateway can
//! serve any request, because no gateway keeps state that another one needs. Leaves to others: deciding, starting and
//! settling jobs (the scheduler), the order of writes (`flow`).
//!
//! Where to start reading: `front` handles every request, `routes/jobs` reads a submit, `flow::admission` checks and
//! commits it; `workers` is the proxy.

mod access;
mod audit;
mod auth;
mod body;
mod budget;
mod bulk;
mod canonical;
mod config;
mod dead_messages;
mod definitions;
mod doctor;
mod endpoints;
mod events;
mod explain;
mod front;
mod json;
mod limits;
mod listings;
mod loops;
mod problem;
mod query;
mod refusals;
mod removal;
mod retries;
mod routes;
mod runs;
mod schema;
mod settings;
mod state;
mod submit;
mod topics;
mod view;
mod waits;
mod workers;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use muster_chassis::{Chassis, Loop, Tasks, listen, loops::with_loops, settings::Declaration};
use muster_flow::{
    Flow,
    admission::{Admission, Rules},
};
use muster_replica::{Member, name_late, probe, supervise};
use muster_runs::Runs;
use muster_store::Store;

use crate::{
    auth::Keys,
    budget::Budget,
    config::Config,
    definitions::Definitions,
    events::Live,
    listings::Listings,
    state::{Gateway, Parts},
    waits::Waits,
    workers::Workers,
};

pub use loops::LOOPS;

/// All settings of the gateway, apart from the shared ones.
pub const SETTINGS: &[Declaration] = &with_loops::<{ settings::OWN.len() + LOOPS.len() }>(settings::OWN, LOOPS);

/// The service's name.
pub const SERVICE: &str = "muster-gateway";

/// How long the tasks that listen to the bus may take to stop.
const STOP_TAPS: Duration = Duration::from_secs(2);
/// How long requests in flight may take to be answered. The longest is a settle.
const STOP_HTTP: Duration = Duration::from_secs(10);
/// How long the last commits, results and acks may take.
const STOP_WRITES: Duration = Duration::from_secs(2);

/// Runs a gateway until it is asked to stop.
pub async fn run(chassis: Chassis) -> anyhow::Result<()> {
    start(&chassis).await?;
    chassis.run_until_stopped().await;
    Ok(())
}

/// Starts a gateway on the chassis and returns its listening address. Tests use it to run several gateways in one
/// process; [`run`] is this plus the wait for the stop.
pub async fn start(chassis: &Chassis) -> anyhow::Result<SocketAddr> {
    let values = &chassis.values;
    chassis.health.stay_up_degraded();
    let bootstrap = settings::bootstrap_keys(values);
    let member = Member::connect(chassis).await?;
    let (flow, store) = (member.flow.clone(), member.flow.store.clone());
    if bootstrap.is_empty() {
        require_stored_key(&store).await?;
    }

    let (taps, writes) = (chassis.tasks.group(), chassis.tasks.group());
    let rules = Rules {
        declared: settings::topics_are_declared(values),
        per_second: settings::rate(values),
        burst: settings::burst(values),
        shared: values.get(settings::RATE_LIMIT_SHARED),
        sharers: &[SERVICE],
        max_lag: values.get(settings::MAX_SUBMIT_LAG),
    };
    let (admission, work) = Admission::new(&flow, &rules);
    supervise(&taps, work.watch);
    supervise(&writes, work.commit);
    let stop = chassis.stop.requested();
    let gateway = Gateway::new(Parts {
        keys: Arc::new(Keys::new(&bootstrap, store)),
        admission,
        config: Config::new(values.clone()),
        waits: Waits::default(),
        live: Arc::new(Live::new(values.get(settings::EVENT_STREAMS))),
        listings: Listings::default(),
        awaited_runs: Listings::default(),
        definitions: Definitions::default(),
        workers: Workers::start(&flow, &taps, &writes, stop.clone()),
        budget: Budget::default(),
        health: chassis.health.clone(),
        instance: chassis.instance.clone(),
        openapi: routes::document(values.get(settings::PUBLIC_URL)),
        bulk: chassis.loops.waker(bulk::Bulk::NAME),
        runs: Runs::new(flow.clone()),
        flow,
        stop,
    });

    tap(&taps, &gateway, &member);
    let telling = gateway.clone();
    member.announce(move || telling.config.now().told());
    loops::start(&member, &gateway);
    let listener = listen::bind(values.get(settings::HTTP_ADDR)).await?;
    let serving = listen::serve(&chassis.tasks, "http", listener, routes::app(gateway.clone()))?;
    let addr = serving.local_addr();
    tracing::info!(event = "listening", port = "http", %addr, "listening");

    member.drain_stage("bus taps", &taps, STOP_TAPS);
    chassis.stop.stage("http", async move {
        if !serving.drain(STOP_HTTP).await {
            name_late("http", &["http"]);
        }
    });
    member.leases_stage();
    chassis.stop.stage("stores", async move {
        name_late("stores", &writes.drain(STOP_WRITES).await);
        gateway.flow.bus.flush(Duration::from_secs(1)).await;
    });
    Ok(addr)
}

/// Starts the tasks that listen to the bus and the tasks that watch the stores.
fn tap(taps: &Tasks, gateway: &Gateway, member: &Member) {
    let listening = gateway.clone();
    let stop = taps.stopping();
    taps.supervise("events", move || {
        let (gateway, stop) = (listening.clone(), stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = gateway.waits.listen(&gateway.flow.bus) => ended,
            }
        }
    });
    let (telling, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("live events", move || {
        let (gateway, stop) = (telling.clone(), stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = gateway.live.listen(&gateway.flow.bus) => ended,
            }
        }
    });
    let (keeping, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("dead messages", move || {
        let (gateway, stop) = (keeping.clone(), stop.clone());
        async move { dead_messages::keep(&gateway.flow.bus, &gateway.flow.store, &stop).await }
    });
    member.hear_hints(taps);
    member.follow_settings(taps);
    let (forgetting, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("keys", move || {
        let (gateway, stop) = (forgetting.clone(), stop.clone());
        async move { gateway.flow.follow_keys(&stop, |id| gateway.keys.forget(id)).await }
    });
    let (told, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("config", move || {
        let (gateway, stop) = (told.clone(), stop.clone());
        async move {
            config::obey(&gateway.config, &gateway.flow, gateway.admission.limits(), &stop).await;
            Ok(())
        }
    });
    member.probe(taps);
    let (flow, stop) = (gateway.flow.clone(), taps.stopping());
    taps.spawn("first look", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = look_once(&flow) => {}
        }
    });
}

/// Waits until the stores answer, then logs what is wrong with their configuration.
async fn look_once(flow: &Flow) {
    probe::stores_came(flow).await;
    doctor::tell(&doctor::examine(flow).await);
}

/// Without a bootstrap key there must be a stored key, or no client could ever authenticate.
async fn require_stored_key(store: &Store) -> anyhow::Result<()> {
    let keys = store.list_keys(None).await.context(
        "MUSTER_API_KEY is not set, and whether there are stored keys cannot be found out; \
         set MUSTER_API_KEY (or MUSTER_API_KEY_FILE), or start Redis first",
    )?;
    anyhow::ensure!(
        !keys.is_empty(),
        "MUSTER_API_KEY is not set and no key is stored, so nobody could call this gateway; \
         set MUSTER_API_KEY (or MUSTER_API_KEY_FILE) to a long random text"
    );
    Ok(())
}
