//! Publishing to a stream, with its ack.
//!
//! `Ok` means that the stream holds the message. A retry keeps its Msg-Id, so a lost ack does not create a second
//! message. A missing stream is recreated. The caller gets an answer within its limit. Only a fixed number of messages
//! await their acks; later callers wait instead of failing. The caller decides whether to publish again after a
//! failure, and then under a fresh id.

use std::time::Duration;

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID};
use bytes::Bytes;
use muster_domain::TraceParent;
use muster_telemetry::events::{Emit, PublishFailed};
use muster_wire::Body;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{Bus, BusError, Stream, Subject, jetstream::judge, offers};

/// How long [`Bus::publish`] keeps trying. A cluster whose stream lost its leader takes no message for five to eight
/// seconds.
pub const PUBLISH_LIMIT: Duration = Duration::from_secs(15);

/// The server's confirmation that the stream holds the message.
#[derive(Deserialize)]
struct Ack {
    #[expect(dead_code, reason = "an answer without it is not an ack")]
    stream: String,
}

impl Bus {
    /// [`Bus::publish_within`] the usual limit.
    pub async fn publish(
        &self,
        subject: &Subject,
        msg_id: Option<&str>,
        trace: Option<TraceParent>,
        body: Body,
    ) -> Result<(), BusError> {
        self.publish_within(subject, msg_id, trace, body, PUBLISH_LIMIT).await
    }

    /// Publishes one message on its stream and waits for the ack, trying again under the same id until `limit`. Without
    /// a `msg_id` it makes one up, so that its own retries are one message. An error does not mean that the stream
    /// lacks the message: the ack may have been lost.
    pub async fn publish_within(
        &self,
        subject: &Subject,
        msg_id: Option<&str>,
        trace: Option<TraceParent>,
        body: Body,
        limit: Duration,
    ) -> Result<(), BusError> {
        let deadline = Instant::now() + limit;
        let jobs = offers::named(&body);
        let bytes = self.sealed(trace, body);
        let most = self.inner.client.max_payload().saturating_sub(512);
        if bytes.len() > most {
            return Err(BusError::TooLarge { size: bytes.len(), limit: most });
        }
        let mut headers = HeaderMap::new();
        match msg_id {
            Some(id) => headers.insert(NATS_MESSAGE_ID, id),
            None => headers.insert(NATS_MESSAGE_ID, Uuid::new_v4().simple().to_string().as_str()),
        }
        if let Some(jobs) = jobs {
            headers.insert(offers::JOBS, jobs);
        }
        let done = self.publish_until(subject, &headers, &bytes, deadline).await;
        done.inspect_err(|fault| {
            PublishFailed { subject: subject.family(), detail: &fault.to_string() }.emit();
        })
    }

    async fn publish_until(
        &self,
        subject: &Subject,
        headers: &HeaderMap,
        bytes: &Bytes,
        deadline: Instant,
    ) -> Result<(), BusError> {
        let began = Instant::now();
        let late = || BusError::Timeout { what: format!("publish to {subject}"), after: began.elapsed() };
        let _turn = timeout_at(deadline, self.inner.in_flight.acquire()).await.map_err(|_| late())?;
        let mut tries = 0;
        loop {
            let wait = self.inner.settings.request_timeout.min(deadline.saturating_duration_since(Instant::now()));
            let answered = self.ask(subject.raw(), Some(headers.clone()), bytes.clone(), wait).await;
            let fault = match answered.and_then(|ack| judge::<Ack>(&ack.payload)) {
                Ok(_) => return Ok(()),
                Err(fault) if fault.is_transient() => fault,
                Err(fault) => return Err(fault),
            };
            let _ = timeout_at(deadline, self.repair_refusal(Stream::of(subject), &fault)).await;
            // No stream captures this subject: JetStream is not up yet, has no leader, or the stream is gone.
            if matches!(fault, BusError::NoResponders { .. } | BusError::Refused { .. }) {
                match timeout_at(deadline, self.heal()).await {
                    Ok(Err(broken)) if !broken.is_transient() => return Err(broken),
                    _ => {}
                }
            }
            if timeout_at(deadline, Bus::rest(tries)).await.is_err() || Instant::now() >= deadline {
                return Err(fault);
            }
            tries += 1;
        }
    }
}
