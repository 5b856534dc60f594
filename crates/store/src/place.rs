//! The lists of a tenant's jobs and runs and places in them, as keys and records spell them.
//!
//! A list holds the jobs or the runs of ten minutes. `lists` puts them on lists and reads the lists.

use std::fmt;

use muster_domain::Time;

/// What a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listing {
    /// Jobs.
    Jobs,
    /// Runs of workflows.
    Runs,
}

impl Listing {
    /// What the keys of these lists have before the tenant. No tenant's name has a colon.
    pub(crate) fn infix(self) -> &'static str {
        match self {
            Listing::Jobs => "",
            Listing::Runs => "run:",
        }
    }
}

/// The time that one list covers, in microseconds.
pub(crate) const BUCKET: u64 = 600_000_000;

/// One list of a tenant's jobs or runs: the number of its ten minutes since 1970, and which choice for them it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bucket {
    pub(crate) span: u32,
    pub(crate) choice: u8,
}

impl Bucket {
    /// The low bits of a list's number, which hold its ten minutes: enough until the year 2288.
    const SPAN_BITS: u32 = 24;
    const LAST_SPAN: u32 = (1 << Bucket::SPAN_BITS) - 1;
    /// Not earlier than any existing list.
    pub(crate) const LAST: Bucket = Bucket { span: Bucket::LAST_SPAN, choice: u8::MAX };

    /// The first choice for the ten minutes with this number, counted from 1970.
    pub(crate) fn first(span: u64) -> Bucket {
        let span = u32::try_from(span).unwrap_or(u32::MAX).min(Bucket::LAST_SPAN);
        Bucket { span, choice: 0 }
    }

    /// The first choice for this time.
    pub(crate) fn at(time: Time) -> Bucket {
        Bucket::first(time.0 / BUCKET)
    }

    /// The number that is stored. For a first choice it is the number of its ten minutes.
    pub(crate) fn number(self) -> u32 {
        u32::from(self.choice) << Bucket::SPAN_BITS | self.span
    }

    pub(crate) fn from_number(number: u32) -> Bucket {
        Bucket { span: number & Bucket::LAST_SPAN, choice: (number >> Bucket::SPAN_BITS) as u8 }
    }

    /// Parses a member of the index of lists.
    pub(crate) fn parse(text: &[u8]) -> Option<Bucket> {
        Some(Bucket::from_number(std::str::from_utf8(text).ok()?.parse().ok()?))
    }

    /// When the list's ten minutes begin.
    pub(crate) fn begins(self) -> Time {
        Time(u64::from(self.span) * BUCKET)
    }

    /// When the list's ten minutes end.
    pub(crate) fn ends(self) -> Time {
        Time((u64::from(self.span) + 1) * BUCKET)
    }

    pub(crate) fn next(self) -> Bucket {
        Bucket::first(u64::from(self.span) + 1)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// The place of a job or a run in a listing: a list, and a position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    bucket: Bucket,
    position: u32,
}

impl Place {
    pub(crate) fn new(bucket: Bucket, position: u64) -> Place {
        Place { bucket, position: u32::try_from(position).unwrap_or(u32::MAX) }
    }

    pub(crate) fn bucket(self) -> Bucket {
        self.bucket
    }

    pub(crate) fn position(self) -> u64 {
        self.position.into()
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.bucket.number()) << 32 | u64::from(self.position)).to_be_bytes()
    }

    pub(crate) fn from_bytes(raw: &[u8]) -> Option<Place> {
        let both = u64::from_be_bytes(raw.try_into().ok()?);
        Some(Place { bucket: Bucket::from_number((both >> 32) as u32), position: both as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_choice_has_the_number_of_its_ten_minutes_and_places_survive_their_bytes() {
        let first = Bucket::at(Time(2_962_000 * BUCKET + 7));
        assert_eq!((first.number(), first.to_string().as_str()), (2_962_000, "2962000"));
        let second = Bucket { choice: 3, ..first };
        assert_eq!((second.begins(), second.ends()), (Time(2_962_000 * BUCKET), Time(2_962_001 * BUCKET)));
        for bucket in [first, second, Bucket::LAST] {
            assert_eq!(Bucket::parse(bucket.to_string().as_bytes()), Some(bucket));
            let place = Place::new(bucket, 77);
            assert_eq!(Place::from_bytes(&place.to_bytes()), Some(place));
        }
        assert!(first < second && second < first.next(), "by time, then by choice");
        assert_eq!(Bucket::parse(b"buckets"), None);
    }
}
