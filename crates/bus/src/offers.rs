//! Offers that make no sense, and what happens to their jobs.
//!
//! A message of offers names its jobs in a header too, so that a reader that cannot read the body still knows the jobs.
//! This module knows that header, and which offers make sense on the subject that they came on. A caller that pulls
//! offers gets only valid ones. The job of an invalid offer is rejected through `start`, and its message is not
//! acknowledged before a scheduler has confirmed the rejection. A message that names no job becomes a dead letter. The
//! schedulers decide what a rejection does to a job.

use std::{fmt::Write, time::Duration};

use async_nats::{HeaderMap, HeaderName};
use muster_domain::JobId;
use muster_wire::{
    Body, job_id,
    v1::{Offer, StartAsk, StartRequest, start_answer::Verdict},
};

use crate::{Bus, schedulers::Question, subjects};

/// The header with the jobs of a message: for each job its id in hex, a colon, and the version under which it is
/// offered; separated by commas.
pub(crate) const JOBS: HeaderName = HeaderName::from_static("Muster-Jobs");
/// How long a scheduler may take to reject a job.
const START_LIMIT: Duration = Duration::from_secs(5);

/// A job with the version under which it was offered.
pub(crate) type Named = (JobId, u32);

/// The value of [`JOBS`] for a body; none if the body offers nothing.
pub(crate) fn named(body: &Body) -> Option<String> {
    let Body::Offer(group) = body else { return None };
    let mut value = String::with_capacity(group.items.len() * 36);
    for offer in &group.items {
        if !value.is_empty() {
            value.push(',');
        }
        value.push_str(&hex::encode(&offer.job_id));
        // Writing to a string does not fail.
        let _ = write!(value, ":{}", offer.version);
    }
    Some(value)
}

/// The jobs that a message names in its header.
pub(crate) fn jobs_of(headers: Option<&HeaderMap>) -> Vec<Named> {
    let value = headers.and_then(|headers| headers.get(JOBS)).map_or("", |value| value.as_str());
    let read = |name: &str| {
        let (id, version) = name.split_once(':')?;
        Some((job_id(&hex::decode(id).ok()?).ok()?, version.parse().ok()?))
    };
    value.split(',').filter_map(read).collect()
}

/// What is wrong with some offers of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bad {
    /// The jobs of the invalid offers that name one.
    pub(crate) jobs: Vec<Named>,
    /// What is wrong with these offers.
    pub(crate) senseless: Vec<String>,
    /// What is wrong with the offers that name no job.
    pub(crate) nameless: Vec<String>,
}

/// Removes the offers from a group that make no sense on this subject; returns none if all do.
pub(crate) fn weed(subject: &str, items: &mut Vec<Offer>) -> Option<Bad> {
    let (tenant, topic, pool) = subjects::offered_on(subject)?;
    let belongs = |offer: &Offer| offer.tenant == tenant && offer.topic == topic && offer.pool == pool;
    if items.iter().all(|offer| job_id(&offer.job_id).is_ok() && belongs(offer)) {
        return None;
    }
    let (mut bad, mut place, of) = (Bad::default(), 0, items.len());
    items.retain(|offer| {
        place += 1;
        match job_id(&offer.job_id) {
            Ok(_) if belongs(offer) => return true,
            Ok(id) => {
                bad.jobs.push((id, offer.version));
                let (tenant, topic) = (&offer.tenant, &offer.topic);
                bad.senseless
                    .push(format!("offer {place} of {of}, for job {id}, has tenant {tenant:?} and topic {topic:?}"));
            }
            Err(fault) => bad.nameless.push(format!("offer {place} of {of}: {fault}")),
        }
        false
    });
    Some(bad)
}

impl Bus {
    /// Has the schedulers end jobs that were offered on this subject and cannot be read. Returns false unless a
    /// scheduler has confirmed each job: then the caller must ask again, which is harmless.
    pub(crate) async fn reject_jobs(&self, subject: &str, jobs: &[Named]) -> bool {
        let Some((tenant, topic, pool)) = subjects::offered_on(subject).filter(|_| !jobs.is_empty()) else {
            return true;
        };
        let ask = |(job, version): &Named| StartAsk {
            job_id: job.as_bytes().to_vec().into(),
            version: *version,
            undecodable: true,
            tenant: tenant.to_owned(),
            topic: topic.to_owned(),
            pool: pool.to_owned(),
            ..StartAsk::default()
        };
        let items = jobs.iter().map(ask).collect();
        let request = Body::Start(StartRequest { worker: self.instance().to_owned(), items });
        let answered = self.ask_schedulers(Question::Start, request, START_LIMIT).await;
        let Ok(Body::Started(reply)) = answered else { return false };
        let done = |verdict| !matches!(verdict, Verdict::Retry | Verdict::Unspecified);
        reply.items.len() == jobs.len() && reply.items.iter().all(|answer| done(answer.verdict()))
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::v1::OfferGroup;

    use super::*;

    fn offer(job: &[u8], tenant: &str, topic: &str, pool: &str) -> Offer {
        let (tenant, topic, pool) = (tenant.to_owned(), topic.to_owned(), pool.to_owned());
        Offer { job_id: job.to_vec().into(), version: 7, tenant, topic, pool, ..Offer::default() }
    }

    #[test]
    fn a_message_names_its_jobs_beside_its_body() {
        let jobs = [JobId::mint(0), JobId::mint(1)];
        let items = jobs.map(|job| offer(job.as_bytes(), "", "", "")).to_vec();
        let value = named(&Body::Offer(OfferGroup { items })).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(JOBS, value);
        assert_eq!(jobs_of(Some(&headers)), jobs.map(|job| (job, 7)));
        headers.insert(JOBS, format!("00:1,{0}:x,{0},:,{0}:4", hex::encode(jobs[0].as_bytes())));
        assert_eq!(jobs_of(Some(&headers)), [(jobs[0], 4)], "whatever else stands there is passed over");
        assert_eq!(jobs_of(None), []);
        assert_eq!(named(&Body::Wake(Default::default())), None);
    }

    #[test]
    fn offers_that_make_no_sense_on_their_subject_are_taken_out() {
        let id = JobId::mint(0);
        let (job, good) = (id.as_bytes(), offer(id.as_bytes(), "acme", "mail.send", ""));
        let mut all_good = vec![good.clone(), good.clone()];
        assert_eq!((weed("job.acme.mail.send", &mut all_good), all_good.len()), (None, 2));
        for bad in [
            offer(job, "acme", "mail", ""),
            offer(job, "acme.mail", "send", ""),
            offer(job, "", "", ""),
            offer(job, "acme", "mail.send", "0123456789abcdef"),
        ] {
            let mut items = vec![good.clone(), bad];
            let found = weed("job.acme.mail.send", &mut items).unwrap();
            assert_eq!(
                (found.jobs, found.nameless, items.as_slice()),
                (vec![(id, 7)], vec![], [good.clone()].as_slice())
            );
        }
        let mut items = vec![offer(b"short", "acme", "mail.send", ""), good];
        let found = weed("job.acme.mail.send", &mut items).unwrap();
        assert_eq!(found.nameless, ["offer 1 of 2: field job_id: 5 bytes instead of 16"]);
        assert_eq!((found.jobs, items.len()), (vec![], 1));
        let mut elsewhere = vec![offer(job, "x", "y", "")];
        assert_eq!(weed("worker.w1.jobs", &mut elsewhere), None, "no subject of a line");
    }
}
