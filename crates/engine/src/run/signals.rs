//! Signals: messages to the run, kept until a step reads them. A signal that was read leaves its id for a while, so
//! that the same signal twice is one.

use muster_domain::Time;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    codec::Record,
    event::{Outcome, Refusal},
    field::Field,
    place::Place,
    records::{PAGE, Queue, Signal},
    scope::End,
    state::StepState,
    work::{Done, Work},
};
use crate::value;

/// The most signals that nobody read.
pub(crate) const MOST_SIGNALS: u32 = 1_000;
/// The most bytes of them together.
pub(crate) const MOST_BYTES: u32 = 1024 * 1024;
/// The most bytes of one.
pub(crate) const MOST_BYTES_OF_ONE: u32 = 256 * 1024;
/// How many pages of ids of signals that were read are kept.
const READ_PAGES: u32 = 16;

/// The hash that stands for an id.
pub(crate) fn hash(id: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(id.as_bytes()).into();
    u64::from_be_bytes([digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7]])
}

impl Work<'_> {
    /// Takes a signal from outside.
    pub(crate) fn take_signal(&mut self, id: &str, name: &str, body: &Value, at: Time) -> Done<Outcome> {
        let id = hash(id);
        if self.signal(id)?.is_some() {
            return Ok(Outcome::Nothing);
        }
        if self.head.state.is_end() {
            return Ok(Outcome::Refused(Refusal::RunDone));
        }
        if let Err(fault) = value::check(body) {
            return Ok(Outcome::Refused(Refusal::Value(fault)));
        }
        let bytes = u32::try_from(super::size::of(body)).unwrap_or(u32::MAX);
        if bytes > MOST_BYTES_OF_ONE {
            return Ok(Outcome::Refused(Refusal::SignalTooLarge));
        }
        if self.head.signals >= MOST_SIGNALS || self.head.signal_bytes.saturating_add(bytes) > MOST_BYTES {
            return Ok(Outcome::Refused(Refusal::TooManySignals));
        }
        self.head.signals += 1;
        self.head.signal_bytes += bytes;
        let signal = Signal { name: name.to_owned(), body: Some(body.clone()), at, bytes };
        self.put(Field::Signal(id), Record::Signal(signal));
        self.queue_mut(&Field::Queue(name.to_owned()))?.unread.push(id);
        self.note("signal", None, name);
        self.match_signals(name)?;
        Ok(Outcome::Applied)
    }

    /// Hands the unread signals of a name to the steps that wait for them.
    pub(crate) fn match_signals(&mut self, name: &str) -> Done {
        while !self.frozen() {
            let field = Field::Queue(name.to_owned());
            let Some(Queue { unread, waiting }) = self.queue(&field)? else { return Ok(()) };
            let (Some(&id), Some(place)) = (unread.first(), waiting.first()) else { return Ok(()) };
            let place = self.plan.place(place);
            let queue = self.queue_mut(&field)?;
            queue.waiting.remove(0);
            let Some(place) = place else { continue };
            if self.state(&place)? != StepState::Running {
                continue;
            }
            self.queue_mut(&field)?.unread.remove(0);
            let body = self.read_signal(id)?;
            self.end(&place, End::succeeded(body))?;
        }
        Ok(())
    }

    /// Adds a step to those that wait for a signal.
    pub(crate) fn wait_for_signal(&mut self, place: &Place, name: &str) -> Done {
        let text = self.plan.text(place);
        self.queue_mut(&Field::Queue(name.to_owned()))?.waiting.push(text);
        self.match_signals(name)
    }

    /// Takes a step out of those that wait for a signal.
    pub(crate) fn leave_signal(&mut self, place: &Place, name: &str) -> Done {
        let text = self.plan.text(place);
        let field = Field::Queue(name.to_owned());
        if self.queue(&field)?.is_some_and(|queue| queue.waiting.contains(&text)) {
            self.queue_mut(&field)?.waiting.retain(|other| *other != text);
        }
        Ok(())
    }

    /// Reads a signal: its body goes, its id stays for a while.
    fn read_signal(&mut self, id: u64) -> Done<Option<Value>> {
        let Some(signal) = self.signal(id)?.cloned() else { return Ok(None) };
        self.head.signals = self.head.signals.saturating_sub(1);
        self.head.signal_bytes = self.head.signal_bytes.saturating_sub(signal.bytes);
        let read = Signal { name: String::new(), body: None, at: Time::NONE, bytes: 0 };
        self.put(Field::Signal(id), Record::Signal(read));
        let page = self.head.signals_read / PAGE;
        self.head.signals_read += 1;
        self.hashes_mut(&Field::Read(page))?.push(id);
        if self.head.signals_read.is_multiple_of(PAGE) && page >= READ_PAGES {
            let old = Field::Read(page - READ_PAGES);
            let gone = self.hashes(&old)?.cloned().unwrap_or_default();
            gone.into_iter().for_each(|id| self.delete(Field::Signal(id)));
            self.delete(old);
        }
        Ok(signal.body)
    }
}
