//! Group commit: all submits that arrive while a commit runs go into the next commit.
//!
//! Knows: the queue of submits and the committers that empty it. Promises: while few submits wait and no commit runs,
//! no timer runs, so an idle system adds no delay. A stuck commit delays other submits by at most [`BESIDE_AFTER`].
//! With [`LINGER_FROM`] or more submits waiting, the committer waits one millisecond more, which makes the group
//! larger and the total cost lower. Every item gets its own answer. The queue is bounded: a full queue
//! refuses at once. Every submit is answered within [`ANSWERED_WITHIN`], and a submit whose commit does not begin
//! within [`TAKEN_UP_WITHIN`] is answered that nothing was stored. Leaves to others: the commit itself
//! (`crate::submit`), and the checks before it (`admission`).
//!
//! Submits that wait for a Redis replica have committers of their own: they take longer, and would delay the others.

mod commit;
mod deferred;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use muster_domain::{Durability, JobId, JobSpec};
use muster_store::NewJob;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

use super::{limits::Limits, refusal::Refusal, task::Task};
use crate::{Accepted, Flow};
use commit::Committer;
use deferred::Deferred;

/// The most requests that may wait for a commit.
const QUEUE: usize = 4096;
/// The most items in one group.
const GROUP_ITEMS: usize = 256;
/// The most bytes in one group; its last entry may exceed this.
const GROUP_BYTES: usize = 2 * 1024 * 1024;
/// The most commits that run at one time. The second one is for when the first is stuck.
const COMMITTERS: usize = 2;
/// How long a submit waits for a running commit before a second commit begins. A commit of one larger group costs
/// less than two commits side by side. A commit takes a few milliseconds.
const BESIDE_AFTER: Duration = Duration::from_millis(20);
/// The same for submits that wait for a Redis replica. While a replica is behind, each commit takes a second; this delay
/// spreads the starts of the committers, so that no submit waits longer than this for one of them to begin.
const DURABLE_BESIDE_AFTER: Duration = Duration::from_millis(170);
/// The committers for submits that wait for a Redis replica or the disk. While a replica is behind, a commit takes a
/// second. With this many committers no submit waits long for its turn, and their connections, one for each node,
/// still fit the pool.
const DURABLE_COMMITTERS: usize = 6;
/// From this many waiting entries on, waiting a little longer pays off.
const LINGER_FROM: usize = 4;
const LINGER: Duration = Duration::from_millis(1);
/// A submit must be answered within two seconds, even if the store does not answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(1_800);

/// A submit that waits longer for its commit to begin is refused before anything is stored. If it began later, the
/// answer could only be that the result is unknown.
const TAKEN_UP_WITHIN: Duration = Duration::from_millis(900);

/// One submitted job.
#[derive(Debug)]
pub(super) struct Item {
    /// Derived from the key that the client gave. `None`: the committer mints the id with the group.
    pub(super) id: Option<JobId>,
    pub(super) spec: JobSpec,
    pub(super) payload: Bytes,
    /// The hash of the request; set if the id was derived.
    pub(super) hash: Option<[u8; 16]>,
    /// Whether a rate token was already taken for this item.
    pub(super) paid: bool,
}

impl Item {
    fn size(&self) -> usize {
        self.payload.len() + 256
    }
}

/// Why an item was not committed.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// The tenant is over its rate. The item comes back, because a repeat may enter all the same.
    Unpaid { item: Box<Item>, retry_after: Duration },
    /// Any other reason.
    Refused(Refusal),
}

impl From<NotCommitted> for Refusal {
    fn from(reason: NotCommitted) -> Refusal {
        match reason {
            NotCommitted::Unpaid { retry_after, .. } => Refusal::RateLimited { retry_after },
            NotCommitted::Refused(refusal) => refusal,
        }
    }
}

/// The result for one item: the stored job and how it was accepted, or the reason against it.
pub(super) type Outcome = Result<(NewJob, Accepted), NotCommitted>;

