//! Live events for watchers.
//!
//! Knows: the watchers, and the one tap that all of them share. Promises: without watchers, the gateway reads no
//! events. A slow watcher delays no other watcher and uses no extra memory: only the tap holds messages, and only the
//! latest few. A watcher reads what it misses from the stream, at its own pace. The number of watchers is limited,
//! and one tenant gets at most a quarter of the seats. Leaves to others: what one watcher sees and its position
//! (`watcher`), positions on the stream (`point`), events of jobs and of runs (`item`) and their format (`document`),
//! the limit on watchers (`seats`).

mod document;
mod filter;
mod item;
mod point;
mod seats;
mod watcher;

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use muster_bus::{Bus, Events as Message, Followed as Heard, Follower, Mark, subjects};
use muster_domain::Time;
use muster_wire::{Body, v1::ProgressNotice};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::problem::Problem;

pub(crate) use filter::{Filter, Kind};
pub(crate) use point::Point;
pub(crate) use watcher::{Sources, Watcher};

use seats::Seats;

/// How many messages a watcher may be behind before it has to read them from the stream.
const AHEAD: usize = 256;
/// The most events that these messages may hold together: one message may have thousands. Data counts too.
const KEPT: usize = 50_000;
/// How many progress notices a watcher may be behind before it misses some.
const PROGRESS_AHEAD: usize = 256;
/// How many watchers read from the stream at one time. None of them waits for its client while it reads.
const READERS: usize = 8;
/// How long the tap stays open after the last watcher leaves.
const LINGER: Duration = Duration::from_secs(10);
/// How long a new watcher waits for the tap to open.
const OPENS_WITHIN: Duration = Duration::from_secs(3);

/// What the tap sends to the watchers.
#[derive(Clone)]
enum News {
    /// The messages that follow come after this mark.
    From(Mark),
    /// The next message. The pointer is dead once the tap has replaced the message by later ones.
    Events(Mark, Weak<Message>),
}

/// The tap and its watchers.
pub(crate) struct Live {
    news: broadcast::Sender<News>,
    /// Separate from the news, so that a flood of progress notices pushes out no events.
    progress: broadcast::Sender<Arc<ProgressNotice>>,
    /// The position of the tap; `None` while it is closed.
    at: watch::Sender<Option<Mark>>,
    seats: Seats,
    readers: Semaphore,
}

impl Live {
    /// Creates the tap for at most `most` watchers.
    pub(crate) fn new(most: usize) -> Live {
        Live {
            news: broadcast::Sender::new(AHEAD),
            progress: broadcast::Sender::new(PROGRESS_AHEAD),
            at: watch::Sender::new(None),
            seats: Seats::new(most),
            readers: Semaphore::new(READERS),
        }
    }

    /// Waits until the tap is open, and returns its position.
    async fn opened(&self) -> Result<Mark, Problem> {
        let mut at = self.at.subscribe();
        let opened = tokio::time::timeout(OPENS_WITHIN, at.wait_for(Option::is_some)).await;
        opened.ok().and_then(Result::ok).and_then(|at| *at).ok_or_else(Problem::bus_away)
    }

    /// Whether the tap reads the stream with this epoch now.
    fn is_at(&self, epoch: Time) -> bool {
        self.at.borrow().is_some_and(|at| at.epoch == epoch)
    }

    /// Keeps the tap open while there are watchers.
    pub(crate) async fn listen(&self, bus: &Bus) -> anyhow::Result<()> {
        loop {
            self.at.send_replace(None);
            self.seats.taken().await;
            let mut follower = bus.follow_events();
            tokio::select! {
                never = self.follow(&mut follower) => match never {},
                ended = self.hear_progress(bus) => ended?,
                () = self.seats.empty_for(LINGER) => {}
            }
            follower.close().await;
        }
    }

    async fn follow(&self, follower: &mut Follower) -> Infallible {
        let mut kept = Recent::default();
        loop {
            let (mark, news) = match follower.next().await {
                Heard::From(mark) => (mark, News::From(mark)),
                Heard::Events(message) => (message.mark, News::Events(message.mark, kept.keep(message))),
            };
            // Update the position before sending the news: a watcher that subscribes and then reads the position must
            // not miss a message that was sent before it subscribed.
            self.at.send_replace(Some(mark));
            // The send fails if the last watcher has just left.
            let _ = self.news.send(news);
        }
    }

    async fn hear_progress(&self, bus: &Bus) -> anyhow::Result<()> {
        let mut notices = bus.subscribe(&subjects::progress(), None).await?;
        while let Some(received) = notices.next().await {
            if let Body::Progress(notice) = received.body {
                let _ = self.progress.send(Arc::new(notice));
            }
        }
        anyhow::bail!("the subscription to progress has ended")
    }
}

/// The latest messages. Watchers hold only weak pointers to them, however slowly they read.
#[derive(Default)]
struct Recent {
    messages: VecDeque<Arc<Message>>,
    /// The number of events in all these messages.
    events: usize,
}

impl Recent {
    /// Adds a message and drops the oldest ones. The latest message always stays.
    fn keep(&mut self, message: Message) -> Weak<Message> {
        let message = Arc::new(message);
        let latest = Arc::downgrade(&message);
        self.events += item::weight(&message.items);
        self.messages.push_back(message);
        while self.messages.len() > AHEAD || (self.events > KEPT && self.messages.len() > 1) {
            self.events -= self.messages.pop_front().map_or(0, |oldest| item::weight(&oldest.items));
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use muster_bus::Items;
    use muster_wire::v1::{JobEvent, RunEvent};

    use super::*;

    fn message(seq: u64, events: usize) -> Message {
        Message { mark: Mark { epoch: Time(1), seq }, items: Items::Jobs(vec![JobEvent::default(); events]) }
    }

    #[test]
    fn the_tap_holds_so_many_events_and_no_more() {
        let mut kept = Recent::default();
        let all: Vec<_> = (0..1_000).map(|seq| kept.keep(message(seq, 2_000))).collect();
        let held = all.iter().filter_map(Weak::upgrade).map(|message| item::weight(&message.items)).sum::<usize>();
        assert_eq!((held, kept.events), (KEPT, KEPT));
        assert!(all[975..].iter().all(|message| message.upgrade().is_some()), "the latest");

        let small: Vec<_> = (0..1_000).map(|seq| kept.keep(message(seq, 1))).collect();
        assert_eq!(small.iter().filter_map(Weak::upgrade).count(), AHEAD);
        let huge = kept.keep(message(0, KEPT + 1));
        assert!(huge.upgrade().is_some(), "the latest, whatever it holds");
        assert_eq!(kept.messages.len(), 1);

        let data = vec![b'1'; 256 * 1024].into();
        let large = RunEvent { data, ..Default::default() };
        for seq in 0..100 {
            let items = Items::Runs(vec![large.clone()]);
            kept.keep(Message { mark: Mark { epoch: Time(1), seq }, items });
        }
        assert_eq!(kept.messages.len(), 48, "12 MiB of data");
    }
}
