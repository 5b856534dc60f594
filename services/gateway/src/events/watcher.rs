//! One watcher: its position, and the next event that it sends to its client.
//!
//! Promises: the client gets each event that it may see once, in the order of the stream, whichever gateway it was
//! connected to before; or it gets one `muster.gap`, and then the events that follow. The watcher reads from the
//! stream what it did not get from the tap, a few messages at a time. Of these it holds the events for its client,
//! [`PAGE_EVENTS`] at most, and it reads nothing more while the client does not take what it holds. It ends when the
//! gateway stops, and soon after its key is deleted or expires.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::response::sse::Event;
use bytes::Bytes;
use http::HeaderMap;
use muster_bus::{BusError, Events as Told, Mark};
use muster_domain::{ProblemCode, Time};
use muster_wire::v1::{JobEvent, ProgressNotice};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep},
};

use super::{Filter, News, Point, document, seats::Seat};
use crate::{
    Gateway,
    access::{Access, Scope},
    problem::Problem,
};

/// How often a client gets a comment that shows that the connection is alive.
const PING: Duration = Duration::from_secs(15);
/// How soon a client that lost its connection should reconnect.
const COME_BACK: Duration = Duration::from_secs(1);
/// How many messages a watcher reads from the stream at one time.
const PAGE: u64 = 8;
/// The most events that a watcher holds after reading. A message with more events is read again.
const PAGE_EVENTS: usize = 512;
/// The pause before the next try when the stream could not be read.
const AGAIN: Duration = Duration::from_millis(250);

/// One client that watches events.
pub(crate) struct Watcher {
    gateway: Gateway,
    filter: Filter,
    /// The request headers of the client. The watcher checks the key in them again later.
    headers: HeaderMap,
    news: Receiver<News>,
    progress: Receiver<Arc<ProgressNotice>>,
    at: Point,
    /// The current message of the tap, and the index of its next event. The tap may drop the message before the
    /// watcher is done with it.
    current: Option<(Weak<Told>, usize)>,
    /// Events read from the stream, to be sent next.
    page: Page,
    /// Whether the watcher must read from the stream before it listens to the tap.
    behind: bool,
    greeted: bool,
    ping: Interval,
    _seat: Seat,
}

impl Watcher {
    /// Starts to watch after `since`, or with the next event.
    pub(crate) async fn join(
        gateway: Gateway,
        filter: Filter,
        headers: HeaderMap,
        since: Option<Point>,
    ) -> Result<Watcher, Problem> {
        let seat = gateway.live.seats.enter(&filter.caller.tenant)?;
        // Subscribe before reading the position: a message that arrives in between comes by both ways and is sent
        // once.
        let (news, progress) = (gateway.live.news.subscribe(), gateway.live.progress.subscribe());
        let live = gateway.live.opened().await?;
        let mut ping = interval_at(Instant::now() + PING, PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Watcher {
            gateway,
            filter,
            headers,
            news,
            progress,
            at: since.unwrap_or_else(|| Point::after(live)),
            current: None,
            page: Page::new(),
            behind: since.is_some(),
            greeted: false,
            ping,
            _seat: seat,
        })
    }

