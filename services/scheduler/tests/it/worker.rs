//! A hand-written worker: every step of its protocol is a separate call.

use std::time::Duration;

use muster_bus::{Bus, BusError, Consumer, ConsumerSpec, Delivery, Subject, Subscription, subjects};
use muster_domain::{JobId, StartId, Tenant, Topic, WorkerId};
use muster_testkit::until;
use muster_wire::{
    Body, job_id,
    v1::{
        CancelNotice, ExtendAsk, ExtendRequest, Failed, Failure, Offer, Progress, Release, Result as Report,
        ResultGroup, Settled, Standing, StartAnswer, StartAsk, StartRequest, Success, result::Kind,
        start_answer::Verdict,
    },
};

use crate::stack::{SOON, Stack};

pub(crate) struct Worker {
    bus: Bus,
    pub(crate) id: WorkerId,
    consumer: Consumer,
    ctl: Subscription,
    pub(crate) lease_ms: u32,
}

/// An attempt that a worker has started.
pub(crate) struct Attempt {
    pub(crate) job: JobId,
    pub(crate) fence: u64,
    pub(crate) number: u32,
    offer: Offer,
}

/// An offer as it was delivered.
pub(crate) struct Offered {
    pub(crate) offer: Offer,
    pub(crate) delivery: Delivery,
}

impl Offered {
    pub(crate) fn job(&self) -> JobId {
        job_id(&self.offer.job_id).unwrap()
    }
}

impl Worker {
    pub(crate) async fn on(stack: &Stack, name: &str, topic: &str) -> Worker {
        let bus = stack.bus().clone();
        let id = WorkerId::parse(name).unwrap();
        let (tenant, topic) = (Tenant::default(), Topic::parse(topic).unwrap());
        let consumer = bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap();
        let ctl = bus.subscribe(&subjects::worker_ctl(&id), None).await.unwrap();
        Worker { bus, id, consumer, ctl, lease_ms: 30_000 }
    }

    /// The next offer, within `limit`. The bus may be down for some of that time.
    pub(crate) async fn offered(&self, limit: Duration) -> Offered {
        until(limit, "an offer", async || self.fetched(Duration::from_millis(200)).await.unwrap_or_default()).await
    }

    pub(crate) async fn try_offered(&self, patience: Duration) -> Option<Offered> {
        self.fetched(patience).await.unwrap()
    }

    async fn fetched(&self, patience: Duration) -> Result<Option<Offered>, BusError> {
        let Some(delivery) = self.consumer.fetch(1, patience).await?.pop() else { return Ok(None) };
        let Body::Offer(group) = &delivery.body else { panic!("not an offer") };
        assert_eq!(group.items.len(), 1, "a quiet topic has one offer a message");
        Ok(Some(Offered { offer: group.items[0].clone(), delivery }))
    }

    /// Sends one start request for one offer.
    pub(crate) async fn ask(&self, offer: &Offer, start_id: StartId) -> StartAnswer {
        let item = StartAsk {
            job_id: offer.job_id.clone(),
            version: offer.version,
            dispatched_at: offer.dispatched_at,
            start_id: start_id.0.to_vec().into(),
            lease_ms: self.lease_ms,
            undecodable: false,
            tenant: offer.tenant.clone(),
            topic: offer.topic.clone(),
            pool: offer.pool.clone(),
            carried: offer.carried.clone(),
        };
        self.ask_raw(item).await
    }

    pub(crate) async fn ask_raw(&self, item: StartAsk) -> StartAnswer {
        let body = Body::Start(StartRequest { worker: self.id.to_string(), items: vec![item] });
        let answer = self.answer(&subjects::start(), body).await;
        let Body::Started(reply) = answer else { panic!("not an answer to a start") };
        reply.items.into_iter().next().unwrap()
    }

