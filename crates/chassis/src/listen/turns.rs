//! Connections take turns with the rest of the process.
//!
//! A flood makes thousands of connections ready at once. If each were a task of the runtime, all of them would be polled
//! before a commit that waits for Redis is polled once, and a commit needs several polls: the gateway would refuse nearly
//! everything and take its stores for dead. Here one task polls all connections of a port, at most [`PER_TURN`] of them,
//! and then queues up behind the other tasks.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_telemetry::caught;
use tokio::{runtime::Handle, sync::mpsc, task::unconstrained};

use crate::tasks::Tasks;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The most connections that are polled before the other tasks of the process are.
const PER_TURN: usize = 32;

/// Where the connections of one port go. Copies are the same. The tasks end when the last copy is dropped and every
/// connection has ended.
#[derive(Clone)]
pub(super) struct Turns {
    name: &'static str,
    /// One for each thread of the runtime.
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
    while more || !open.is_empty() {
        // Without the runtime's budget for one task: the first few connections would use it up for all.
        let turn = unconstrained(poll_fn(|cx| {
            let ended = open.poll_next_unpin(cx);
            if ended.is_pending() {
                left.store(PER_TURN, Ordering::Relaxed);
            }
            ended
        }));
        tokio::select! {
            biased;
            work = came.recv(), if more => match work {
                Some(work) => open.push(Connection { work, left: left.clone() }),
                None => more = false,
            },
            Some(()) = turn => {}
        }
    }
}

/// One connection of a port. Once its turn is used up, it asks to be polled again instead of polling its work.
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
