//! Group commit: whoever asks while a commit is under way is in the next one.
//!
//! Knows: the queue of submits and the committers that empty it. Promises: no timer while few
//! wait and no commit is under way, so an idle system pays no delay; a commit that is stuck holds
//! nobody up for longer than [`BESIDE_AFTER`]; with [`LINGER_FROM`] or more waiting, one millisecond
//! more makes the group larger and the whole cheaper. Every item is answered for itself. The
//! queue is bounded: past it the answer is `overloaded` at once, and so it is while the schedulers are
//! too far behind (`lag`). Nobody waits longer than [`ANSWERED_WITHIN`], and whoever was not taken up
//! within [`TAKEN_UP_WITHIN`] is told that nothing was stored. A tenant that is known to be over its
//! rate takes no place in the queue. Leaves to others: the commit itself (`flow`), and what was asked
//! (`submit`).
//!
//! Submits that wait for a replica have committers of their own: they take longer, and would
//! hold up the rest.

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
use muster_chassis::Tasks;
use muster_domain::{Durability, JobId, JobSpec, ProblemCode};
use muster_flow::{Accepted, Flow};
use muster_store::{NewJob, StoreError};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

use crate::{lag::Lag, limits::Limits, problem::Problem};
pub(crate) use commit::Committer;
use deferred::Deferred;

/// Requests that may wait for a commit.
const QUEUE: usize = 4096;
/// Items in one group.
pub(crate) const GROUP_ITEMS: usize = 256;
/// Bytes in one group, give or take its last entry.
pub(crate) const GROUP_BYTES: usize = 2 * 1024 * 1024;
/// Commits under way at one time. The second one is for when the first is stuck.
const COMMITTERS: usize = 2;
/// So long whoever comes waits for a commit that is under way: in one group with the others it costs less than in one
/// beside them. A commit takes a few milliseconds.
const BESIDE_AFTER: Duration = Duration::from_millis(20);
/// The same for those that wait for a replica. Where there is none, so the committers' seconds are spread: nobody
/// waits longer than this for one of them to begin.
const DURABLE_BESIDE_AFTER: Duration = Duration::from_millis(170);
/// Those that wait for a replica or the disk. Where there is no replica each takes a second; with so many of them
/// nobody waits long for its turn, and their connections, one for each node, still fit the pool.
const DURABLE_COMMITTERS: usize = 6;
/// From so many waiting on, waiting a little longer pays.
const LINGER_FROM: usize = 4;
const LINGER: Duration = Duration::from_millis(1);
/// A store that is away has to be answered for within two seconds.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_millis(1_800);

/// Whoever waits longer for its commit to begin is refused before anything is stored: begun later,
/// it could only be told that nobody knows what became of it.
const TAKEN_UP_WITHIN: Duration = Duration::from_millis(900);

/// One job on its way in.
#[derive(Debug)]
pub(crate) struct Item {
    /// Derived from what the client named; none: minted with its group.
    pub(crate) id: Option<JobId>,
    pub(crate) spec: JobSpec,
    pub(crate) payload: Bytes,
    /// Of the request, where the id was derived.
    pub(crate) hash: Option<[u8; 16]>,
    /// Its rate token has been taken already.
    pub(crate) paid: bool,
}

impl Item {
    fn size(&self) -> usize {
        self.payload.len() + 256
    }
}

/// Why an item was not taken in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refused {
    /// Its id belongs to another request.
    Mismatch,
    /// Over the tenant's rate; come back after this.
    RateLimited(Duration),
    /// Redis did not answer.
    Store(StoreError),
    /// It never came to a commit.
    NotTried(Box<Problem>),
}

impl Refused {
    /// As the client sees it. `mismatch` is what a taken id means here.
    pub(crate) fn into_problem(self, mismatch: ProblemCode) -> Problem {
        match self {
            Refused::Mismatch if mismatch == ProblemCode::AlreadyRetried => {
                Problem::new(mismatch, "this job was retried before, with other overrides")
            }
            Refused::Mismatch => Problem::new(mismatch, "this idempotency key was used with another body"),
            Refused::RateLimited(wait) => Problem::rate_limited(wait),
            Refused::Store(error) => error.into(),
            Refused::NotTried(problem) => *problem,
        }
    }
}

/// What became of an item: the job as it was stored, and where it stands.
pub(crate) type Answer = Result<(NewJob, Accepted), Refused>;

/// Items that came together and are answered together.
pub(crate) struct Entry {
    items: Vec<Item>,
    since: Instant,
    reply: oneshot::Sender<Vec<Answer>>,
}

impl Entry {
    fn new(items: Vec<Item>) -> (Entry, oneshot::Receiver<Vec<Answer>>) {
        let (reply, answer) = oneshot::channel();
        (Entry { items, since: Instant::now(), reply }, answer)
    }

    /// Those that are worth a commit; the others are answered, or have left.
    fn in_time(group: Vec<Entry>) -> Vec<Entry> {
        let mut kept = Vec::with_capacity(group.len());
        for entry in group {
            if entry.since.elapsed() > TAKEN_UP_WITHIN {
                let n = entry.items.len();
                let _ = entry.reply.send(vec![Err(Refused::NotTried(Box::new(overloaded()))); n]);
            } else if !entry.reply.is_closed() {
                kept.push(entry);
            }
        }
        kept
    }

