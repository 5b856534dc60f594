//! Publishes offers on the subjects of their topics. If the record is to become `dispatched`, it does so first. The
//! offer follows, under an id derived from the decision, so that a repetition is the same message.

use std::collections::HashMap;

use futures_util::future::join_all;
use muster_bus::{BusError, Subject, subjects};
use muster_domain::{Head, Line, Tenant, TraceParent, line::pool_of};
use muster_store::Record;
use muster_telemetry::spans;
use muster_wire::{Body, carried_of, encoded_len, job_id, run_bytes, v1};
use sha2::{Digest, Sha256};

use crate::Flow;

/// The version of a job that has not moved since its submit. Such a job is offered without a write to its record, so
/// the record holds no moment of dispatch.
const ACCEPTED: u32 = 1;

/// How offers are published on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offering {
    /// The most offers in one message: several where jobs are short and many, otherwise one.
    pub most: usize,
    /// The decision was made anew, so the stream must not drop the offer as a duplicate.
    pub again: bool,
}

/// The offer of a dispatched job.
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
        carried: carried_of(run_bytes(record.spec.run)),
    }
}

/// A short id derived from jobs and versions; short, because the stream remembers it for minutes. Versions begin anew
/// when a job that Redis lost is recreated, so the id also contains the moment of dispatch, if the record has one.
fn message_id(items: &[v1::Offer]) -> String {
    let mut hasher = Sha256::new();
    for offer in items {
        hasher.update(&offer.job_id);
        hasher.update(offer.version.to_be_bytes());
        if offer.version > ACCEPTED {
            hasher.update(offer.dispatched_at.to_be_bytes());
        }
    }
    hex::encode(&hasher.finalize()[..12])
}

impl Flow {
    /// Publishes offers and answers for each one. The stream drops a repetition of the same decision as a duplicate.
    pub async fn offer(&self, offers: Vec<v1::Offer>, how: Offering) -> Vec<Result<(), BusError>> {
        let total = offers.len();
        let spans = spans_of(&offers);
        let limit = self.bus.max_message();
        let messages = by_line(offers).into_iter().flat_map(|offers| {
            let subject = offers.first().and_then(|(_, offer)| subject_of(offer));
            let groups = share(offers, how.most, limit);
            groups.into_iter().filter_map(move |group| Some((subject.clone()?, group))).collect::<Vec<_>>()
        });
        let sends = messages.map(|(subject, group)| async move {
            let (places, items): (Vec<usize>, Vec<_>) = group.into_iter().unzip();
            let id = (!how.again).then(|| message_id(&items));
            let trace = items.first().and_then(|o| TraceParent::parse(&o.traceparent));
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
        for (place, mut span) in spans {
            if let Err(fault) = &answers[place] {
                span.failed(&fault.to_string());
            }
        }
        answers
    }
}

/// Groups offers by line, each with its place in the input.
fn by_line(offers: Vec<v1::Offer>) -> Vec<Vec<(usize, v1::Offer)>> {
    let mut lines: Vec<Vec<(usize, v1::Offer)>> = Vec::new();
    let mut known: HashMap<(String, String, String), usize> = HashMap::new();
    let mut last = 0;
    for (place, offer) in offers.into_iter().enumerate() {
        // Usually all offers belong to one line: look up the name only where the line changes.
        let same = |(_, other): &(usize, v1::Offer)| {
            (&other.tenant, &other.topic, &other.pool) == (&offer.tenant, &offer.topic, &offer.pool)
        };
        if !lines.get(last).and_then(|line| line.first()).is_some_and(same) {
            let name = (offer.tenant.clone(), offer.topic.clone(), offer.pool.clone());
            last = *known.entry(name).or_insert(lines.len());
            if last == lines.len() {
                lines.push(Vec::new());
            }
        }
        lines[last].push((place, offer));
    }
    lines
}

/// The subject of an offer. The names in an offer come from a record, which stores only valid names.
fn subject_of(offer: &v1::Offer) -> Option<Subject> {
    let (tenant, line) = (Tenant::parse(&offer.tenant).ok()?, Line::named(&offer.topic, &offer.pool).ok()?);
    Some(subjects::offer(&tenant, &line))
}

/// The spans of these offers, each with its place. If spans are not exported, reads nothing and returns none.
fn spans_of(offers: &[v1::Offer]) -> Vec<(usize, spans::Dispatch)> {
    if !spans::exported() {
        return Vec::new();
    }
    let span = |(place, offer): (usize, &v1::Offer)| {
        let (trace, id) = (spans::carried(&offer.traceparent)?, job_id(&offer.job_id).ok()?);
        Some((place, spans::Dispatch::begin(trace, id, &offer.topic, offer.version)?))
    };
    offers.iter().enumerate().filter_map(span).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_of_a_dispatch_has_its_id_and_one_in_another_life_of_the_job_has_not() {
        let id = |version, dispatched_at| {
            message_id(&[v1::Offer { job_id: vec![7; 16].into(), version, dispatched_at, ..Default::default() }])
        };
        assert_eq!(id(2, 100), id(2, 100));
        assert_ne!(id(2, 100), id(3, 100));
        assert_ne!(id(2, 100), id(2, 900), "the same version, dispatched again");
        assert_eq!(id(1, 100), id(1, 900), "the record does not say when it is offered as it is");
    }

    #[test]
    fn offers_of_a_line_are_together_and_keep_their_places() {
        let offer = |topic: &str| v1::Offer { tenant: "a".into(), topic: topic.into(), ..Default::default() };
        let lines = by_line(["x", "x", "y", "x", "z", "y"].map(offer).into());
        let places: Vec<Vec<usize>> = lines.iter().map(|line| line.iter().map(|(place, _)| *place).collect()).collect();
        assert_eq!(places, [vec![0, 1, 3], vec![2, 5], vec![4]]);
        assert!(by_line(Vec::new()).is_empty());
    }
}