    /// The next event for the client; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(self.mark(Event::default().comment("hello").retry(COME_BACK)));
        }
        loop {
            if self.gateway.stop.is_cancelled() {
                return None;
            }
            if let Some(event) = self.of_page().or_else(|| self.of_current()) {
                return Some(event);
            }
            let (gateway, filter, at) = (&self.gateway, &self.filter, self.at);
            tokio::select! {
                biased;
                () = gateway.stop.cancelled() => return None,
                _ = self.ping.tick() => {
                    return self.may_stay().await.then(|| self.mark(Event::default().comment("ping")));
                }
                read = read_on(gateway, filter, at), if self.behind => match read {
                    Read::Page { page, more } => (self.page, self.behind) = (page, more),
                    Read::Gap(mark) => return Some(self.gap(mark)),
                },
                heard = self.news.recv(), if !self.behind => match heard {
                    // The message is from another stream. If the tap has left that stream already, the message is
                    // outdated and is ignored.
                    Ok(News::Events(mark, _)) if mark.epoch != at.epoch => {
                        self.behind = gateway.live.is_at(mark.epoch);
                    }
                    Ok(News::From(mark)) if mark.epoch != at.epoch => {
                        if gateway.live.is_at(mark.epoch) {
                            return Some(self.gap(mark));
                        }
                    }
                    Ok(News::Events(mark, told)) => self.current = at.first_new(mark).map(|first| (told, first)),
                    // The tap was closed for a while, or the stream lost messages. Reading the stream shows which.
                    Ok(News::From(mark)) => self.behind = mark.seq != at.seq,
                    Err(RecvError::Lagged(_)) => self.behind = true,
                    Err(RecvError::Closed) => return None,
                },
                heard = self.progress.recv(), if !self.behind => match heard {
                    Ok(notice) if filter.progress(&notice) => {
                        if let Some(shown) = document::progress(&notice, gateway.flow.store.now()) {
                            return Some(data(Event::default(), &shown));
                        }
                    }
                    // The notice is not for this watcher, or notices were missed. Missed notices are not sent again.
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }

    /// The next event of the page that was read.
    fn of_page(&mut self) -> Option<Event> {
        while let Some((at, event)) = self.page.pop_front() {
            self.at = at;
            let shown = event.and_then(|event| show(&self.filter, at, &event));
            if shown.is_some() {
                return shown;
            }
        }
        // Free the memory of the page too.
        self.page = Page::new();
        None
    }

    /// The next event of the tap's current message.
    fn of_current(&mut self) -> Option<Event> {
        let (told, next) = self.current.as_mut()?;
        let Some(told) = told.upgrade() else {
            (self.current, self.behind) = (None, true);
            return None;
        };
        while let Some(event) = told.items.get(*next) {
            let id = Point::within(told.mark, *next);
            *next += 1;
            if let Some(shown) = show(&self.filter, id, event) {
                self.at = id;
                return Some(shown);
            }
        }
        (self.at, self.current) = (Point::after(told.mark), None);
        None
    }

    /// Continues after this mark, and returns the event that says that events before it are missing.
    fn gap(&mut self, mark: Mark) -> Event {
        (self.at, self.behind) = (Point::after(mark), false);
        let shown = document::gap(self.at, self.gateway.flow.store.now());
        data(Event::default().id(self.at.to_string()), &shown)
    }

    /// Adds the current position to a comment, so that a client that sees few events can resume from here. An id
    /// alone is not an event.
    fn mark(&self, event: Event) -> Event {
        if self.at == Point::NOWHERE { event } else { event.id(self.at.to_string()) }
    }

    /// Whether the key still allows this watcher. While Redis cannot answer that, the watcher stays.
    async fn may_stay(&mut self) -> bool {
        match self.gateway.keys.identify(&self.headers).await {
            Ok(caller) => {
                let may = caller.may(Access::Scope(Scope::Read)).is_ok();
                self.filter.caller = caller;
                may
            }
            Err(problem) => problem.code != ProblemCode::Unauthorized,
        }
    }
}

/// Events to send, each with its position. The last position may have no event.
type Page = VecDeque<(Point, Option<JobEvent>)>;

/// The result of reading the stream.
enum Read {
    /// The next events, and whether there are more before the tap's next message.
    Page { page: Page, more: bool },
    /// The next events are gone. The watcher continues at this mark.
    Gap(Mark),
}

/// Reads on from a position, up to the tap's position. Waits while the stream cannot be read.
async fn read_on(gateway: &Gateway, filter: &Filter, at: Point) -> Read {
    // The semaphore is never closed.
    let _turn = gateway.live.readers.acquire().await;
    loop {
        match try_read(gateway, filter, at).await {
            Ok(read) => return read,
            // The bus logs the error.
            Err(_) => sleep(AGAIN).await,
        }
    }
}

async fn try_read(gateway: &Gateway, filter: &Filter, at: Point) -> Result<Read, BusError> {
    let closed = Mark { epoch: Time::NONE, seq: 0 };
    let (from, live) = (at.next_seq(), gateway.live.at.borrow().unwrap_or(closed));
    // While the tap does not know this stream, there is nothing to read.
    let known = live.epoch == at.epoch;
    let last = if known { live.seq.max(at.seq).min(from.saturating_add(PAGE - 1)) } else { from.saturating_sub(1) };
    let (span, told) = gateway.flow.bus.events_between(from, last).await?;
    if span.epoch != at.epoch || at.seq > span.last || from < span.first {
        let seq = if live.epoch == span.epoch { live.seq.min(span.last) } else { span.last };
        return Ok(Read::Gap(Mark { epoch: span.epoch, seq }));
    }
    let (mut page, whole) = chosen(told, filter, at);
    // The last messages may hold no event for this watcher. The position moves past them all the same.
    if whole && last >= from {
        page.push_back((Point::after(Mark { epoch: span.epoch, seq: last }), None));
    }
    Ok(Read::Page { page, more: !whole || (known && last < live.seq) })
}

/// The new events of these messages that the watcher sees, up to its limit; and whether these are all.
fn chosen(told: Vec<Told>, filter: &Filter, at: Point) -> (Page, bool) {
    let mut page = Page::new();
    for Told { mark, items } in told {
        let Some(first) = at.first_new(mark) else { continue };
        for (place, event) in items.into_iter().enumerate().skip(first) {
            if filter.event(&event).is_none() {
                continue;
            }
            if page.len() == PAGE_EVENTS {
                return (page, false);
            }
            // Copy the id: it is a slice of the message and would keep the whole message in memory.
            let event = JobEvent { job_id: Bytes::copy_from_slice(&event.job_id), ..event };
            page.push_back((Point::within(mark, place), Some(event)));
        }
    }
    (page, true)
}

/// The event in the format for this watcher, if the watcher sees it.
fn show(filter: &Filter, id: Point, event: &JobEvent) -> Option<Event> {
    let shown = document::moved(id, filter.event(event)?, event)?;
    Some(data(Event::default().id(id.to_string()), &shown))
}

fn data(event: Event, shown: &Bytes) -> Event {
    event.data(std::str::from_utf8(shown).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use muster_domain::{JobId, State, Tenant};

    use super::*;
    use crate::{
        access::Scopes,
        auth::{Caller, Key},
    };

    fn of(tenant: &str) -> Filter {
        let (id, name, topics) = ("k".to_owned(), String::new(), Vec::new());
        let key = Key { id, name, tenant: None, scopes: Scopes::all(), topics, expires_at: None };
        let caller = Caller { tenant: Tenant::parse(tenant).unwrap(), named: true, key: Arc::new(key) };
        Filter { caller, topic: None, job: None, kinds: Vec::new() }
    }

    /// Messages 1, 2 and so on, with `events` events each. One event in four belongs to `us`.
    fn messages(n: u64, events: u32) -> Vec<Told> {
        let event = |version: u32| JobEvent {
            job_id: JobId::mint(0).as_bytes().to_vec().into(),
            tenant: if version.is_multiple_of(4) { "us" } else { "them" }.into(),
            state: State::Running.code().into(),
            version,
            ..Default::default()
        };
        let message = |seq| Told { mark: Mark { epoch: Time(1), seq }, items: (0..events).map(event).collect() };
        (1..=n).map(message).collect()
    }

    #[test]
    fn of_what_is_read_a_watcher_holds_only_what_it_is_told_and_not_much_of_it() {
        let (filter, mut at) = (of("us"), Point::after(Mark { epoch: Time(1), seq: 0 }));
        let (mut seen, mut reads) = (Vec::new(), 0);
        loop {
            let (page, whole) = chosen(messages(3, 2_000), &filter, at);
            assert!(page.len() <= PAGE_EVENTS, "{}", page.len());
            seen.extend(page.iter().map(|(point, event)| (point.seq, event.as_ref().unwrap().version)));
            at = page.back().expect("more each time").0;
            reads += 1;
            if whole {
                break;
            }
        }
        let all = (1..=3).flat_map(|seq| (0..2_000).step_by(4).map(move |version| (seq, version)));
        assert!(seen.into_iter().eq(all), "all of them, in order, once each");
        assert_eq!(reads, 3);
        let (page, whole) = chosen(messages(3, 2_000), &of("nobody"), Point::after(Mark { epoch: Time(1), seq: 0 }));
        assert_eq!((page.len(), whole), (0, true));
    }
}