    fn size(&self) -> usize {
        self.items.iter().map(Item::size).sum()
    }
}

/// The way into the queue.
#[derive(Clone)]
pub(crate) struct Group {
    plain: mpsc::Sender<Entry>,
    durable: mpsc::Sender<Entry>,
    limits: Arc<Limits>,
    lag: Arc<Lag>,
}

impl Group {
    /// Starts the committers. They end after `tasks` was told to stop and the queue is empty.
    pub(crate) fn start(tasks: &Tasks, flow: &Flow, limits: &Arc<Limits>, lag: &Arc<Lag>) -> Group {
        let deferred = Arc::<Deferred>::default();
        let (later, of_later, stop) = (deferred.clone(), flow.clone(), tasks.stopping());
        tasks.supervise("deferred submits", move || {
            let (later, flow, stop) = (later.clone(), of_later.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = later.publish(&flow) => {}
                }
                Ok(())
            }
        });
        let queue = |name: &'static str, committers: usize, beside_after: Duration| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let (receiver, under_way) = (Arc::new(Mutex::new(receiver)), Arc::new(UnderWay::new(beside_after)));
            for _ in 0..committers {
                let committer = Committer::new(flow.clone(), limits.clone(), deferred.clone());
                let (receiver, under_way, stop) = (receiver.clone(), under_way.clone(), tasks.stopping());
                tasks.supervise(name, move || {
                    let (receiver, under_way) = (receiver.clone(), under_way.clone());
                    let (committer, stop) = (committer.clone(), stop.clone());
                    async move {
                        let stopped = async move { stop.cancelled().await };
                        serve(&receiver, &under_way, stopped, |group| committer.commit(group)).await;
                        Ok(())
                    }
                });
            }
            sender
        };
        let (plain, durable) = (
            queue("commit", COMMITTERS, BESIDE_AFTER),
            queue("durable commit", DURABLE_COMMITTERS, DURABLE_BESIDE_AFTER),
        );
        Group { plain, durable, limits: limits.clone(), lag: lag.clone() }
    }

    /// Hands one job in and waits for its answer.
    pub(crate) async fn submit(&self, item: Item) -> Result<Answer, Problem> {
        if let Some(wait) = self.limits.refused(&item.spec.tenant).filter(|_| !item.paid) {
            return Ok(Err(Refused::RateLimited(wait)));
        }
        let mut answers = self.enqueue(vec![item]).await?;
        answers.pop().ok_or_else(lost)
    }

    /// Hands several in, in groups of their own size; answered in order, each for itself.
    pub(crate) async fn submit_all(&self, items: Vec<Item>) -> Vec<Answer> {
        let parts = chunks(items).into_iter().map(|chunk| async move {
            let n = chunk.len();
            match self.enqueue(chunk).await {
                Ok(answers) => answers,
                Err(problem) => vec![Err(Refused::NotTried(Box::new(problem))); n],
            }
        });
        futures_util::future::join_all(parts).await.into_iter().flatten().collect()
    }

    async fn enqueue(&self, items: Vec<Item>) -> Result<Vec<Answer>, Problem> {
        self.lag.admit()?;
        let durable = items.iter().any(|item| item.spec.durability != Durability::Memory);
        let queue = if durable { &self.durable } else { &self.plain };
        let (entry, answer) = Entry::new(items);
        queue.try_send(entry).map_err(|_| overloaded())?;
        match tokio::time::timeout(ANSWERED_WITHIN, answer).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(lost()),
            Err(_) => Err(Problem::store_away()),
        }
    }
}

fn overloaded() -> Problem {
    Problem::new(ProblemCode::Overloaded, "too many submits wait already; nothing was stored")
}

fn lost() -> Problem {
    Problem::new(ProblemCode::Internal, "the commit broke off; the log has the reason")
}

/// Cuts a batch into entries that each fit a group. Items that wait for a replica are kept apart.
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

/// Commits under way.
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

    /// Waits until one is over, if there is one, and not for long.
    async fn one_over(&self) {
        let over = self.over.notified();
        if self.count.load(Ordering::Acquire) > 0 {
            let _ = tokio::time::timeout(self.beside_after, over).await;
        }
    }
}

/// A commit under way; over when dropped, however it ended.
struct Turn<'a>(&'a UnderWay);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.over.notify_waiters();
    }
}

/// One committer: gathers a group, commits it, again. Only one of them gathers at a time, so that
/// what waits becomes one group and not several halves.
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
        commit(group).await;
        drop(turn);
    }
}

/// Everything that waits behind `first`, within the bounds of a group.
async fn gather(first: Entry, queue: &mut mpsc::Receiver<Entry>) -> Vec<Entry> {
    let mut room = Room { items: first.items.len(), bytes: first.size() };
    let mut group = vec![first];
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
            self.items += entry.items.len();
            self.bytes += entry.size();
            group.push(entry);
        }
    }
}

#[cfg(test)]
mod tests;
