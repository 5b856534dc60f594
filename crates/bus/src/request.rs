//! One request to a queue group. Requests to schedulers go through `schedulers`, which asks another scheduler after a
//! silence.
//!
//! At most one request is sent; the answer or an error comes within the limit. An error does not mean that no receiver
//! acted on the request. The caller decides whether to ask again.

use std::time::Duration;

use bytes::Bytes;
use muster_wire::{Body, decode};

use crate::{Bus, BusError, Subject};

impl Bus {
    /// Sends a request and waits for the answer. [`BusError::NoResponders`] at once if no subscriber listens.
    pub async fn request(&self, subject: &Subject, body: Body, limit: Duration) -> Result<Body, BusError> {
        let answer = self.ask(subject.raw(), None, self.sealed(None, body), limit).await?;
        let (_, body) = decode(answer.payload)?;
        Ok(body)
    }

    /// The same with plain bytes: the receiver need not know Muster's envelope.
    pub async fn request_plain(&self, subject: &Subject, body: Bytes, limit: Duration) -> Result<Bytes, BusError> {
        Ok(self.ask(subject.raw(), None, body, limit).await?.payload)
    }
}
