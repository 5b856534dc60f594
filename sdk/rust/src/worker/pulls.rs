//! Where a worker pulls from: the line of each of its topics, and lines that schedulers announce to it because it
//! provides what their jobs require, or takes the jobs of all tenants.
//!
//! An announced line is pulled from for as long as announcements of it continue. A worker that takes the jobs of all
//! tenants goes from line to line: while there are more lines with work than free slots, the line that was pulled from
//! longest ago is next, and free slots are shared evenly. `errands` opens, fetches and closes; other modules handle the
//! deliveries.

use std::{sync::Arc, time::Duration};

use muster_bus::{Consumer, PullSize};
use muster_domain::{Line, Tenant};
use tokio::time::Instant;

/// A line that was not announced for this long has nothing for this worker. Heartbeats are answered every 5 s.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// The most lines that a worker pulls from, besides those of its topics.
const MOST_ANNOUNCED: usize = 256;

/// A tenant's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) tenant: Tenant,
    pub(super) line: Line,
}

/// One line, and the state of its pulls. `C` is its consumer, which this module does not use.
struct Pull<C> {
    source: Source,
    /// None while the line is being opened.
    consumer: Option<Arc<C>>,
    pull_size: PullSize,
    under_way: bool,
    /// The last pull brought messages, so there may be more.
    has_more: bool,
    /// When the line was last pulled from, counted in pulls.
    turn: u64,
    /// Until when the line is pulled from; none, so forever, for a topic's own line.
    until: Option<Instant>,
}

impl<C> Pull<C> {
    fn new(source: Source, until: Option<Instant>) -> Pull<C> {
        let pull_size = PullSize::careful();
        Pull { source, consumer: None, pull_size, under_way: false, has_more: false, turn: 0, until }
    }
}

/// All lines that the worker pulls from.
pub(super) struct Pulls<C = Consumer> {
    all: Vec<Pull<C>>,
    /// Whether to go from line to line.
    fair: bool,
    turns: u64,
}

impl<C> Pulls<C> {
    /// The lines of the worker's topics.
    pub(super) fn new(own: Vec<(Source, C)>, fair: bool) -> Pulls<C> {
        let pull = |(source, consumer)| Pull { consumer: Some(Arc::new(consumer)), ..Pull::new(source, None) };
        Pulls { all: own.into_iter().map(pull).collect(), fair, turns: 0 }
    }

    /// A scheduler announced that this line has jobs for this worker. Returns true if the line has to be opened.
    pub(super) fn announced(&mut self, source: &Source, now: Instant) -> bool {
        let until = Some(now + FORGET_AFTER);
        if let Some(pull) = self.all.iter_mut().find(|pull| pull.source == *source) {
            pull.until = pull.until.and(until);
            return false;
        }
        if self.all.iter().filter(|pull| pull.until.is_some()).count() >= MOST_ANNOUNCED {
            return false;
        }
        self.all.push(Pull::new(source.clone(), until));
        true
    }

    /// The line is open. If it could not be opened, the next announcement tries again.
    pub(super) fn opened(&mut self, source: &Source, consumer: Option<Arc<C>>) {
        match (self.all.iter().position(|pull| pull.source == *source), consumer) {
            (Some(place), Some(consumer)) => self.all[place].consumer = Some(consumer),
            (Some(place), None) => drop(self.all.swap_remove(place)),
            (None, _) => {}
        }
    }

    /// The lines to pull from now, each with the number of messages; their pulls count as in flight.
    pub(super) fn due(&mut self, free: usize, now: Instant) -> Vec<(Source, Arc<C>, usize)> {
        let is_due = |pull: &&mut Pull<C>| !pull.under_way && pull.until.is_none_or(|until| until > now);
        let mut idle: Vec<&mut Pull<C>> = self.all.iter_mut().filter(is_due).collect();
        let mut share = free;
        if self.fair {
            // Ask a line that brought nothing as well: that costs nothing until a message comes.
            let with_more = idle.iter().filter(|pull| pull.has_more).count();
            share = (free / with_more.max(1)).max(1);
            idle.sort_by_key(|pull| pull.turn);
            let mut left = free;
            idle.retain(|pull| {
                let asked = !pull.has_more || left > 0;
                left = left.saturating_sub(if pull.has_more { share } else { 0 });
                asked
            });
        }
        let mut due = Vec::new();
        for pull in idle {
            let Some(consumer) = pull.consumer.clone() else { continue };
            self.turns += 1;
            (pull.under_way, pull.turn) = (true, self.turns);
            due.push((pull.source.clone(), consumer, pull.pull_size.messages(share)));
        }
        due
    }

