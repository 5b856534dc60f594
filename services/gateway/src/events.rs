//! Events as they happen, for whoever watches.
//!
//! Knows: who watches, and the one tap that all of them share. Promises: while nobody watches nothing is
//! read; a watcher that is slow holds up nobody and fills no memory: only the tap holds messages, the
//! latest few, and what a watcher misses here it reads from the stream, at its own pace; more than so
//! many are not let in, nor more than a quarter of them for one tenant. Leaves to others: what one watcher
//! sees and where it stands (`watcher`), places (`point`), shapes (`document`), seats (`seats`).

mod document;
mod filter;
mod point;
mod seats;
mod watcher;

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use muster_bus::{Bus, Events as Told, Follower, Mark, Told as Heard, subjects};
use muster_domain::Time;
use muster_wire::{Body, v1::ProgressNotice};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::problem::Problem;

pub(crate) use filter::{Filter, Kind};
pub(crate) use point::Point;
pub(crate) use watcher::Watcher;

use seats::Seats;

/// Messages that a watcher may be behind before it has to read them from the stream.
const AHEAD: usize = 256;
/// Events that these may hold in all: a message may have thousands.
const KEPT: usize = 50_000;
/// Notices of progress that a watcher may be behind before it misses some.
const PROGRESS_AHEAD: usize = 256;
/// How many watchers read from the stream at one time. None of them waits for its client meanwhile.
const READERS: usize = 8;
/// How long the tap stays open after the last watcher has left.
const LINGER: Duration = Duration::from_secs(10);
/// How long somebody who comes waits for the tap to open.
const OPENS_WITHIN: Duration = Duration::from_secs(3);

/// What the tap hands to the watchers.
#[derive(Clone)]
enum News {
    /// What follows comes after this place.
    From(Mark),
    /// The next message. Gone once the tap holds later ones in its stead.
    Events(Mark, Weak<Told>),
}

/// The tap, and who is there for it.
pub(crate) struct Live {
    news: broadcast::Sender<News>,
    /// Apart from the news: progress that floods in pushes nothing else out.
    progress: broadcast::Sender<Arc<ProgressNotice>>,
    /// Where the tap has come to; none while it is closed.
    at: watch::Sender<Option<Mark>>,
    seats: Seats,
    readers: Semaphore,
}

impl Live {
    /// For at most so many watchers.
    pub(crate) fn new(most: usize) -> Live {
        Live {
            news: broadcast::Sender::new(AHEAD),
            progress: broadcast::Sender::new(PROGRESS_AHEAD),
            at: watch::Sender::new(None),
            seats: Seats::new(most),
            readers: Semaphore::new(READERS),
        }
    }

    /// Where the tap stands, once it is open.
    async fn opened(&self) -> Result<Mark, Problem> {
        let mut at = self.at.subscribe();
        let opened = tokio::time::timeout(OPENS_WITHIN, at.wait_for(Option::is_some)).await;
        opened.ok().and_then(Result::ok).and_then(|at| *at).ok_or_else(Problem::bus_away)
    }

    /// Whether the tap is at this stream now.
    fn is_at(&self, epoch: Time) -> bool {
        self.at.borrow().is_some_and(|at| at.epoch == epoch)
    }

    /// Keeps the tap open whenever somebody watches.
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
        let mut kept = Kept::default();
        loop {
            let (mark, news) = match follower.next().await {
                Heard::From(mark) => (mark, News::From(mark)),
                Heard::Events(told) => (told.mark, News::Events(told.mark, kept.keep(told))),
            };
            // First this: who subscribes and then looks must not miss what it does not see here.
            self.at.send_replace(Some(mark));
            // Nobody listens: the last has just left.
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

/// The latest messages. Nobody else holds any, however slowly they are read.
#[derive(Default)]
struct Kept {
    messages: VecDeque<Arc<Told>>,
    /// In all of them.
    events: usize,
}

impl Kept {
    /// Takes one more, and lets go of the oldest; the latest is always there.
    fn keep(&mut self, told: Told) -> Weak<Told> {
        let told = Arc::new(told);
        let latest = Arc::downgrade(&told);
        self.events += told.items.len();
        self.messages.push_back(told);
        while self.messages.len() > AHEAD || (self.events > KEPT && self.messages.len() > 1) {
            self.events -= self.messages.pop_front().map_or(0, |oldest| oldest.items.len());
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::v1::JobEvent;

    use super::*;

    fn told(seq: u64, events: usize) -> Told {
        Told { mark: Mark { epoch: Time(1), seq }, items: vec![JobEvent::default(); events] }
    }

    #[test]
    fn the_tap_holds_so_many_events_and_no_more() {
        let mut kept = Kept::default();
        let all: Vec<_> = (0..1_000).map(|seq| kept.keep(told(seq, 2_000))).collect();
        let held = all.iter().filter_map(Weak::upgrade).map(|told| told.items.len()).sum::<usize>();
        assert_eq!((held, kept.events), (KEPT, KEPT));
        assert!(all[975..].iter().all(|told| told.upgrade().is_some()), "the latest");

        let small: Vec<_> = (0..1_000).map(|seq| kept.keep(told(seq, 1))).collect();
        assert_eq!(small.iter().filter_map(Weak::upgrade).count(), AHEAD);
        let huge = kept.keep(told(0, KEPT + 1));
        assert!(huge.upgrade().is_some(), "the latest, whatever it holds");
        assert_eq!(kept.messages.len(), 1);
    }
}
