//! One Redis node and the connection that all calls to it share. Connecting is single flight and
//! runs as a task of its own: whoever needs the node waits a little and otherwise goes on, so a node
//! that is down costs nobody else anything.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use muster_domain::time::micros;
use muster_telemetry::caught;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, info, warn};

use super::{RedisSettings, address::NodeAddr};
use crate::error::StoreError;

/// How long a node is left alone after it could not be connected to.
const REST: Duration = Duration::from_millis(100);
/// How long a node that could not be reached is avoided by whoever has a choice. After that somebody finds out.
const AVOIDED: Duration = Duration::from_secs(2);
/// A connection that takes longer is none yet.
const SLOW: Duration = Duration::from_millis(50);
/// Commands that may wait on one connection before senders have to; the crate's own 50 is too few.
const BUFFER: usize = 1024;

/// Why a node did not answer.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// It is away or not ready; worth trying again.
    Away(String),
    /// It does not let us in.
    Refused { code: String, message: String },
}

impl Fault {
    fn of(addr: &NodeAddr, error: &RedisError) -> Fault {
        let code = error.code().unwrap_or_default();
        if error.kind() == ErrorKind::AuthenticationFailed || matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM") {
            let code = if code.is_empty() { "WRONGPASS" } else { code };
            return Fault::Refused { code: code.to_owned(), message: format!("{addr}: {}", describe(error)) };
        }
        Fault::Away(format!("{addr}: {}", describe(error)))
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        match fault {
            Fault::Away(detail) => StoreError::Unavailable { detail },
            Fault::Refused { code, message } => StoreError::Server { code, message },
        }
    }
}

/// An error in words; the crate's errors hold neither URL nor password.
pub(super) fn describe(error: &RedisError) -> String {
    if error.is_timeout() { "no answer in time".to_owned() } else { error.to_string() }
}

/// Counts open connections, and wakes whoever waits for room when one closes.
#[derive(Default)]
pub(super) struct Gauge {
    count: AtomicUsize,
    pub(super) closed: Notify,
}

impl Gauge {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// One open connection in a [`Gauge`].
pub(super) struct Counted(Arc<Gauge>);

impl Counted {
    pub(super) fn one(gauge: &Arc<Gauge>) -> Counted {
        gauge.count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(gauge))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}

/// What all nodes of one router share.
pub(super) struct Surroundings {
    pub(super) config: AsyncConnectionConfig,
    pub(super) connect_timeout: Duration,
    pub(super) shared: Arc<Gauge>,
    /// Connecting and refreshing run here; dropped with the router, which ends them.
    pub(super) tasks: Mutex<JoinSet<()>>,
    base: Instant,
}

impl Surroundings {
    pub(super) fn new(settings: &RedisSettings) -> Surroundings {
        Surroundings {
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(settings.connect_timeout))
                .set_response_timeout(Some(settings.response_timeout))
                .set_pipeline_buffer_size(BUFFER),
            connect_timeout: settings.connect_timeout,
            shared: Arc::default(),
            tasks: Mutex::default(),
            base: Instant::now(),
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn now(&self) -> u64 {
        micros(self.base.elapsed())
    }
}

/// An open connection.
pub(super) struct Live {
    conn: MultiplexedConnection,
    /// When something was last heard on it, in microseconds since the router began.
    heard: AtomicU64,
    _counted: Counted,
}

impl Live {
    /// A handle with its own time limit.
    pub(super) fn handle(&self, limit: Duration) -> MultiplexedConnection {
        let mut conn = self.conn.clone();
        conn.set_response_timeout(limit);
        conn
    }
}

enum Link {
    Down {
        retry_at: Instant,
        fault: Option<Fault>,
    },
    Connecting {
        since: Instant,
        /// It was away when this began, and is until it answers.
        away: bool,
    },
    Up(Arc<Live>),
}

/// A node, connected or not.
pub(super) struct Node {
    pub(super) addr: NodeAddr,
    client: Client,
    link: watch::Sender<Link>,
    used: AtomicU64,
    around: Arc<Surroundings>,
}

impl Node {
    pub(super) fn new(
        addr: NodeAddr,
        info: ConnectionInfo,
        around: Arc<Surroundings>,
    ) -> Result<Arc<Node>, StoreError> {
        let client = Client::open(info).map_err(|error| StoreError::Config(format!("{addr}: {error}")))?;
        let link = watch::Sender::new(Link::Down { retry_at: Instant::now(), fault: None });
        Ok(Arc::new(Node { addr, client, link, used: AtomicU64::new(around.now()), around }))
    }

    /// The open connection; begins one if there is none and waits for it, but not past `until`.
    pub(super) async fn live(self: &Arc<Self>, until: Instant) -> Result<Arc<Live>, Fault> {
        self.used.store(self.around.now(), Ordering::Relaxed);
        match &*self.link.borrow() {
            Link::Up(live) => return Ok(Arc::clone(live)),
            Link::Down { retry_at, fault: Some(fault) } if Instant::now() < *retry_at => return Err(fault.clone()),
            _ => {}
        }
        self.begin();
        let mut link = self.link.subscribe();
        let settled = link.wait_for(|link| !matches!(link, Link::Connecting { .. }));
        match tokio::time::timeout_at(until.into(), settled).await {
            Ok(Ok(link)) => match &*link {
                Link::Up(live) => Ok(Arc::clone(live)),
                Link::Down { fault: Some(fault), .. } => Err(fault.clone()),
                _ => Err(self.away("the connection was lost at once")),
            },
            Ok(Err(_)) => Err(self.away("closed")),
            Err(_) => Err(self.away("still connecting")),
        }
    }

