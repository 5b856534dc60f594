//! A worker driven by hand: every step of its protocol is a separate call, so that a test may stop, repeat or
//! contradict at any step.

use std::time::Duration;

use muster_bus::{Bus, BusSettings, Consumer, ConsumerSpec, Delivery, Subject, Subscription, subjects};
use muster_domain::{JobId, StartId, Tenant, Topic, WorkerId};
use muster_testkit::until;
use muster_wire::{
    Body, job_id,
    v1::{
        CancelNotice, ExtendAnswer, ExtendAsk, ExtendRequest, Offer, OfferGroup, Progress, Release, Result as Report,
        ResultGroup, Settled, StartAnswer, StartAsk, StartRequest, Success, result::Kind,
    },
};

use crate::Stack;

/// How long an answer or a notice may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(30);

/// A worker of one topic of the default tenant.
pub struct HandWorker {
    /// The connection of the worker, for any other use.
    pub bus: Bus,
    /// The worker's name.
    pub id: WorkerId,
    /// The lease that the worker asks for.
    pub lease_ms: u32,
    consumer: Consumer,
    ctl: Subscription,
}

/// An attempt that the worker holds.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The job of the attempt.
    pub job: JobId,
    /// The fence of the attempt.
    pub fence: u64,
    /// The number of the attempt.
    pub number: u32,
    /// The offer that led to the attempt.
    pub offer: Offer,
}

/// A connection of the test's own to the stack's bus.
pub async fn bus_of(stack: &Stack, name: &str) -> Bus {
    let (store, settings) = (stack.store().await, BusSettings::new(stack.state().nats_url, name));
    let bus = Bus::connect(settings).await.expect("a bus");
    bus.set_clock(std::sync::Arc::new(move || store.now()));
    bus.connected().await;
    bus
}

/// Publishes an offer once more, under a fresh message id.
pub async fn offer_again(bus: &Bus, offer: &Offer) {
    let (tenant, topic) = (Tenant::parse(&offer.tenant), Topic::parse(&offer.topic));
    let subject = subjects::offer(&tenant.expect("a tenant"), topic.expect("a topic"));
    let body = Body::Offer(OfferGroup { items: vec![offer.clone()] });
    bus.publish(&subject, None, None, body).await.expect("published");
}

/// Waits until the bus has no offer of this topic any more: each was started or dropped.
pub async fn offers_are_gone(bus: &Bus, topic: &str, within: Duration) {
    let subject = subjects::offer(&Tenant::default(), Topic::parse(topic).expect("a topic"));
    until(within, "every offer to be taken", async || (bus.subject_count(&subject).await == Ok(0)).then_some(())).await;
}

impl HandWorker {
    /// Creates a worker with a connection of its own and a lease of 30 s.
    pub async fn on(stack: &Stack, name: &str, topic: &str) -> HandWorker {
        let bus = bus_of(stack, name).await;
        let id = WorkerId::parse(name).expect("a worker's name");
        let topic = Topic::parse(topic).expect("a topic");
        let consumer = bus.consumer(ConsumerSpec::offers(&Tenant::default(), &topic)).await.expect("a consumer");
        let ctl = bus.subscribe(&subjects::worker_ctl(&id), None).await.expect("a subscription");
        bus.flush(ANSWER).await;
        HandWorker { bus, id, lease_ms: 30_000, consumer, ctl }
    }

    /// The next offer; it stays on the stream until its delivery is acked.
    pub async fn offered(&self) -> (Offer, Delivery) {
        let delivery = until(ANSWER, "an offer", async || {
            self.consumer.fetch(1, Duration::from_millis(500)).await.unwrap_or_default().pop()
        })
        .await;
        let Body::Offer(group) = &delivery.body else { panic!("not an offer") };
        assert_eq!(group.items.len(), 1, "a quiet topic has one offer a message");
        (group.items[0].clone(), delivery)
    }

