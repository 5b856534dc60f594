//! Putting jobs on their topics. Where the record is to say `dispatched`, it does so first; the offer
//! follows, under an id made of jobs and versions, so that a repeat of the same decision is one message.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use muster_bus::{BusError, subjects};
use muster_domain::{Head, Line, Tenant, line::pool_of};
use muster_store::Record;
use muster_wire::{Body, encoded_len, v1};
use sha2::{Digest, Sha256};

use crate::Flow;

/// Most offers that share a message. More saves nothing.
const SHARED: usize = 8;

/// How offers are put on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offering {
    /// Jobs of this topic are short and many: several share a message.
    pub many: bool,
    /// Decided anew, so that the same id must not swallow it.
    pub again: bool,
}

/// What a worker is offered of a dispatched job.
pub fn offer_of(record: &Record, head: &Head) -> v1::Offer {
    v1::Offer {
        job_id: record.id.as_bytes().to_vec().into(),
        version: head.version,
        dispatched_at: head.since.0,
        tenant: record.spec.tenant.to_string(),
        topic: record.spec.topic.to_string(),
        payload: record.payload.clone().unwrap_or_default(),
        labels: record.spec.labels.clone(),
        max_attempts: head.max_attempts.into(),
        timeout_ms: record.spec.timeout_ms,
        deadline: head.deadline.map_or(0, |t| t.0),
        traceparent: record.spec.trace.map(|t| t.to_string()).unwrap_or_default(),
        pool: pool_of(&record.spec.requires).unwrap_or_default(),
        slot: record.carried_slot(),
    }
}

/// Made of jobs and versions, and short: the stream remembers it for minutes.
fn message_id(items: &[v1::Offer]) -> String {
    let mut hasher = Sha256::new();
    for offer in items {
        hasher.update(&offer.job_id);
        hasher.update(offer.version.to_be_bytes());
    }
    hex::encode(&hasher.finalize()[..12])
}

impl Flow {
    /// Offers jobs, each answered for itself. A repeat of the same decision is swallowed by the stream.
    pub async fn offer(&self, offers: Vec<v1::Offer>, how: Offering) -> Vec<Result<(), BusError>> {
        let mut lines: BTreeMap<(String, String, String), Vec<(usize, v1::Offer)>> = BTreeMap::new();
        let total = offers.len();
        for (place, offer) in offers.into_iter().enumerate() {
            let line = (offer.tenant.clone(), offer.topic.clone(), offer.pool.clone());
            lines.entry(line).or_default().push((place, offer));
        }
        let limit = self.bus.max_message();
        let messages = lines.into_iter().flat_map(|((tenant, topic, pool), offers)| {
            // Names in an offer come from a record, where only good ones are stored.
            let line = Tenant::parse(&tenant).ok().zip(Line::named(&topic, &pool).ok());
            let subject = line.map(|(tenant, line)| subjects::offer(&tenant, &line));
            let groups = share(offers, if how.many { SHARED } else { 1 }, limit);
            groups.into_iter().filter_map(move |group| Some((subject.clone()?, group))).collect::<Vec<_>>()
        });
        let sends = messages.map(|(subject, group)| async move {
            let (places, items): (Vec<usize>, Vec<_>) = group.into_iter().unzip();
            let id = (!how.again).then(|| message_id(&items));
            let trace = items.first().and_then(|o| muster_domain::TraceParent::parse(&o.traceparent));
            let body = Body::Offer(v1::OfferGroup { items });
            let sent = self.bus.publish(&subject, id.as_deref(), trace, body).await;
            (places, sent)
        });
        let mut answers: Vec<Result<(), BusError>> = vec![Ok(()); total];
        for (places, sent) in join_all(sends).await {
            for place in places {
                answers[place] = sent.clone();
            }
        }
        answers
    }
}

fn share(offers: Vec<(usize, v1::Offer)>, most: usize, limit: usize) -> Vec<Vec<(usize, v1::Offer)>> {
    let mut groups: Vec<Vec<(usize, v1::Offer)>> = Vec::new();
    let mut size = 0;
    for offer in offers {
        let own = encoded_len(&offer.1) + 16;
        match groups.last_mut() {
            Some(group) if group.len() < most && size + own <= limit => {
                size += own;
                group.push(offer);
            }
            _ => {
                size = own;
                groups.push(vec![offer]);
            }
        }
    }
    groups
}
