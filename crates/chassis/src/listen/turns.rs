//! Connections take turns with the rest of the process.
//!
//! A flood makes thousands of connections ready at once. If each were a task of the runtime, all of them would be
//! polled before a commit that waits for Redis is polled once, and a commit needs several polls: the gateway would
//! refuse nearly everything and take its stores for dead. Here one task polls all connections of a port, at most
//! [`PER_TURN`] of them. Then it lets the runtime read the sockets and queues up behind the other tasks.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::{StreamExt, stream::FuturesUnordered, task::AtomicWaker};
use muster_telemetry::caught;
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::{unconstrained, yield_now},
};

use crate::tasks::Tasks;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The most connections that are polled before the other tasks of the process are.
const PER_TURN: usize = 32;

/// Takes the connections of one port. Clones share the same tasks. The tasks end when the last clone is dropped and
/// every connection has ended.
#[derive(Clone)]
pub(super) struct Turns {
    name: &'static str,
    /// One set of connections for each thread of the runtime.
    sets: Arc<[mpsc::UnboundedSender<Work>]>,
    next: Arc<AtomicUsize>,
}

impl Turns {
    pub(super) fn start(tasks: &Tasks, name: &'static str) -> Turns {
        let start = |_| {
            let (sender, came) = mpsc::unbounded_channel();
            tasks.spawn(name, poll(came));
            sender
        };
        let sets = (0..Handle::current().metrics().num_workers()).map(start).collect();
        Turns { name, sets, next: Arc::default() }
    }

    /// Runs the work of one connection. A panic ends that connection alone.
    pub(super) fn take(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (name, nth) = (self.name, self.next.fetch_add(1, Ordering::Relaxed) % self.sets.len());
        let guarded = Box::pin(async move { drop(caught(name, work).await) });
        // Fails only when a drain has cut everything off.
        let _ = self.sets[nth].send(guarded);
    }
}

async fn poll(mut came: mpsc::UnboundedReceiver<Work>) {
    let (mut open, mut more, left) = (FuturesUnordered::new(), true, Arc::new(AtomicUsize::new(PER_TURN)));
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    while more || !open.is_empty() {
        // Turn off the runtime's budget per task: the first few connections would use it up for all.
        let turn = unconstrained(poll_fn(|cx| {
            bell.begin_turn(cx.waker());
            let polled = open.poll_next_unpin(&mut Context::from_waker(&waker));
            let rung = bell.end_turn();
            match polled {
                Poll::Ready(Some(())) => return Poll::Ready(Turn::ConnectionEnded),
                Poll::Ready(None) | Poll::Pending => left.store(PER_TURN, Ordering::Relaxed),
            }
            if rung { Poll::Ready(Turn::Over) } else { Poll::Pending }
        }));
        let turn = tokio::select! {
            biased;
            work = came.recv(), if more => {
                match work {
                    Some(work) => open.push(Connection { work, left: left.clone() }),
                    None => more = false,
                }
                continue;
            }
            turn = turn => turn,
        };
        if matches!(turn, Turn::Over) {
            yield_now().await;
        }
    }
}

enum Turn {
    /// One connection has ended; others may be ready in the same turn.
    ConnectionEnded,
    /// The turn is used up, and more connections are ready.
    Over,
}

/// One connection of a port. Once the turn is used up, it asks to be polled again instead of polling its work.
/// [`FuturesUnordered`] ends its pass as soon as two futures do that.
struct Connection {
    work: Work,
    /// How many more connections may be polled in this turn.
    left: Arc<AtomicUsize>,
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        self.work.as_mut().poll(cx)
    }
}

/// Wakes the task when a connection is ready. During a turn it only notes that: a task that wakes itself is polled
/// again before the runtime has read the sockets, so the answers of the stores would wait for many turns.
#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    state: AtomicU8,
}

impl Bell {
    const BETWEEN_TURNS: u8 = 0;
    const IN_TURN: u8 = 1;
    const RUNG: u8 = 2;

    fn begin_turn(&self, task: &Waker) {
        self.task.register(task);
        self.state.store(Bell::IN_TURN, Ordering::SeqCst);
    }

    /// Returns whether the bell rang during the turn.
    fn end_turn(&self) -> bool {
        self.state.swap(Bell::BETWEEN_TURNS, Ordering::SeqCst) == Bell::RUNG
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        let noted = self.state.compare_exchange(Bell::IN_TURN, Bell::RUNG, Ordering::SeqCst, Ordering::SeqCst);
        if !matches!(noted, Ok(_) | Err(Bell::RUNG)) {
            self.task.wake();
        }
    }
}