/// Items that arrived together and are answered together.
struct Entry {
    items: Vec<Item>,
    since: Instant,
    reply: oneshot::Sender<Vec<Outcome>>,
}

impl Entry {
    fn new(items: Vec<Item>) -> (Entry, oneshot::Receiver<Vec<Outcome>>) {
        let (reply, answer) = oneshot::channel();
        (Entry { items, since: Instant::now(), reply }, answer)
    }

    /// The entry, if it is worth a commit. A late one is refused here; one whose client has left is dropped.
    fn in_time(self) -> Option<Entry> {
        if self.since.elapsed() > TAKEN_UP_WITHIN {
            let n = self.items.len();
            let _ = self.reply.send(all_refused(n, &Refusal::QueueFull));
            return None;
        }
        (!self.reply.is_closed()).then_some(self)
    }

    fn size(&self) -> usize {
        self.items.iter().map(Item::size).sum()
    }
}

/// The sending side of the queues.
#[derive(Clone)]
pub(super) struct Group {
    plain: mpsc::Sender<Entry>,
    durable: mpsc::Sender<Entry>,
}

impl Group {
    /// Creates the queues and the tasks that empty them. The committers end when they are asked to stop and the queue
    /// is empty.
    pub(super) fn new(flow: &Flow, limits: &Arc<Limits>) -> (Group, Vec<Task>) {
        let deferred = Arc::<Deferred>::default();
        let (later, of_later) = (deferred.clone(), flow.clone());
        let mut tasks = vec![Task::until_stopped("deferred submits", move || {
            let (later, flow) = (later.clone(), of_later.clone());
            async move { later.publish(&flow).await }
        })];
        let mut queue = |name: &'static str, committers: usize, beside_after: Duration| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let (receiver, under_way) = (Arc::new(Mutex::new(receiver)), Arc::new(UnderWay::new(beside_after)));
            for _ in 0..committers {
                let committer = Committer::new(flow.clone(), limits.clone(), deferred.clone());
                let (receiver, under_way) = (receiver.clone(), under_way.clone());
                tasks.push(Task::new(name, move |stop| {
                    let (receiver, under_way, committer) = (receiver.clone(), under_way.clone(), committer.clone());
                    async move {
                        let stopped = async move { stop.cancelled().await };
                        serve(&receiver, &under_way, stopped, |group| committer.commit(group)).await;
                    }
                }));
            }
            sender
        };
        let (plain, durable) = (
            queue("commit", COMMITTERS, BESIDE_AFTER),
            queue("durable commit", DURABLE_COMMITTERS, DURABLE_BESIDE_AFTER),
        );
        (Group { plain, durable }, tasks)
    }

    /// Submits one job and waits for its answer.
    pub(super) async fn submit(&self, item: Item) -> Outcome {
        let mut answers = self.enqueue(vec![item]).await.map_err(NotCommitted::Refused)?;
        answers.pop().unwrap_or(Err(NotCommitted::Refused(Refusal::Lost)))
    }

    /// Submits several jobs, cut into entries that fit a group. The answers come in the same order, one for each
    /// item.
    pub(super) async fn submit_all(&self, items: Vec<Item>) -> Vec<Outcome> {
        let parts = chunks(items).into_iter().map(|chunk| async move {
            let n = chunk.len();
            self.enqueue(chunk).await.unwrap_or_else(|refusal| all_refused(n, &refusal))
        });
        futures_util::future::join_all(parts).await.into_iter().flatten().collect()
    }

    async fn enqueue(&self, items: Vec<Item>) -> Result<Vec<Outcome>, Refusal> {
        let durable = items.iter().any(|item| item.spec.durability != Durability::Memory);
        let queue = if durable { &self.durable } else { &self.plain };
        let (entry, answer) = Entry::new(items);
        queue.try_send(entry).map_err(|_| Refusal::QueueFull)?;
        match tokio::time::timeout(ANSWERED_WITHIN, answer).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(Refusal::Lost),
            Err(_) => Err(Refusal::Unanswered),
        }
    }
}

