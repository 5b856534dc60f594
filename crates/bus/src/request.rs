//! Questions to whoever of a queue group is free: start, extend, decide.
//!
//! Promises: at most one request is sent; the answer comes within the limit or an error does.
//! An error does not mean that nobody acted on it. Leaves to others: asking again.

use std::time::Duration;

use bytes::Bytes;
use muster_wire::{Body, decode};

use crate::{Bus, BusError, Subject};

impl Bus {
    /// Asks, and waits for the answer. [`BusError::NoResponders`] at once when nobody listens.
    pub async fn request(&self, subject: &Subject, body: Body, limit: Duration) -> Result<Body, BusError> {
        let answer = self.ask(subject.raw(), None, self.sealed(None, body), limit).await?;
        let (_, body) = decode(answer.payload)?;
        Ok(body)
    }

    /// The same in bytes that are not ours: whoever answers need not know our envelope.
    pub async fn request_plain(&self, subject: &Subject, body: Bytes, limit: Duration) -> Result<Bytes, BusError> {
        Ok(self.ask(subject.raw(), None, body, limit).await?.payload)
    }
}
