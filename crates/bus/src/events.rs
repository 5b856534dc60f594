//! Positions on the stream of events, and reading the stream between two positions. The events of jobs and those of runs
//! are on one stream, so that both have one order.
//!
//! A [`Mark`] names the same message wherever it is used, and never a message of a stream that was created later. A
//! read returns messages of the stream that the answer names. This module only reads, except that it recreates a
//! missing stream. `pull/follow` follows new events; the caller decides what to do about a position that is gone.

use futures_util::future::join_all;
use muster_domain::Time;
use muster_wire::{
    Body,
    v1::{JobEvent, RunEvent},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Bus, BusError, Stream};

/// The position of one message on the stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When the stream was created: sequences of another stream mean nothing.
    pub epoch: Time,
    /// The message's sequence; 0 is before the first message.
    pub seq: u64,
}

/// The range of messages in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When the stream was created.
    pub epoch: Time,
    /// The sequence of the oldest message that is kept; one past the last if there is none.
    pub first: u64,
    /// The sequence of the last message; 0 before the first.
    pub last: u64,
}

impl Span {
    /// Whether all messages after this one are still there.
    pub fn goes_on_from(self, seq: u64) -> bool {
        seq <= self.last && self.first <= seq + 1
    }

    /// Where a reader that has reached `at`, or begins, continues: as near to `at` as possible.
    pub(crate) fn start(self, at: Option<Mark>) -> Mark {
        let seq = match at {
            None => self.last,
            Some(at) if at.epoch == self.epoch && self.goes_on_from(at.seq) => at.seq,
            // A server that lost the last messages gives their sequences to new ones.
            Some(at) if at.epoch == self.epoch && at.seq > self.last => self.last,
            // An older stream was restored: watchers received its messages long ago.
            Some(at) if at.epoch > self.epoch => self.last,
            Some(_) => self.first.saturating_sub(1),
        };
        Mark { epoch: self.epoch, seq }
    }
}

/// The events of one message.
#[derive(Debug)]
pub struct Events {
    /// The position of the message.
    pub mark: Mark,
    /// The events in order.
    pub items: Items,
}

/// The events that one message may hold.
#[derive(Debug)]
pub enum Items {
    /// Of jobs.
    Jobs(Vec<JobEvent>),
    /// Of runs of workflows.
    Runs(Vec<RunEvent>),
}

impl Items {
    /// The events in a message; `None` if it holds something else.
    pub(crate) fn of(body: Body) -> Option<Items> {
        match body {
            Body::Event(group) => Some(Items::Jobs(group.items)),
            Body::RunEvent(group) => Some(Items::Runs(group.items)),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Info {
    created: String,
    state: Range,
}

#[derive(Deserialize)]
struct Range {
    first_seq: u64,
    last_seq: u64,
}

impl Bus {
    /// The range of messages in the stream of events. One request.
    pub async fn events_span(&self) -> Result<Span, BusError> {
        let info: Info = self.about(&format!("STREAM.INFO.{}", Stream::Events.name()), &Value::Null).await?;
        let unreadable = || BusError::Unreadable(format!("created = {}", info.created));
        let epoch = Time::parse_rfc3339(&info.created).ok_or_else(unreadable)?;
        Ok(Span { epoch, first: info.state.first_seq, last: info.state.last_seq })
    }

    /// The existing messages from `from` to `to`, and the stream's range after they were read: if the range still names
    /// an epoch, the messages are of that epoch. One request each, all at once, so ask for few. Messages that cannot be
    /// read are left out.
    pub async fn events_between(&self, from: u64, to: u64) -> Result<(Span, Vec<Events>), BusError> {
        let reads = (from..=to).map(|seq| self.stored(Stream::Events, json!({ "seq": seq })));
        let mut found = Vec::new();
        for read in join_all(reads).await {
            found.extend(read?);
        }
        let span = self.events_span().await?;
        let events = found.into_iter().filter_map(|message| {
            let (_, body) = message.read()?;
            Some(Events { mark: Mark { epoch: span.epoch, seq: message.seq }, items: Items::of(body)? })
        });
        Ok((span, events.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_back_goes_on_where_it_was_or_as_near_as_can_be() {
        let (epoch, before) = (Time(2), Time(1));
        let span = Span { epoch, first: 10, last: 20 };
        let start = |at: Option<(Time, u64)>| span.start(at.map(|(epoch, seq)| Mark { epoch, seq })).seq;
        assert_eq!(start(None), 20, "who is new begins with what comes");
        assert_eq!(start(Some((epoch, 15))), 15);
        assert_eq!((start(Some((epoch, 20))), start(Some((epoch, 9)))), (20, 9), "nothing is missing yet");
        assert_eq!(start(Some((epoch, 8))), 9, "all that is left");
        assert_eq!(start(Some((epoch, 21))), 20, "numbers that were given again");
        assert_eq!(start(Some((before, 15))), 9, "all of the new stream");
        assert_eq!(start(Some((Time(3), 15))), 20, "nothing of an older one that came back");
        let fresh = Span { epoch, first: 0, last: 0 };
        assert_eq!(fresh.start(Some(Mark { epoch: before, seq: 15 })).seq, 0);
        assert!(fresh.goes_on_from(0));
    }
}