/// The same refusal for each of `n` items.
fn all_refused(n: usize, refusal: &Refusal) -> Vec<Outcome> {
    (0..n).map(|_| Err(NotCommitted::Refused(refusal.clone()))).collect()
}

/// Cuts a batch into entries that each fit a group. Items with different durability go into different entries.
fn chunks(items: Vec<Item>) -> Vec<Vec<Item>> {
    let mut chunks: Vec<Vec<Item>> = Vec::new();
    let mut size = 0;
    for item in items {
        let alike = |chunk: &Vec<Item>| {
            chunk.len() < GROUP_ITEMS
                && size + item.size() <= GROUP_BYTES
                && chunk.first().is_none_or(|first| first.spec.durability == item.spec.durability)
        };
        match chunks.last_mut().filter(|chunk| alike(chunk)) {
            Some(chunk) => {
                size += item.size();
                chunk.push(item);
            }
            None => {
                size = item.size();
                chunks.push(vec![item]);
            }
        }
    }
    chunks
}

/// Counts the running commits of one queue.
struct UnderWay {
    count: AtomicUsize,
    over: Notify,
    beside_after: Duration,
}

impl UnderWay {
    fn new(beside_after: Duration) -> UnderWay {
        UnderWay { count: AtomicUsize::new(0), over: Notify::new(), beside_after }
    }

    fn begin(&self) -> Turn<'_> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Turn(self)
    }

    /// If a commit is running, waits until one ends, at most for `beside_after`.
    async fn one_over(&self) {
        let over = self.over.notified();
        if self.count.load(Ordering::Acquire) > 0 {
            let _ = tokio::time::timeout(self.beside_after, over).await;
        }
    }
}

/// A running commit. Dropping it marks the commit as ended, whatever its result.
struct Turn<'a>(&'a UnderWay);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.over.notify_waiters();
    }
}

/// Runs one committer: it gathers a group, commits it, and repeats. Only one committer gathers at a time, so that the
/// waiting entries become one group instead of several small ones.
async fn serve<F: Future<Output = ()>>(
    queue: &Mutex<mpsc::Receiver<Entry>>,
    under_way: &UnderWay,
    stopped: impl Future<Output = ()>,
    mut commit: impl FnMut(Vec<Entry>) -> F,
) {
    tokio::pin!(stopped);
    loop {
        let (group, turn) = {
            let mut queue = queue.lock().await;
            let first = tokio::select! {
                biased;
                first = queue.recv() => first,
                () = &mut stopped => queue.try_recv().ok(),
            };
            let Some(first) = first else { return };
            under_way.one_over().await;
            (gather(first, &mut queue).await, under_way.begin())
        };
        if !group.is_empty() {
            commit(group).await;
        }
        drop(turn);
    }
}

/// Gathers `first` and the entries that wait behind it, within the bounds of a group.
async fn gather(first: Entry, queue: &mut mpsc::Receiver<Entry>) -> Vec<Entry> {
    let (mut room, mut group) = (Room { items: 0, bytes: 0 }, Vec::new());
    room.add(first, &mut group);
    room.fill(&mut group, queue);
    if group.len() >= LINGER_FROM && room.left() {
        tokio::time::sleep(LINGER).await;
        room.fill(&mut group, queue);
    }
    group
}

struct Room {
    items: usize,
    bytes: usize,
}

impl Room {
    fn left(&self) -> bool {
        self.items < GROUP_ITEMS && self.bytes < GROUP_BYTES
    }

    fn fill(&mut self, group: &mut Vec<Entry>, queue: &mut mpsc::Receiver<Entry>) {
        while self.left()
            && let Ok(entry) = queue.try_recv()
        {
            self.add(entry, group);
        }
    }

    /// Adds the entry unless it came too late: in a flood the oldest entries are late, and a group must not shrink by
    /// them, or few submits would be accepted.
    fn add(&mut self, entry: Entry, group: &mut Vec<Entry>) {
        if let Some(entry) = entry.in_time() {
            self.items += entry.items.len();
            self.bytes += entry.size();
            group.push(entry);
        }
    }
}

#[cfg(test)]
mod tests;