    /// A pull from this line is over, and brought this many offers in this many messages.
    pub(super) fn brought(&mut self, source: &Source, messages: usize, offers: usize) {
        if let Some(pull) = self.all.iter_mut().find(|pull| pull.source == *source) {
            pull.under_way = false;
            pull.has_more = messages > 0;
            pull.pull_size.saw(messages, offers);
        }
    }

    /// Forgets lines that were not announced for a while; returns their consumers, to be closed.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<Arc<C>> {
        let over = |pull: &mut Pull<C>| {
            pull.consumer.is_some() && !pull.under_way && pull.until.is_some_and(|until| until <= now)
        };
        self.all.extract_if(.., over).filter_map(|pull| pull.consumer).collect()
    }

    /// All consumers, to be closed.
    pub(super) fn into_consumers(self) -> Vec<Arc<C>> {
        self.all.into_iter().filter_map(|pull| pull.consumer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pulls: &mut Pulls<u8>, now: Instant) -> Vec<String> {
        pulls.due(1, now).into_iter().map(|(source, ..)| source.line.to_string()).collect()
    }

    #[test]
    fn a_line_is_pulled_from_for_as_long_as_we_hear_of_it() {
        let source = |pool: &str| Source { tenant: Tenant::default(), line: Line::named("t", pool).unwrap() };
        let (own, pool) = (source(""), source("0123456789abcdef"));
        let (mut pulls, now) = (Pulls::new(vec![(own.clone(), 1)], false), Instant::now());
        assert_eq!(lines(&mut pulls, now), ["t"]);
        assert!(lines(&mut pulls, now).is_empty(), "under way");
        assert!(pulls.announced(&pool, now) && !pulls.announced(&pool, now), "opened once");
        assert!(lines(&mut pulls, now).is_empty(), "not open yet");
        pulls.opened(&pool, Some(Arc::new(2)));
        assert_eq!(lines(&mut pulls, now), ["t~0123456789abcdef"]);
        pulls.brought(&pool, 0, 0);
        assert!(!pulls.announced(&pool, now + FORGET_AFTER / 2));
        assert!(pulls.sweep(now + FORGET_AFTER).is_empty(), "heard of since");
        let later = now + FORGET_AFTER * 2;
        assert!(lines(&mut pulls, later).is_empty() && pulls.sweep(later).len() == 1);
        assert!(pulls.announced(&pool, later), "opened anew");
        pulls.opened(&pool, None);
        assert!(pulls.announced(&pool, later), "and again if that failed");
        pulls.brought(&own, 1, 1);
        assert_eq!(lines(&mut pulls, later), ["t"], "our own line is never forgotten");
    }

    #[test]
    fn who_takes_the_jobs_of_all_tenants_goes_from_one_to_the_next() {
        let source =
            |tenant: &str| Source { tenant: Tenant::parse(tenant).unwrap(), line: Line::named("t", "").unwrap() };
        let tenants = ["a", "b", "c"];
        let (mut pulls, now) = (Pulls::new(tenants.map(|t| (source(t), 1)).into(), true), Instant::now());
        let due = |pulls: &mut Pulls<u8>, free: usize| {
            pulls.due(free, now).into_iter().map(|(source, ..)| source.tenant.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(due(&mut pulls, 4).len(), 3, "nobody knows yet who has something");
        tenants.iter().for_each(|t| pulls.brought(&source(t), usize::from(*t != "c"), usize::from(*t != "c")));
        // Two lines have more; the third is asked beside them, because it may get messages at any time.
        assert_eq!(due(&mut pulls, 4), ["a", "b", "c"]);
        ["a", "b"].iter().for_each(|t| pulls.brought(&source(t), 1, 1));
        // One slot, two lines that have more: they take turns, however much either has.
        for next in ["a", "b", "a", "b"] {
            assert_eq!(due(&mut pulls, 1), [next]);
            pulls.brought(&source(next), 1, 1);
        }
    }
}
