//! One Redis node, and the connection that all calls to it share. Only one connection attempt runs at a time, in its
//! own task. A caller waits for it for a short time only, so a node that is down does not delay calls to other nodes.

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

/// How long the router waits before it connects again after a failed attempt.
const REST: Duration = Duration::from_millis(100);
/// How long callers that can choose another node avoid one that could not be reached. After that, a call tries it
/// again.
const AVOIDED: Duration = Duration::from_secs(2);
/// A node counts as away if connecting takes longer than this.
const SLOW: Duration = Duration::from_millis(50);
/// How many commands may wait on one connection before senders must wait; the client library's default of 50 is too
/// small.
const BUFFER: usize = 1024;

/// Why a node did not answer.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The node is away or not ready; worth trying again.
    Away(String),
    /// The node rejects the credentials.
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

/// The error as text; errors of the client library contain neither URL nor password.
pub(super) fn describe(error: &RedisError) -> String {
    if error.is_timeout() { "no answer in time".to_owned() } else { error.to_string() }
}

/// Counts open connections, and wakes callers that wait for room when one closes.
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
    /// Connecting and refreshing run here; dropping the router drops this set and ends them.
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
    /// When the last reply arrived on it, in microseconds since the router was made.
    heard: AtomicU64,
    _counted: Counted,
}

impl Live {
    /// A handle with its own response timeout.
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
        /// The node was away when this attempt began, and counts as away until it answers.
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

    /// The open connection. Starts to connect if there is none, and waits for it, but not past `until`.
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

    /// Whether the node could not be reached lately, or connecting takes long.
    pub(super) fn is_away(&self) -> bool {
        match &*self.link.borrow() {
            Link::Up(_) | Link::Down { fault: None, .. } => false,
            Link::Down { retry_at, .. } => retry_at.elapsed() < AVOIDED,
            Link::Connecting { since, away } => *away || since.elapsed() > SLOW,
        }
    }

    /// The time since a caller last used the node.
    pub(super) fn idle(&self) -> Duration {
        Duration::from_micros(self.around.now().saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    /// Starts to connect, unless an attempt is under way.
    pub(super) fn begin(self: &Arc<Self>) {
        let now = Instant::now();
        // A task that vanished with its runtime must not leave the node unreachable.
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

    /// Completes a connection attempt. A panic counts as a fault, so that the node does not stay in `Connecting`.
    async fn settle(&self, opening: impl Future<Output = Result<MultiplexedConnection, Fault>>) {
        let opened = caught("redis connect", opening).await;
        self.opened(opened.unwrap_or_else(|_| Err(self.away("connecting panicked"))));
    }

    /// Opens a connection for the caller alone.
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
                info!(node = %self.addr, "connected to Redis");
                let heard = AtomicU64::new(self.around.now());
                Link::Up(Arc::new(Live { conn, heard, _counted: Counted::one(&self.around.shared) }))
            }
            Err(fault) => {
                debug!(node = %self.addr, ?fault, "Redis cannot be reached");
                Link::Down { retry_at: Instant::now() + REST, fault: Some(fault) }
            }
        };
        self.link.send_replace(link);
    }

    /// Notes that a reply arrived.
    pub(super) fn heard(&self, live: &Live) {
        live.heard.store(self.around.now(), Ordering::Relaxed);
    }

    /// Handles the failure of a call that was sent `ago` on `live`. Drops the connection if it is broken, and also if
    /// nothing arrived on it since: a host that vanished does not close its connections.
    pub(super) fn failed(&self, live: &Arc<Live>, ago: Duration, error: &RedisError) -> Fault {
        let sent = self.around.now().saturating_sub(micros(ago));
        let slow = error.is_timeout() && live.heard.load(Ordering::Relaxed) >= sent;
        if !slow {
            self.give_up(live, &describe(error));
        }
        Fault::of(&self.addr, error)
    }

    /// Closes the connection; the next call opens another.
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
            warn!(node = %self.addr, why, "lost a connection to Redis");
        }
    }

    /// Closes the connection because the node is not used.
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
