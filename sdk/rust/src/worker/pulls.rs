//! Where a worker pulls from: the line of each of its topics, and lines that it was told of because it
//! provides what their jobs require.
//!
//! Promises: a line it was told of is pulled from for as long as it is told of. Leaves to others:
//! opening, fetching and closing (`errands`), and what comes of a delivery.

use std::{sync::Arc, time::Duration};

use muster_bus::Consumer;
use muster_domain::Line;
use tokio::time::Instant;

use super::slots::Appetite;

/// A line of which nothing was heard for so long has nothing for us. Heartbeats are answered every 5 s.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// Lines that a worker pulls from at most, besides those of its topics.
const MOST_TOLD: usize = 256;

/// One line, and how it is pulled from. `C` is its consumer, of which only the bus knows more.
struct Pull<C> {
    line: Line,
    /// None while it is being opened.
    consumer: Option<Arc<C>>,
    appetite: Appetite,
    under_way: bool,
    /// Until when it is pulled from; for ever if it is a topic's own.
    until: Option<Instant>,
}

/// All of them.
pub(super) struct Pulls<C = Consumer> {
    all: Vec<Pull<C>>,
}

impl<C> Pulls<C> {
    /// The lines of the worker's topics.
    pub(super) fn new(own: Vec<(Line, C)>) -> Pulls<C> {
        let pull = |(line, consumer)| Pull {
            line,
            consumer: Some(Arc::new(consumer)),
            appetite: Appetite::new(),
            under_way: false,
            until: None,
        };
        Pulls { all: own.into_iter().map(pull).collect() }
    }

    /// There is something for us on this line. True if it has to be opened.
    pub(super) fn told(&mut self, line: &Line, now: Instant) -> bool {
        let until = Some(now + FORGET_AFTER);
        if let Some(pull) = self.all.iter_mut().find(|pull| pull.line == *line) {
            pull.until = pull.until.and(until);
            return false;
        }
        if self.all.iter().filter(|pull| pull.until.is_some()).count() >= MOST_TOLD {
            return false;
        }
        let (line, appetite) = (line.clone(), Appetite::new());
        self.all.push(Pull { line, consumer: None, appetite, under_way: false, until });
        true
    }

    /// It is open; if it could not be opened it is tried when we next hear of it.
    pub(super) fn opened(&mut self, line: &Line, consumer: Option<Arc<C>>) {
        match (self.all.iter().position(|pull| pull.line == *line), consumer) {
            (Some(place), Some(consumer)) => self.all[place].consumer = Some(consumer),
            (Some(place), None) => drop(self.all.swap_remove(place)),
            (None, _) => {}
        }
    }

    /// Whoever is to be pulled from now, each with how many messages; they count as under way.
    pub(super) fn due(&mut self, free: usize, now: Instant) -> Vec<(Line, Arc<C>, usize)> {
        let idle = self.all.iter_mut().filter(|pull| !pull.under_way && pull.until.is_none_or(|until| until > now));
        let mut due = Vec::new();
        for pull in idle {
            let Some(consumer) = pull.consumer.clone() else { continue };
            pull.under_way = true;
            due.push((pull.line.clone(), consumer, pull.appetite.messages(free)));
        }
        due
    }

    /// A pull from this line is over, and brought so many offers in so many messages.
    pub(super) fn brought(&mut self, line: &Line, messages: usize, offers: usize) {
        if let Some(pull) = self.all.iter_mut().find(|pull| pull.line == *line) {
            pull.under_way = false;
            pull.appetite.saw(messages, offers);
        }
    }

    /// Forgets lines of which nothing was heard for a while; their consumers are to be closed.
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
        pulls.due(1, now).into_iter().map(|(line, ..)| line.to_string()).collect()
    }

    #[test]
    fn a_line_is_pulled_from_for_as_long_as_we_hear_of_it() {
        let (own, told) = (Line::named("t", "").unwrap(), Line::named("t", "0123456789abcdef").unwrap());
        let (mut pulls, now) = (Pulls::new(vec![(own.clone(), 1)]), Instant::now());
        assert_eq!(lines(&mut pulls, now), ["t"]);
        assert!(lines(&mut pulls, now).is_empty(), "under way");
        assert!(pulls.told(&told, now) && !pulls.told(&told, now), "opened once");
        assert!(lines(&mut pulls, now).is_empty(), "not open yet");
        pulls.opened(&told, Some(Arc::new(2)));
        assert_eq!(lines(&mut pulls, now), ["t~0123456789abcdef"]);
        pulls.brought(&told, 0, 0);
        assert!(!pulls.told(&told, now + FORGET_AFTER / 2));
        assert!(pulls.sweep(now + FORGET_AFTER).is_empty(), "heard of since");
        let later = now + FORGET_AFTER * 2;
        assert!(lines(&mut pulls, later).is_empty() && pulls.sweep(later).len() == 1);
        assert!(pulls.told(&told, later), "opened anew");
        pulls.opened(&told, None);
        assert!(pulls.told(&told, later), "and again if that failed");
        pulls.brought(&own, 1, 1);
        assert_eq!(lines(&mut pulls, later), ["t"], "our own line is never forgotten");
    }
}