    /// Starts the next offer that is not gone.
    pub(crate) async fn start_next(&self, limit: Duration) -> Attempt {
        loop {
            let Offered { offer, delivery } = self.offered(limit).await;
            let answer = self.ask(&offer, StartId::random()).await;
            delivery.ack().await;
            match answer.verdict() {
                Verdict::Go => {
                    let job = job_id(&offer.job_id).unwrap();
                    return Attempt { job, fence: answer.fence, number: answer.attempt, offer };
                }
                // A server that was killed may have lost an ack.
                Verdict::Gone => {}
                other => panic!("{other:?}: {}", answer.reason),
            }
        }
    }

    pub(crate) async fn succeed(&self, attempt: &Attempt, json: &str) {
        let success = Success { result: json.as_bytes().to_vec().into(), ..Default::default() };
        self.report(attempt, Kind::Success(success)).await;
    }

    pub(crate) async fn fail(&self, attempt: &Attempt, retryable: bool) {
        self.fail_with(attempt, "boom", retryable).await;
    }

    pub(crate) async fn fail_with(&self, attempt: &Attempt, code: &str, retryable: bool) {
        let failure = Failure { code: code.into(), message: "it broke".into(), retryable, ..Default::default() };
        self.report(attempt, Kind::Failed(Failed { failure: Some(failure), retry_in_ms: None })).await;
    }

    pub(crate) async fn release(&self, attempt: &Attempt) {
        self.release_for(attempt, Duration::ZERO).await;
    }

    /// Gives the job back, not to be started before this time has passed.
    pub(crate) async fn release_for(&self, attempt: &Attempt, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap();
        self.report(attempt, Kind::Release(Release { delay_ms })).await;
    }

    async fn report(&self, attempt: &Attempt, kind: Kind) {
        let item = Report {
            job_id: attempt.offer.job_id.clone(),
            fence: attempt.fence,
            worker: self.id.to_string(),
            tenant: attempt.offer.tenant.clone(),
            topic: attempt.offer.topic.clone(),
            slot: attempt.offer.slot.clone(),
            traceparent: attempt.offer.traceparent.clone(),
            carried: attempt.offer.carried.clone(),
            kind: Some(kind),
        };
        let body = Body::Result(ResultGroup { items: vec![item] });
        self.bus.publish(&subjects::result(), None, None, body).await.unwrap();
    }

    /// Extends the lease with progress. Returns the standing of the attempt.
    pub(crate) async fn extend(&self, attempt: &Attempt, percent: f64) -> Standing {
        let item = ExtendAsk {
            job_id: attempt.offer.job_id.clone(),
            fence: attempt.fence,
            lease_ms: self.lease_ms,
            progress: Some(Progress { percent: Some(percent), ..Default::default() }),
            tenant: attempt.offer.tenant.clone(),
            topic: attempt.offer.topic.clone(),
        };
        let body = Body::Extend(ExtendRequest { worker: self.id.to_string(), items: vec![item] });
        let answer = self.answer(&subjects::extend(), body).await;
        let Body::Extended(reply) = answer else { panic!("not an answer to an extension") };
        reply.items[0].standing()
    }

    /// Asks again until there is an answer, as workers do: a scheduler that is ready, or connected again, receives
    /// requests a moment later.
    async fn answer(&self, subject: &Subject, body: Body) -> Body {
        until(SOON, "an answer", async || self.bus.request(subject, body.clone(), Duration::from_secs(5)).await.ok())
            .await
    }

    /// The next `settled` notice about a report of this worker.
    pub(crate) async fn settled(&mut self) -> Settled {
        loop {
            if let Some(settled) = self.control().await.0.into_iter().next() {
                return settled;
            }
        }
    }

    /// The next notice about an attempt that the scheduler or a user ended.
    pub(crate) async fn cancelled(&mut self) -> CancelNotice {
        loop {
            if let Some(notice) = self.control().await.1.into_iter().next() {
                return notice;
            }
        }
    }

    async fn control(&mut self) -> (Vec<Settled>, Vec<CancelNotice>) {
        let received = tokio::time::timeout(SOON, self.ctl.next()).await.expect("a notice").unwrap();
        let Body::Control(control) = received.body else { panic!("not a notice") };
        (control.settled, control.cancelled)
    }
}
