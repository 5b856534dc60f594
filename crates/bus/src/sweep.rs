//! Removes offers from their stream that were acked but are still there.
//!
//! A nats-server that is killed may forget that it removed a message and still remember that its consumer has acked it.
//! Such a message is never delivered again and never leaves the stream. It counts as an open offer, so it narrows the
//! window for good, and jobs that are hardly older appear to be offered. A purge by hand has a similar effect:
//! nats-server 2.9 then forgets which messages were delivered and not acked. Every message at or below a consumer's ack
//! floor was acked, so removing it is safe at any time, by any number of replicas; and when no delivery is unacked, a
//! message that was delivered will never come again. (If the stream is recreated between request and removal, fresh
//! offers may be removed too: they are found lost and offered again.)

use std::collections::HashMap;

use futures_util::future::join_all;
use muster_domain::Leads;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    Bus, BusError, Stream,
    error::{NO_CONSUMER, NO_MESSAGE},
    subjects,
};

/// The most offers removed from one subject at a time; the next sweep removes more.
const AT_MOST: u64 = 512;
/// The number of requests in flight at one time.
const AT_ONCE: usize = 16;

#[derive(Deserialize)]
struct Occupied {
    state: Subjects,
}

#[derive(Deserialize)]
struct Subjects {
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

#[derive(Deserialize)]
struct Consumed {
    delivered: Floor,
    ack_floor: Floor,
    num_pending: u64,
    num_ack_pending: u64,
}

#[derive(Deserialize)]
struct Floor {
    stream_seq: u64,
}

#[derive(Deserialize)]
struct Stored {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    seq: u64,
}

impl Bus {
    /// Removes acked offers that are still on [`Stream::Jobs`]; returns how many there were. One request, and one more
    /// for each subject that holds offers. Idempotent. Ends early when the lease is lost.
    ///
    /// Only a leader may call it:
    /// ```
    /// async fn tick(bus: &muster_bus::Bus, lease: &impl muster_domain::Leads) {
    ///     bus.sweep_acked_offers(lease).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// async fn tick(bus: &muster_bus::Bus) {
    ///     bus.sweep_acked_offers().await;
    /// }
    /// ```
    pub async fn sweep_acked_offers(&self, lease: &impl Leads) -> Result<u64, BusError> {
        let verb = format!("STREAM.INFO.{}", Stream::Jobs.name());
        let occupied: Occupied = self.api(&verb, &json!({ "subjects_filter": ">" })).await?;
        let subjects: Vec<(String, u64)> = occupied.state.subjects.unwrap_or_default().into_iter().collect();
        let mut removed = 0;
        for chunk in subjects.chunks(AT_ONCE) {
            let swept = join_all(chunk.iter().map(|(subject, count)| self.sweep_subject(lease, subject, *count)));
            for swept in swept.await {
                removed += swept?;
            }
        }
        Ok(removed)
    }

    async fn sweep_subject(&self, lease: &impl Leads, subject: &str, count: u64) -> Result<u64, BusError> {
        let stream = Stream::Jobs.name();
        let durable = subjects::durable(subjects::WORKERS, &subjects::offers_on(subject));
        let consumed: Consumed = match self.api(&format!("CONSUMER.INFO.{stream}.{durable}"), &Value::Null).await {
            // No worker has ever listened, so nothing was acked.
            Err(fault) if fault.is_missing(NO_CONSUMER) => return Ok(0),
            other => other?,
        };
        let accounted = consumed.num_pending + consumed.num_ack_pending;
        // If nothing is pending or unacked, all delivered messages are over: acked, or forgotten by a purge.
        let over = if accounted == 0 { consumed.delivered } else { consumed.ack_floor };
        let floor = over.stream_seq;
        if floor == 0 || count <= accounted {
            return Ok(0);
        }
        // Delete one by one: a purge would make nats-server 2.9 forget which messages its consumer has delivered and
        // not seen acked, and so create more of the same.
        let (mut removed, mut from) = (0, 1);
        while removed < AT_MOST && lease.is_held() {
            let next = json!({ "next_by_subj": subject, "seq": from });
            let found = match self.api::<Stored>(&format!("STREAM.MSG.GET.{stream}"), &next).await {
                Err(fault) if fault.is_missing(NO_MESSAGE) => break,
                found => found?.message.seq,
            };
            if found > floor {
                break;
            }
            match self
                .api::<Value>(&format!("STREAM.MSG.DELETE.{stream}"), &json!({ "seq": found, "no_erase": true }))
                .await
            {
                // Another process has removed it.
                Err(fault) if fault.is_missing(NO_MESSAGE) => (),
                deleted => drop(deleted?),
            }
            (removed, from) = (removed + 1, found + 1);
        }
        if removed > 0 {
            warn!(subject, removed, "removed offers that were acked but still on the stream");
        }
        Ok(removed)
    }
}