    /// Asks to start this offer.
    pub async fn ask(&self, offer: &Offer, start_id: StartId) -> StartAnswer {
        ask(&self.bus, self.id.as_str(), offer, start_id, self.lease_ms).await
    }

    /// Starts the next offer, which must be granted.
    pub async fn start_next(&self) -> Attempt {
        let (offer, delivery) = self.offered().await;
        let answer = self.ask(&offer, StartId::random()).await;
        delivery.ack().await;
        assert!(answer.fence > 0, "not started: {answer:?}");
        let job = job_id(&offer.job_id).expect("a job id");
        Attempt { job, fence: answer.fence, number: answer.attempt, offer }
    }

    /// Extends the lease, with progress.
    pub async fn extend(&self, attempt: &Attempt, percent: f64) -> ExtendAnswer {
        let item = ExtendAsk {
            job_id: attempt.offer.job_id.clone(),
            fence: attempt.fence,
            lease_ms: self.lease_ms,
            progress: Some(Progress { percent: Some(percent), ..Default::default() }),
            tenant: attempt.offer.tenant.clone(),
            topic: attempt.offer.topic.clone(),
        };
        let body = Body::Extend(ExtendRequest { worker: self.id.to_string(), items: vec![item] });
        let answer = answered(&self.bus, &subjects::extend(), body).await;
        let Body::Extended(reply) = answer else { panic!("not an answer to an extension") };
        reply.items.into_iter().next().expect("one answer")
    }

    /// Reports success with this result.
    pub async fn succeed(&self, attempt: &Attempt, json: &str) {
        let success = Success { result: json.as_bytes().to_vec().into(), ..Default::default() };
        self.report(attempt, Kind::Success(success)).await;
    }

    /// Gives the attempt back.
    pub async fn release(&self, attempt: &Attempt) {
        self.report(attempt, Kind::Release(Release { delay_ms: 0 })).await;
    }

    /// Reports any result, under a fresh message id.
    pub async fn report(&self, attempt: &Attempt, kind: Kind) {
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
        self.bus.publish(&subjects::result(), None, None, body).await.expect("published");
    }

    /// The next answer about a report of this worker.
    pub async fn settled(&mut self) -> Settled {
        loop {
            if let Some(settled) = self.control().await.0.into_iter().next() {
                return settled;
            }
        }
    }

    /// The next notice about an attempt that was ended from outside.
    pub async fn told_to_stop(&mut self) -> CancelNotice {
        loop {
            if let Some(notice) = self.control().await.1.into_iter().next() {
                return notice;
            }
        }
    }

    async fn control(&mut self) -> (Vec<Settled>, Vec<CancelNotice>) {
        let received = tokio::time::timeout(ANSWER, self.ctl.next()).await.expect("a notice").expect("a notice");
        let Body::Control(control) = received.body else { panic!("not a notice") };
        (control.settled, control.cancelled)
    }
}

/// Asks until there is an answer, as workers do: a scheduler that is ready, or back on the bus, starts to listen a
/// moment later.
async fn answered(bus: &Bus, subject: &Subject, body: Body) -> Body {
    until(ANSWER, "an answer", async || bus.request(subject, body.clone(), Duration::from_secs(10)).await.ok()).await
}

/// Asks to start this offer, in the name of any worker.
pub async fn ask(bus: &Bus, worker: &str, offer: &Offer, start_id: StartId, lease_ms: u32) -> StartAnswer {
    let item = StartAsk {
        job_id: offer.job_id.clone(),
        version: offer.version,
        dispatched_at: offer.dispatched_at,
        start_id: start_id.0.to_vec().into(),
        lease_ms,
        undecodable: false,
        tenant: offer.tenant.clone(),
        topic: offer.topic.clone(),
        pool: offer.pool.clone(),
        carried: offer.carried.clone(),
    };
    let body = Body::Start(StartRequest { worker: worker.to_owned(), items: vec![item] });
    let answer = answered(bus, &subjects::start(), body).await;
    let Body::Started(reply) = answer else { panic!("not an answer to a start") };
    reply.items.into_iter().next().expect("one answer")
}
