//! The router to Redis: one type for a standalone server and for a cluster, with one multiplexed connection per node.
//! It knows hash slots, redirects, failovers, time budgets and scripts by hash. Keys, scripts and the meaning of
//! replies belong to the rest of this crate.
//!
//! Every call ends within its time budget. A node that is down or silent does not delay calls to the other nodes. The
//! router repeats a command on faults that may pass by waiting, or by asking another node. So each command may be
//! carried out more than once, and every script must tolerate that.
//!
//! The crate `redis` does the protocol and the connections. Its cluster client is not used, because the promises above
//! need what it keeps inside: one budget for a call with all its tries, redirects and failovers; one pipeline per node
//! whose faults belong to the calls of that node only; the same behaviour on a standalone server, so that one suite
//! tests both; dedicated connections for durable writes (`WAIT` concerns the writes of its own connection); and the
//! clock of each node.

mod address;
mod clock;
mod command;
mod durable;
mod node;
mod pipeline;
mod refresh;
mod slots;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use muster_telemetry::{Emit, events::StoreAway};
use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::{Notify, watch};
use tracing::warn;

pub use self::{
    address::NodeAddr,
    command::{Command, ScriptSource},
    durable::Kept,
    slots::slot_of,
};
use self::{
    address::Seeds,
    clock::Clock,
    durable::{Dedicated, Durability},
    node::{Fault, Node, Surroundings},
    pipeline::{Call, drive},
    slots::SlotMap,
};
use crate::error::StoreError;

/// How to reach Redis, and how long to wait for it.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://`, `rediss://` (TLS), several separated by commas or `redis+cluster://` (cluster).
    pub url: String,
    /// The most connections to all nodes together. Each primary has one connection that all calls share; the others
    /// serve durable writes.
    pub pool_size: usize,
    /// The number of connections that are opened in advance and kept.
    pub min_idle: usize,
    /// The time limit for opening a connection.
    pub connect_timeout: Duration,
    /// The time limit for one round trip; after that the router tries again.
    pub response_timeout: Duration,
    /// The time limit for a whole call with all its tries.
    pub budget: Duration,
}

impl RedisSettings {
    /// The defaults for a URL.
    pub fn new(url: impl Into<String>) -> RedisSettings {
        RedisSettings {
            url: url.into(),
            pool_size: 20,
            min_idle: 5,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            budget: Duration::from_secs(2),
        }
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("url", &"<redacted>")
            .field("pool_size", &self.pool_size)
            .field("min_idle", &self.min_idle)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("budget", &self.budget)
            .finish()
    }
}

/// The number of open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Connections that all calls to a node share.
    pub shared: usize,
    /// Connections that a durable write uses now.
    pub busy: usize,
    /// Connections that are free for the next durable write.
    pub idle: usize,
}

impl Connections {
    /// All open connections.
    pub fn total(self) -> usize {
        self.shared + self.busy + self.idle
    }
}

/// A handle to Redis. Clones share everything. It must be used on the runtime on which it was made.
#[derive(Clone)]
pub struct Router(Arc<Inner>);

struct Inner {
    settings: RedisSettings,
    cluster: bool,
    seeds: Vec<NodeAddr>,
    template: ConnectionInfo,
    around: Arc<Surroundings>,
    nodes: Mutex<HashMap<NodeAddr, Arc<Node>>>,
    map: ArcSwap<SlotMap>,
    topology: watch::Sender<u64>,
    refresh: Arc<Notify>,
    turn: AtomicUsize,
    dedicated: Dedicated,
    clock: Clock,
}

/// Called once per round trip to a node.
fn observe_command(took: Duration) {
    muster_telemetry::metrics::observe(muster_telemetry::metrics::Histogram::RedisCommand, &[], took.as_secs_f64());
}

impl Router {
    /// Makes a router. Fails if the settings cannot work or if Redis rejects the credentials. An unreachable Redis is
    /// not a failure here: calls fail until it is back.
    pub async fn connect(settings: RedisSettings) -> Result<Router, StoreError> {
        // The first installed provider stays; any provider will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Seeds { cluster, nodes } = Seeds::parse(&settings.url)?;
        let Some((_, template)) = nodes.first().cloned() else {
            return Err(StoreError::Config("REDIS_URL is empty".into()));
        };
        let around = Arc::new(Surroundings::new(&settings));
        let mut known = HashMap::new();
        for (addr, info) in &nodes {
            known.insert(addr.clone(), Node::new(addr.clone(), info.clone(), Arc::clone(&around))?);
        }
        let seeds: Vec<NodeAddr> = nodes.into_iter().map(|(addr, _)| addr).collect();
        let map = if cluster { SlotMap::unknown() } else { SlotMap::all_on(Arc::clone(&known[&seeds[0]])) };
        let inner = Arc::new(Inner {
            dedicated: Dedicated::new(settings.pool_size, settings.min_idle, Arc::clone(&around.shared)),
            cluster,
            seeds,
            template,
            around,
            nodes: Mutex::new(known),
            map: ArcSwap::from_pointee(map),
            topology: watch::Sender::new(0),
            refresh: Arc::default(),
            turn: AtomicUsize::new(fastrand::usize(..1024)),
            clock: Clock::new(),
            settings,
        });
        if cluster {
            inner.around.spawn(refresh::run(Arc::downgrade(&inner), Arc::clone(&inner.refresh)));
        }
        match inner.first_contact().await {
            Err(Fault::Refused { code, message }) if message.contains("cluster support disabled") => {
                return Err(StoreError::Config(format!("REDIS_URL names a cluster, but: {code} {message}")));
            }
            Err(refused @ Fault::Refused { .. }) => return Err(refused.into()),
            Err(Fault::Away(detail)) => warn!(detail, "Redis does not answer yet"),
            Ok(()) => inner.warm_up(),
        }
        Ok(Router(inner))
    }

