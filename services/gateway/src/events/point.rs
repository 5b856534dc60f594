//! A watcher's position: the id of the last event that it has seen. It is valid on every gateway.

use std::fmt;

use muster_bus::Mark;
use muster_domain::Time;

/// A position on the stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// The time at which the stream was created.
    pub(crate) epoch: Time,
    /// The sequence number of the message.
    pub(crate) seq: u64,
    /// The index of the event in the message; `None` means after all of its events.
    pub(crate) place: Option<u32>,
}

impl Point {
    /// A position that is on no stream.
    pub(crate) const NOWHERE: Point = Point { epoch: Time::NONE, seq: 0, place: None };

    /// The position after all events of a message.
    pub(crate) fn after(mark: Mark) -> Point {
        Point { epoch: mark.epoch, seq: mark.seq, place: None }
    }

    /// The position after one event of a message.
    pub(crate) fn within(mark: Mark, place: usize) -> Point {
        Point { place: u32::try_from(place).ok(), ..Point::after(mark) }
    }

    /// Parses an event id.
    pub(crate) fn parse(text: &str) -> Option<Point> {
        let mut parts = text.trim().split('-');
        let epoch = u64::from_str_radix(parts.next()?, 16).ok().filter(|epoch| *epoch > 0)?;
        let seq = parts.next()?.parse().ok().filter(|seq| *seq < u64::MAX)?;
        let place: Option<u32> = parts.next().map(str::parse).transpose().ok()?;
        // Sequence 0 is before the first message and has no events.
        let whole = parts.next().is_none() && (seq > 0 || place.is_none());
        whole.then_some(Point { epoch: Time(epoch), seq, place })
    }

    /// The sequence number of the first message that may hold new events.
    pub(crate) fn next_seq(self) -> u64 {
        self.seq + u64::from(self.place.is_none())
    }

    /// The index of the first new event of this message: 0 if all are new, `None` if no event is new.
    pub(crate) fn first_new(self, mark: Mark) -> Option<usize> {
        match (self.epoch == mark.epoch, mark.seq.cmp(&self.seq)) {
            (true, std::cmp::Ordering::Greater) => Some(0),
            (true, std::cmp::Ordering::Equal) => self.place.map(|place| place as usize + 1),
            _ => None,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.epoch.0, self.seq)?;
        self.place.map_or(Ok(()), |place| write!(f, "-{place}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let mark = Mark { epoch: Time(1_700_000_000_000_000), seq: 42 };
        for point in [Point::after(mark), Point::within(mark, 7)] {
            assert_eq!(Point::parse(&point.to_string()), Some(point));
        }
        assert_eq!(Point::within(mark, 7).to_string(), "60a24181e4000-42-7");
        for strange in ["", "42", "x-1-1", "0-1-1", "1--1", "1-1-1-1", "1-1-", "1-0-0", "1-18446744073709551615"] {
            assert_eq!(Point::parse(strange), None, "{strange:?}");
        }
    }

    #[test]
    fn only_what_was_not_seen_is_new() {
        let mark = |seq| Mark { epoch: Time(5), seq };
        let (whole, part) = (Point::after(mark(3)), Point::within(mark(3), 1));
        assert_eq!([2, 3, 4].map(|seq| whole.first_new(mark(seq))), [None, None, Some(0)]);
        assert_eq!([2, 3, 4].map(|seq| part.first_new(mark(seq))), [None, Some(2), Some(0)]);
        assert_eq!((whole.next_seq(), part.next_seq()), (4, 3));
        assert_eq!(whole.first_new(Mark { epoch: Time(6), seq: 9 }), None, "of another stream");
    }
}
