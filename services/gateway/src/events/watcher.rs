//! One watcher: its position, and the next event that it sends to its client.
//!
//! Promises: the client gets each event that it may see once, in the order of the stream, whichever gateway it was
//! connected to before; or it gets one `muster.gap`, and then the events that follow. The watcher reads from the
//! stream what it did not get from the tap, a few messages at a time. Of these it holds the events for its client,
//! [`PAGE_EVENTS`] at most (data counts too), and it reads nothing more while the client does not take what it holds. It ends when the
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
use muster_flow::Flow;
use muster_wire::v1::ProgressNotice;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Filter, Live, News, Point, document, item::Item, seats::Seat};
use crate::{
    access::{Access, Scope},
    auth::Keys,
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

/// What a watcher uses of its gateway.
pub(crate) struct Sources {
    pub(crate) live: Arc<Live>,
    pub(crate) flow: Flow,
    pub(crate) keys: Arc<Keys>,
    pub(crate) stop: CancellationToken,
}

/// One client that watches events.
pub(crate) struct Watcher {
    sources: Sources,
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
        sources: Sources,
        filter: Filter,
        headers: HeaderMap,
        since: Option<Point>,
    ) -> Result<Watcher, Problem> {
        let seat = sources.live.seats.enter(&filter.caller.tenant)?;
        // Subscribe before reading the position: a message that arrives in between comes by both ways and is sent
        // once.
        let (news, progress) = (sources.live.news.subscribe(), sources.live.progress.subscribe());
        let live = sources.live.opened().await?;
        let mut ping = interval_at(Instant::now() + PING, PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Watcher {
            sources,
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
            if self.sources.stop.is_cancelled() {
                return None;
            }
            if let Some(event) = self.of_page().or_else(|| self.of_current()) {
                return Some(event);
            }
            let (sources, filter, at) = (&self.sources, &self.filter, self.at);
            tokio::select! {
                biased;
                () = sources.stop.cancelled() => return None,
                _ = self.ping.tick() => {
                    return self.may_stay().await.then(|| self.mark(Event::default().comment("ping")));
                }
                read = read_on(sources, filter, at), if self.behind => match read {
                    Read::Page { page, more } => (self.page, self.behind) = (page, more),
                    Read::Gap(mark) => return Some(self.gap(mark)),
                },
                heard = self.news.recv(), if !self.behind => match heard {
                    // The message is from another stream. If the tap has left that stream already, the message is
                    // outdated and is ignored.
                    Ok(News::Events(mark, _)) if mark.epoch != at.epoch => {
                        self.behind = sources.live.is_at(mark.epoch);
                    }
                    Ok(News::From(mark)) if mark.epoch != at.epoch => {
                        if sources.live.is_at(mark.epoch) {
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
                        if let Some(shown) = document::progress(&notice, sources.flow.store.now()) {
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
        while let Some(event) = Item::of(&told.items, *next) {
            let id = Point::within(told.mark, *next);
            *next += 1;
            if let Some(shown) = show(&self.filter, id, &event) {
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
        let shown = document::gap(self.at, self.sources.flow.store.now());
        data(Event::default().id(self.at.to_string()), &shown)
    }

    /// Adds the current position to a comment, so that a client that sees few events can resume from here. An id
    /// alone is not an event.
    fn mark(&self, event: Event) -> Event {
        if self.at == Point::NOWHERE { event } else { event.id(self.at.to_string()) }
    }

    /// Whether the key still allows this watcher. While Redis cannot answer that, the watcher stays.
    async fn may_stay(&mut self) -> bool {
        match self.sources.keys.identify(&self.headers).await {
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
type Page = VecDeque<(Point, Option<Item<'static>>)>;

/// The result of reading the stream.
enum Read {
    /// The next events, and whether there are more before the tap's next message.
    Page { page: Page, more: bool },
    /// The next events are gone. The watcher continues at this mark.
    Gap(Mark),
}

/// Reads on from a position, up to the tap's position. Waits while the stream cannot be read.
async fn read_on(sources: &Sources, filter: &Filter, at: Point) -> Read {
    // The semaphore is never closed.
    let _turn = sources.live.readers.acquire().await;
    loop {
        match try_read(sources, filter, at).await {
            Ok(read) => return read,
            // The bus logs the error.
            Err(_) => sleep(AGAIN).await,
        }
    }
}

async fn try_read(sources: &Sources, filter: &Filter, at: Point) -> Result<Read, BusError> {
    let closed = Mark { epoch: Time::NONE, seq: 0 };
    let (from, live) = (at.next_seq(), sources.live.at.borrow().unwrap_or(closed));
    // While the tap does not know this stream, there is nothing to read.
    let known = live.epoch == at.epoch;
    let last = if known { live.seq.max(at.seq).min(from.saturating_add(PAGE - 1)) } else { from.saturating_sub(1) };
    let (span, told) = sources.flow.bus.events_between(from, last).await?;
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
    let (mut page, mut held) = (Page::new(), 0);
    for Told { mark, items } in told {
        let Some(first) = at.first_new(mark) else { continue };
        let events = (first..).map_while(|place| Some((place, Item::of(&items, place)?)));
        for (place, event) in events.filter(|(_, event)| sees(filter, event)) {
            held += event.weight();
            if held > PAGE_EVENTS && !page.is_empty() {
                return (page, false);
            }
            page.push_back((Point::within(mark, place), Some(event.detached())));
        }
    }
    (page, true)
}

/// Whether the watcher sees the event.
fn sees(filter: &Filter, event: &Item<'_>) -> bool {
    match event {
        Item::Job(event) => filter.event(event).is_some(),
        Item::Run(event) => filter.run_event(event).is_some(),
    }
}

/// The event in the format for this watcher, if the watcher sees it.
fn show(filter: &Filter, id: Point, event: &Item<'_>) -> Option<Event> {
    let shown = match event {
        Item::Job(event) => document::moved(id, filter.event(event)?, event)?,
        Item::Run(event) => document::of_run(id, filter.run_event(event)?, event, filter.caller.has(Scope::Payloads))?,
    };
    Some(data(Event::default().id(id.to_string()), &shown))
}

fn data(event: Event, shown: &Bytes) -> Event {
    event.data(std::str::from_utf8(shown).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use muster_bus::Items;
    use muster_domain::{JobId, RunId, State, Tenant};
    use muster_engine::run::RunState;
    use muster_wire::v1::{JobEvent, RunEvent};

    use super::*;
    use crate::{
        access::Scopes,
        auth::{Caller, Key},
    };

    fn of(tenant: &str) -> Filter {
        of_key(tenant, &[])
    }

    fn of_key(tenant: &str, topics: &[&str]) -> Filter {
        let (id, name) = ("k".to_owned(), String::new());
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let key = Key { id, name, tenant: None, scopes: Scopes::all(), topics, expires_at: None };
        let caller = Caller { tenant: Tenant::parse(tenant).unwrap(), named: true, key: Arc::new(key) };
        Filter { caller, topic: None, job: None, run: None, kinds: Vec::new() }
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
        let message = |seq| {
            let items = Items::Jobs((0..events).map(event).collect());
            Told { mark: Mark { epoch: Time(1), seq }, items }
        };
        (1..=n).map(message).collect()
    }

    fn run_event(kind: &str, state: RunState, data: usize) -> RunEvent {
        RunEvent {
            run_id: RunId::mint(0).as_bytes().to_vec().into(),
            tenant: "us".into(),
            kind: kind.into(),
            state: state.code().into(),
            data: vec![b'1'; data].into(),
            ..Default::default()
        }
    }

    #[test]
    fn of_what_is_read_a_watcher_holds_only_what_it_is_told_and_not_much_of_it() {
        let (filter, mut at) = (of("us"), Point::after(Mark { epoch: Time(1), seq: 0 }));
        let (mut seen, mut reads) = (Vec::new(), 0);
        loop {
            let (page, whole) = chosen(messages(3, 2_000), &filter, at);
            assert!(page.len() <= PAGE_EVENTS, "{}", page.len());
            seen.extend(page.iter().map(|(point, event)| match event {
                Some(Item::Job(event)) => (point.seq, event.version),
                other => panic!("{other:?}"),
            }));
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

    #[test]
    fn events_of_runs_are_for_those_who_watch_the_whole_tenant_or_the_run() {
        let ended = run_event("", RunState::Failed, 0);
        let run = RunId::from_slice(&ended.run_id).unwrap();
        let event = Item::Run(std::borrow::Cow::Borrowed(&ended));
        let us = || of("us");
        let other = RunId::mint(1);
        let kind = |text: &str| vec![crate::events::Kind::parse(text).unwrap()];
        let (seeing, blind) = (
            [
                us(),
                Filter { run: Some((run, run.to_string())), ..us() },
                Filter { kinds: kind("muster.run.failed"), ..us() },
            ],
            [
                of("them"),
                Filter { run: Some((other, other.to_string())), ..us() },
                Filter { kinds: kind("muster.run.succeeded"), ..us() },
                Filter { kinds: kind("muster.job.failed"), ..us() },
                Filter { kinds: kind("failed"), ..us() },
                Filter { topic: Some(muster_domain::Topic::parse("mail").unwrap()), ..us() },
                Filter { job: JobId::from_slice(run.as_bytes()), ..us() },
                of_key("us", &["mail.*"]),
            ],
        );
        assert!(seeing.iter().all(|filter| sees(filter, &event)));
        assert!(!blind.iter().any(|filter| sees(filter, &event)));
        let own = run_event("order.failed", RunState::Running, 0);
        assert!(sees(&Filter { kinds: kind("order.failed"), ..us() }, &Item::Run(std::borrow::Cow::Owned(own))));
    }

    #[test]
    fn data_fills_a_page_too_and_one_event_always_fits() {
        let mark = Mark { epoch: Time(1), seq: 1 };
        let sizes = [100_000, 100_000, 200_000, 0, 0];
        let told =
            || vec![Told { mark, items: Items::Runs(sizes.map(|n| run_event("x", RunState::Running, n)).into()) }];
        let (mut at, mut pages) = (Point::after(Mark { seq: 0, ..mark }), Vec::new());
        loop {
            let (page, whole) = chosen(told(), &of("us"), at);
            pages.push(page.len());
            at = page.back().expect("more each time").0;
            if whole {
                break;
            }
        }
        assert_eq!(pages, [1, 1, 1, 2]);
    }
}