    /// Sends one command within the default budget. Redis may carry it out more than once, also if the call fails.
    pub async fn call(&self, command: Command) -> Result<Value, StoreError> {
        self.call_within(command, self.0.settings.budget).await
    }

    /// Sends one command within the given budget.
    pub async fn call_within(&self, command: Command, budget: Duration) -> Result<Value, StoreError> {
        let mut outcomes = self.many_within(vec![command], budget).await;
        outcomes.pop().unwrap_or_else(|| Err(StoreError::unavailable("the command was lost")))
    }

    /// Sends many commands, one pipeline per node, within the default budget. Each command has its own outcome, in the
    /// given order. The order of execution is not defined.
    pub async fn many(&self, commands: Vec<Command>) -> Vec<Result<Value, StoreError>> {
        self.many_within(commands, self.0.settings.budget).await
    }

    /// The same within the given budget.
    pub async fn many_within(&self, commands: Vec<Command>, budget: Duration) -> Vec<Result<Value, StoreError>> {
        let call = Call { deadline: Instant::now() + budget, durable: None };
        let outcomes = self.send(commands, call).await;
        outcomes.into_iter().map(|outcome| outcome.map(|(value, _)| value)).collect()
    }

    /// Sends many commands on dedicated connections, and waits at most `wait` until the writes are stored as asked.
    /// Each outcome has the number of replicas or disks that store the write; a smaller number than asked for is not an
    /// error. The number is also valid for a script that finds its work done by an earlier call.
    pub async fn durable(
        &self,
        commands: Vec<Command>,
        kept: Kept,
        wait: Duration,
    ) -> Vec<Result<(Value, usize), StoreError>> {
        let deadline = Instant::now() + self.0.settings.budget + wait;
        self.send(commands, Call { deadline, durable: Some(Durability { kept, wait }) }).await
    }

    /// Sends the commands. A call that Redis did not answer in time is counted once.
    async fn send(&self, commands: Vec<Command>, call: Call) -> Vec<Result<(Value, usize), StoreError>> {
        let outcomes = drive(&self.0, commands, call).await;
        let away = outcomes.iter().find_map(|outcome| match outcome {
            Err(StoreError::Unavailable { detail }) => Some(detail),
            _ => None,
        });
        if let Some(detail) = away {
            StoreAway { detail }.emit();
        }
        outcomes
    }

    /// Whether this is a cluster.
    pub fn is_cluster(&self) -> bool {
        self.0.cluster
    }

