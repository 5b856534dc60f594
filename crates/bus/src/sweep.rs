//! Takes offers off their stream that were acked and stand there all the same.
//!
//! A nats-server that is killed may forget that it removed a message and remember that its
//! consumer has acked it. Such a message is never delivered again and never leaves: it counts as an
//! offer that stands, so it narrows the window for good and lets jobs that are hardly older pass
//! for offered. A purge by hand leaves the like: nats-server 2.9 then forgets what was delivered and
//! not acked. All that lies at or below a consumer's ack floor was acked, so removing it there is
//! safe at any time, by any number of replicas; and what was delivered when nothing is out will
//! never come again. (Should the stream be made anew between question
//! and removal, fresh offers may go too: they are found lost and made again.)

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

/// Most offers taken off one subject at a time; the next look takes more.
const AT_MOST: u64 = 512;
/// Questions under way at one time.
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
    /// Removes acked offers that still stand on [`Stream::Jobs`]; how many there were. One
    /// question, and one more for each subject that holds offers. Idempotent. Ends early when the lease is lost.
    ///
    /// A leader's alone:
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
            // Nobody has ever listened, so nobody has acked.
            Err(fault) if fault.is_missing(NO_CONSUMER) => return Ok(0),
            other => other?,
        };
        let accounted = consumed.num_pending + consumed.num_ack_pending;
        // With nothing out, all that was delivered is over: acked, or forgotten by a purge.
        let over = if accounted == 0 { consumed.delivered } else { consumed.ack_floor };
        let floor = over.stream_seq;
        if floor == 0 || count <= accounted {
            return Ok(0);
        }
        // One by one: a purge would make nats-server 2.9 forget what its consumer has delivered and
        // not seen acked, and so make more of the same.
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
                // Somebody else was here.
                Err(fault) if fault.is_missing(NO_MESSAGE) => (),
                deleted => drop(deleted?),
            }
            (removed, from) = (removed + 1, found + 1);
        }
        if removed > 0 {
            warn!(subject, removed, "offers were acked and still stood on the stream");
        }
        Ok(removed)
    }
}
