//! The gateway: HTTP in, jobs out; and the proxy of workers that speak HTTP.
//!
//! Knows: the public API, who may call it, and how requests become commits. Promises: what was
//! answered with 2xx is in Redis; a request is answered within its time, whatever is away; any
//! gateway can serve any request, because none keeps anything that another would need. Leaves to
//! others: deciding, starting, settling (the scheduler), the order of writes (`flow`).
//!
//! A way in for readers: `front` is what happens to every request, `routes/jobs` reads a submit,
//! `group` commits it; `workers` is the proxy.

mod access;
mod audit;
mod auth;
mod body;
mod bulk;
mod canonical;
mod config;
mod dead_messages;
mod doctor;
mod events;
mod explain;
mod front;
mod group;
mod health;
mod json;
mod lag;
mod leaders;
mod limits;
mod loops;
mod problem;
mod query;
mod routes;
mod schema;
mod settings;
mod submit;
mod topics;
mod view;
mod waits;
mod workers;

use std::{net::SocketAddr, ops::Deref, sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use muster_bus::Bus;
use muster_chassis::{Chassis, Everyone, Health, Tasks, Waker, listen};
use muster_flow::Flow;
use muster_store::{Replica, Store, Want};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Caller, Keys},
    body::Budget,
    config::Config,
    events::Live,
    group::Group,
    lag::Lag,
    limits::{Bucket, Limits},
    problem::Problem,
    topics::Topics,
    waits::Waits,
    workers::Workers,
};

pub use loops::LOOPS;
pub use settings::SETTINGS;

/// The service's name.
pub const SERVICE: &str = "muster-gateway";

/// How long what listens to the bus may take to stop.
const STOP_TAPS: Duration = Duration::from_secs(2);
/// How long requests in flight may take to be answered: the longest is a settle.
const STOP_HTTP: Duration = Duration::from_secs(10);
/// How long the last commits, results and acks may take.
const STOP_WRITES: Duration = Duration::from_secs(2);

/// What every request has at hand. Copies are the same gateway.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Parts>);

pub(crate) struct Parts {
    flow: Flow,
    keys: Keys,
    limits: Arc<Limits>,
    lag: Arc<Lag>,
    group: Group,
    topics: Topics,
    config: Config,
    waits: Waits,
    live: Live,
    workers: Workers,
    budget: Budget,
    health: Health,
    stop: CancellationToken,
    instance: String,
    openapi: Bytes,
    /// Wakes the loop that carries out bulk operations.
    bulk: Waker,
}

