//! A stream of groups of two jobs: which items a message has, and whether it was delivered before.

/// An item of a submit: the record's version, or the version before. An older item has no effect, so it counts as
/// none.
pub(super) const NOW: u8 = 1;
pub(super) const BEFORE: u8 = 2;
/// An item of a result, always under the record's fence.
pub(super) const SUCCESS: u8 = 1;
pub(super) const FAILURE: u8 = 2;

/// A group: an item for each job, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) of: [u8; 2],
    pub(super) again: bool,
}

impl Message {
    /// A message with this one item.
    pub(super) fn single(job: usize, item: u8) -> Message {
        let mut of = [0; 2];
        of[job] = item;
        Message { of, again: false }
    }

    /// The same message, delivered before.
    pub(super) fn delivered(self) -> Message {
        Message { again: true, ..self }
    }

    /// Ages the item of a job whose record has changed.
    pub(super) fn older(mut self, job: usize) -> Message {
        self.of[job] = if self.of[job] == NOW { BEFORE } else { 0 };
        self
    }

    fn bit(self) -> u32 {
        let [a, b] = self.of.map(u32::from);
        1 << (a + 3 * b + 9 * u32::from(self.again))
    }
}

/// A set of messages: several with the same items count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stream(u32);

impl Stream {
    pub(super) fn with(self, message: Message) -> Stream {
        if message.of == [0; 2] { self } else { Stream(self.0 | message.bit()) }
    }

    pub(super) fn without(self, message: Message) -> Stream {
        Stream(self.0 & !message.bit())
    }

    pub(super) fn has(self, message: Message) -> bool {
        self.0 & message.bit() != 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Message> {
        let all = [false, true]
            .into_iter()
            .flat_map(|again| (0..3).flat_map(move |b| (0..3).map(move |a| Message { of: [a, b], again })));
        all.filter(move |message| self.has(*message))
    }

    fn map(self, with: impl Fn(Message) -> Message) -> Stream {
        self.iter().fold(Stream::default(), |stream, message| stream.with(with(message)))
    }

    /// Whether a message has an item of this job.
    pub(super) fn carries(self, job: usize) -> bool {
        self.iter().any(|message| message.of[job] != 0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn older(self, job: usize) -> Stream {
        self.map(|message| message.older(job))
    }

    pub(super) fn without_job(self, job: usize) -> Stream {
        self.map(|mut message| {
            message.of[job] = 0;
            message
        })
    }

    pub(super) fn swapped(self) -> Stream {
        self.map(|Message { of: [a, b], again }| Message { of: [b, a], again })
    }
}