    /// Whether one node serves both keys now, as far as the slots are known; true if it is not known.
    pub fn share_a_node(&self, one: &[u8], other: &[u8]) -> bool {
        let map = self.0.map.load();
        match (map.owner(slot_of(one)), map.owner(slot_of(other))) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => true,
        }
    }

    /// The node that serves this key, as far as the slots are known.
    pub fn owner(&self, key: &[u8]) -> Option<NodeAddr> {
        self.0.map.load().owner(slot_of(key)).map(|node| node.addr.clone())
    }

    /// Whether any node that serves slots could not be reached lately.
    pub fn some_are_away(&self) -> bool {
        self.0.map.load().primaries().iter().any(|node| node.is_away())
    }

    /// Whether the node that serves this key could not be reached lately.
    pub fn is_away(&self, key: &[u8]) -> bool {
        self.0.map.load().owner(slot_of(key)).is_some_and(|node| node.is_away())
    }

    /// The nodes that serve slots now (one if standalone). Fails if the cluster's slots are not known within the
    /// budget.
    pub async fn primaries(&self) -> Result<Vec<NodeAddr>, StoreError> {
        let deadline = Instant::now() + self.0.settings.budget;
        let mut changes = self.0.topology.subscribe();
        loop {
            let map = self.0.map.load_full();
            if !map.primaries().is_empty() {
                return Ok(map.primaries().iter().map(|node| node.addr.clone()).collect());
            }
            self.0.want_refresh();
            if tokio::time::timeout_at(deadline.into(), changes.changed()).await.is_err() {
                return Err(StoreError::unavailable("the cluster's slots are not known"));
            }
        }
    }

    /// A number that grows whenever slots move to another node: a failover, a reshard.
    pub fn topology(&self) -> watch::Receiver<u64> {
        self.0.topology.subscribe()
    }

    /// Sends a command to one node, whatever it serves: for SCAN, TIME and probes. Tries again on transport errors
    /// within the default budget; does not follow redirects.
    pub async fn call_node(&self, node: &NodeAddr, cmd: &Cmd) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.0.settings.budget;
        let node = self.0.node(node);
        loop {
            let detail = match self.0.ask_once(&node, cmd, deadline).await {
                Ok(value) => return Ok(value),
                Err(Fault::Away(detail)) => detail,
                Err(refused) => return Err(refused.into()),
            };
            self.0.want_refresh();
            if Instant::now() + refresh_pause() >= deadline {
                return Err(StoreError::Unavailable { detail });
            }
            tokio::time::sleep(refresh_pause()).await;
        }
    }

    /// The number of open connections by use.
    pub fn connections(&self) -> Connections {
        let (open, idle) = self.0.dedicated.count();
        Connections { shared: self.0.around.shared.count(), busy: open.saturating_sub(idle), idle }
    }

    /// Notes a Redis time, in microseconds, that a script has just returned.
    pub fn note_time(&self, redis_micros: u64) {
        self.0.clock.note(redis_micros);
    }

    /// An estimate of Redis time, in microseconds; this machine's time before the first note.
    pub fn now_estimate(&self) -> u64 {
        self.0.clock.now()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("cluster", &self.0.cluster).field("seeds", &self.0.seeds).finish()
    }
}

fn refresh_pause() -> Duration {
    Duration::from_millis(50)
}

impl Inner {
    /// Reads the slot map, or checks that a standalone server answers and accepts the credentials.
    async fn first_contact(self: &Arc<Self>) -> Result<(), Fault> {
        let limit = self.settings.connect_timeout + self.settings.response_timeout;
        let contact = async {
            if self.cluster {
                return refresh::once(self).await;
            }
            let node = self.node(&self.seeds[0]);
            match self.ask_once(&node, &redis::cmd("PING"), Instant::now() + limit).await {
                Err(Fault::Refused { code, .. }) if code == "NOPERM" => Ok(()),
                other => other.map(|_| ()),
            }
        };
        let late = |_| Err(Fault::Away("no answer in time".into()));
        tokio::time::timeout(limit, contact).await.unwrap_or_else(late)
    }

    fn warm_up(&self) {
        let map = self.map.load();
        for node in map.primaries().iter().take(self.settings.min_idle.max(1)) {
            node.begin();
        }
        if map.primaries().len() > self.settings.pool_size {
            warn!(
                primaries = map.primaries().len(),
                pool_size = self.settings.pool_size,
                "REDIS_POOL_SIZE is smaller than the number of primaries; opening one connection to each anyway"
            );
        }
    }

    /// One try of one command on one node.
    async fn ask_once(&self, node: &Arc<Node>, cmd: &Cmd, until: Instant) -> Result<Value, Fault> {
        let live = node.live(until).await?;
        let sent = Instant::now();
        let limit = self.settings.response_timeout.min(until.saturating_duration_since(sent));
        let reply = live.handle(limit.max(Duration::from_millis(1))).send_packed_command(cmd).await;
        observe_command(sent.elapsed());
        match reply {
            Ok(Value::ServerError(error)) => {
                node.heard(&live);
                let message = format!("{}: {}", node.addr, error.details().unwrap_or_default());
                match error.code() {
                    code @ ("LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "MISCONF" | "OOM") => {
                        Err(Fault::Away(format!("{code} {message}")))
                    }
                    code => Err(Fault::Refused { code: code.to_owned(), message }),
                }
            }
            Ok(value) => {
                node.heard(&live);
                Ok(value)
            }
            Err(error) => Err(node.failed(&live, sent.elapsed(), &error)),
        }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeAddr, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node with this address; creates it if it is new.
    fn node(&self, addr: &NodeAddr) -> Arc<Node> {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get(addr) {
            return Arc::clone(node);
        }
        let info = Seeds::reach(&self.template, addr);
        let node = Node::new(addr.clone(), info, Arc::clone(&self.around)).expect("the template made a client before");
        nodes.insert(addr.clone(), Arc::clone(&node));
        node
    }

    /// Applies MOVED replies to the slot map.
    fn moved(&self, moves: &[(u16, NodeAddr)]) {
        self.map.rcu(|map| map.with_moves(moves, |addr| self.node(addr)));
        self.topology.send_modify(|version| *version += 1);
    }

    fn want_refresh(&self) {
        if self.cluster {
            self.refresh.notify_one();
        }
    }

    fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}