impl Deref for Gateway {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Gateway {
    /// One read of the caller's tenant, by the limit for reads.
    async fn take_read(&self, caller: &Caller) -> Result<(), Problem> {
        let taken = self.limits.take(&caller.tenant, Bucket::Read, 1, Want::Some).await;
        if taken.granted > 0 { Ok(()) } else { Err(Problem::rate_limited(taken.retry_after)) }
    }
}

/// Runs a gateway until it is asked to stop.
pub async fn run(chassis: Chassis) -> anyhow::Result<()> {
    start(&chassis).await?;
    chassis.run_until_stopped().await;
    Ok(())
}

/// Starts a gateway on the chassis and says where it listens. For tests that run several of them
/// in one process; [`run`] is this and the wait for the stop.
pub async fn start(chassis: &Chassis) -> anyhow::Result<SocketAddr> {
    let values = &chassis.values;
    chassis.health.stay_up_degraded();
    let bootstrap = settings::bootstrap_keys(values);
    let rate = settings::rate(values);
    let store = Store::connect(settings::redis(values)).await?;
    if bootstrap.is_empty() {
        require_stored_key(&store).await?;
    }
    let bus = Bus::connect(settings::nats(values, &chassis.instance)).await?;
    let clock = store.clone();
    bus.set_clock(Arc::new(move || clock.now()));
    let flow = Flow::new(store.clone(), bus.clone());

    let (taps, writes) = (chassis.tasks.group(), chassis.tasks.group());
    let shared = values.flag("rate_limit_shared").then(|| store.clone());
    let limits = Arc::new(Limits::new(rate, settings::burst(values), shared));
    let lag = Arc::new(Lag::new(values.duration("max_submit_lag")));
    let stop = chassis.stop.requested();
    let bulk = chassis.loops.register(values.duration("loop_bulk_interval"));
    let gateway = Gateway(Arc::new(Parts {
        keys: Keys::new(&bootstrap, store),
        group: Group::start(&writes, &flow, &limits, &lag),
        topics: Topics::new(flow.clone(), settings::topics_are_declared(values)),
        config: Config::new(values.clone()),
        waits: Waits::default(),
        live: Live::new(values.count("event_streams")),
        workers: Workers::start(&flow, &taps, &writes, stop.clone()),
        budget: Budget::default(),
        health: chassis.health.clone(),
        instance: chassis.instance.clone(),
        openapi: routes::document(values.opt_text("public_url")),
        limits,
        lag,
        bulk: bulk.waker(),
        flow,
        stop,
    }));

    tap(&taps, &gateway, chassis);
    announce(&gateway, chassis);
    bulk.start(bulk::Bulk::new(gateway.clone()), Everyone);
    loops::start(chassis, &gateway);
    let listener = listen::bind(values.addr("http_addr")).await?;
    let serving = listen::serve(&chassis.tasks, "http", listener, routes::app(gateway.clone()))?;
    let addr = serving.local_addr();
    tracing::info!(event = "listening", port = "http", %addr, "listening");

    let loops = chassis.loops.clone();
    chassis.stop.stage("bus taps", async move {
        let (late, ()) = tokio::join!(loops.stop(STOP_TAPS), drained(taps, STOP_TAPS));
        name_late(&late);
    });
    chassis.stop.stage("http", async move {
        if !serving.drain(STOP_HTTP).await {
            name_late(&["http"]);
        }
    });
    chassis.stop.stage("stores", async move {
        drained(writes, STOP_WRITES).await;
        gateway.flow.bus.flush(Duration::from_secs(1)).await;
    });
    Ok(addr)
}

async fn drained(tasks: Tasks, limit: Duration) {
    name_late(&tasks.drain(limit).await);
}

/// Whoever did not end in time, for the log.
fn name_late(tasks: &[&str]) {
    if !tasks.is_empty() {
        tracing::warn!(event = "task_late", ?tasks, "did not end in time");
    }
}

/// Tells the cluster that this replica lives and what its loops do, until the last task ended.
fn announce(gateway: &Gateway, chassis: &Chassis) {
    let store = gateway.flow.store.clone();
    let about = Replica {
        service: chassis.service.to_owned(),
        instance: chassis.instance.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        admin: chassis.values.addr("admin_addr").to_string(),
        started_at: store.now(),
        seen_at: store.now(),
        loops: Vec::new(),
        deciding: Vec::new(),
        settings: Vec::new(),
    };
    let (telling, loops, stop) = (gateway.clone(), chassis.loops.clone(), chassis.tasks.stopping());
    chassis.tasks.supervise("announce", move || {
        let (gateway, loops, stop) = (telling.clone(), loops.clone(), stop.clone());
        let (store, about) = (store.clone(), about.clone());
        async move {
            let now = |about: &mut Replica| {
                about.loops = loops.show_each();
                about.settings = gateway.config.now().told();
            };
            store.announce(about, now, stop.cancelled()).await;
            Ok(())
        }
    });
}

/// What listens to the bus, and what watches the stores.
fn tap(taps: &Tasks, gateway: &Gateway, chassis: &Chassis) {
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
    let (flow, loops, stop) = (gateway.flow.clone(), chassis.loops.clone(), taps.stopping());
    taps.supervise("settings", move || {
        let (flow, loops, stop) = (flow.clone(), loops.clone(), stop.clone());
        async move { flow.follow_settings(&stop, || _ = loops.wake(loops::CONFIG_WATCH, Duration::ZERO)).await }
    });
    let (told, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("config", move || {
        let (gateway, stop) = (told.clone(), stop.clone());
        async move {
            config::obey(&gateway, &stop).await;
            Ok(())
        }
    });
    let (counting, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("replicas", move || {
        let (gateway, stop) = (counting.clone(), stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = gateway.limits.count_replicas(&gateway.flow.store) => {}
            }
            Ok(())
        }
    });
    let (measuring, stop) = (gateway.clone(), taps.stopping());
    taps.supervise("lag", move || {
        let (gateway, stop) = (measuring.clone(), stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = gateway.lag.watch(&gateway.flow) => {}
            }
            Ok(())
        }
    });
    let parts = health::Parts::new(&chassis.health);
    let (flow, stop) = (gateway.flow.clone(), taps.stopping());
    taps.supervise("probe", move || {
        let (flow, parts, stop) = (flow.clone(), parts.clone(), stop.clone());
        async move {
            health::probe(&flow, &parts, &stop).await;
            Ok(())
        }
    });
}

/// Without a bootstrap key there must be a stored one, or nobody could ever get in.
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