    /// Whether a connection is open.
    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.link.borrow(), Link::Up(_))
    }

    /// Whether it could not be reached lately, or takes long to.
    pub(super) fn is_away(&self) -> bool {
        match &*self.link.borrow() {
            Link::Up(_) | Link::Down { fault: None, .. } => false,
            Link::Down { retry_at, .. } => retry_at.elapsed() < AVOIDED,
            Link::Connecting { since, away } => *away || since.elapsed() > SLOW,
        }
    }

    /// How long nobody has asked for it.
    pub(super) fn idle(&self) -> Duration {
        Duration::from_micros(self.around.now().saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    /// Begins to connect unless somebody does already.
    pub(super) fn begin(self: &Arc<Self>) {
        let now = Instant::now();
        // A task that vanished (its runtime was shut down) must not leave the node unreachable.
        let stale = self.around.connect_timeout * 2 + Duration::from_secs(1);
        let away = self.is_away();
        let ours = self.link.send_if_modified(|link| match link {
            Link::Up(_) => false,
            Link::Connecting { since, .. } if now.duration_since(*since) < stale => false,
            _ => {
                *link = Link::Connecting { since: now, away };
                true
            }
        });
        if ours {
            let node = Arc::clone(self);
            self.around.spawn(async move { node.settle(node.open()).await });
        }
    }

    /// Sees a connection through. A panic on the way is a fault like any other: the node is not left connecting.
    async fn settle(&self, opening: impl Future<Output = Result<MultiplexedConnection, Fault>>) {
        let opened = caught("redis connect", opening).await;
        self.opened(opened.unwrap_or_else(|_| Err(self.away("connecting panicked"))));
    }

    /// Opens a connection of the caller's own.
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, Fault> {
        let opening = self.client.get_multiplexed_async_connection_with_config(&self.around.config);
        match timeout(self.around.connect_timeout, opening).await {
            Ok(Ok(conn)) => Ok(conn),
            Ok(Err(error)) => Err(Fault::of(&self.addr, &error)),
            Err(_) => Err(self.away("no connection in time")),
        }
    }

    fn opened(&self, outcome: Result<MultiplexedConnection, Fault>) {
        let link = match outcome {
            Ok(conn) => {
                info!(node = %self.addr, "connected to redis");
                let heard = AtomicU64::new(self.around.now());
                Link::Up(Arc::new(Live { conn, heard, _counted: Counted::one(&self.around.shared) }))
            }
            Err(fault) => {
                debug!(node = %self.addr, ?fault, "redis cannot be reached");
                Link::Down { retry_at: Instant::now() + REST, fault: Some(fault) }
            }
        };
        self.link.send_replace(link);
    }

    /// A reply came.
    pub(super) fn heard(&self, live: &Live) {
        live.heard.store(self.around.now(), Ordering::Relaxed);
    }

    /// A call on `live`, sent `ago`, failed. Gives the connection up if it is broken, and also if
    /// nothing at all was heard on it since: a host that vanished breaks no connection.
    pub(super) fn failed(&self, live: &Arc<Live>, ago: Duration, error: &RedisError) -> Fault {
        let sent = self.around.now().saturating_sub(micros(ago));
        let slow = error.is_timeout() && live.heard.load(Ordering::Relaxed) >= sent;
        if !slow {
            self.give_up(live, &describe(error));
        }
        Fault::of(&self.addr, error)
    }

    /// Closes the connection so that the next call opens another.
    pub(super) fn give_up(&self, live: &Arc<Live>, why: &str) {
        let closed = self.link.send_if_modified(|link| match link {
            Link::Up(current) if Arc::ptr_eq(current, live) => {
                let fault = Some(self.away(why));
                *link = Link::Down { retry_at: Instant::now(), fault };
                true
            }
            _ => false,
        });
        if closed {
            warn!(node = %self.addr, why, "lost a connection to redis");
        }
    }

    /// Closes the connection because the node is not needed.
    pub(super) fn close(&self) {
        self.link.send_if_modified(|link| match link {
            Link::Up(_) => {
                *link = Link::Down { retry_at: Instant::now(), fault: None };
                true
            }
            _ => false,
        });
    }

    fn away(&self, why: &str) -> Fault {
        Fault::Away(format!("{}: {why}", self.addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_while_connecting_is_a_fault_and_the_next_call_connects_again() {
        let settings = RedisSettings::new("redis://127.0.0.1:1");
        let around = Arc::new(Surroundings::new(&settings));
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let link = watch::Sender::new(Link::Connecting { since: Instant::now(), away: false });
        let node = Node { addr: NodeAddr::new("127.0.0.1", 1), client, link, used: AtomicU64::new(0), around };
        node.settle(async { panic!("on purpose") }).await;
        let Link::Down { retry_at, fault: Some(Fault::Away(why)) } = &*node.link.borrow() else {
            panic!("left connecting");
        };
        assert!(why.contains("panicked") && *retry_at <= Instant::now() + REST, "{why}");
    }

    #[tokio::test]
    async fn a_node_that_is_away_is_not_taken_for_there_because_somebody_knocks_again() {
        let info: ConnectionInfo = "redis://127.0.0.1:1".parse().expect("an address");
        let around = Arc::new(Surroundings::new(&RedisSettings::new("redis://127.0.0.1:1")));
        let node = Node::new(NodeAddr::new("127.0.0.1", 1), info, around).expect("a node");
        assert!(!node.is_away(), "nothing is known of one that was never asked");
        node.opened(Err(node.away("refused")));
        assert!(node.is_away());
        node.begin();
        assert!(matches!(&*node.link.borrow(), Link::Connecting { .. }) && node.is_away());
    }
}
