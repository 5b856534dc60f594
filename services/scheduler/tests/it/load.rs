//! Many short jobs: every one ends, each started once, through window, backlog and shared messages.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use muster_bus::{Bus, ConsumerSpec, Delivery, subjects};
use muster_chassis::Tasks;
use muster_domain::{JobId, StartId, State, Tenant, Topic};
use muster_store::Fields;
use muster_testkit::until;
use muster_wire::{
    Body, job_id,
    v1::{Offer, Result as Report, ResultGroup, StartAsk, StartRequest, Success, result::Kind, start_answer::Verdict},
};
use tokio::sync::mpsc;

use crate::stack::{Stack, job};

const JOBS: usize = 6_000;
const GROUP: usize = 100;

/// Takes offers as they come, starts them with one request per batch, and reports success at once.
async fn work(bus: Bus, started: mpsc::UnboundedSender<JobId>) {
    let spec = ConsumerSpec::offers(&Tenant::default(), Topic::parse("many").unwrap());
    let consumer = bus.consumer(spec).await.unwrap();
    loop {
        let deliveries = consumer.fetch(64, Duration::from_secs(1)).await.unwrap_or_default();
        let offers: Vec<Offer> = deliveries.iter().flat_map(|d| opened(d).to_vec()).collect();
        if offers.is_empty() {
            continue;
        }
        let ask = |offer: &Offer| StartAsk {
            job_id: offer.job_id.clone(),
            version: offer.version,
            dispatched_at: offer.dispatched_at,
            start_id: StartId::random().0.to_vec().into(),
            lease_ms: 30_000,
            undecodable: false,
            tenant: offer.tenant.clone(),
            topic: offer.topic.clone(),
            pool: offer.pool.clone(),
            carried: offer.carried.clone(),
        };
        let request = StartRequest { worker: "w1".into(), items: offers.iter().map(ask).collect() };
        let request = Body::Start(request);
        // Repeat with the same ids until there is an answer; if no scheduler listens, the error comes at once.
        let answer = loop {
            match bus.request(&subjects::start(), request.clone(), Duration::from_secs(5)).await {
                Ok(answer) => break answer,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let Body::Started(reply) = answer else { panic!("not an answer to a start") };
        let mut items = Vec::new();
        for (offer, answer) in offers.into_iter().zip(reply.items) {
            assert_eq!(offer.job_id, answer.job_id, "answers come in the order of the asks");
            if answer.verdict() != Verdict::Go {
                continue;
            }
            started.send(job_id(&offer.job_id).unwrap()).unwrap();
            items.push(Report {
                job_id: offer.job_id,
                fence: answer.fence,
                worker: "w1".into(),
                tenant: offer.tenant,
                topic: offer.topic,
                slot: offer.slot,
                traceparent: offer.traceparent,
                carried: offer.carried,
                kind: Some(Kind::Success(Success::default())),
            });
        }
        for delivery in deliveries {
            delivery.ack().await;
        }
        bus.publish(&subjects::result(), None, None, Body::Result(ResultGroup { items })).await.unwrap();
    }
}

fn opened(delivery: &Delivery) -> &[Offer] {
    match &delivery.body {
        Body::Offer(group) => &group.items,
        _ => panic!("not an offer"),
    }
}

#[tokio::test]
async fn thousands_of_short_jobs_all_succeed_and_each_starts_once() {
    let stack = Stack::without_scheduler().await;
    let _schedulers = (stack.scheduler("s1").await, stack.scheduler("s2").await);
    let (tell, mut told) = mpsc::unbounded_channel();
    let workers = Tasks::new();
    workers.spawn("worker", work(stack.bus().clone(), tell));
    let mut ids = Vec::new();
    for _ in 0..JOBS / GROUP {
        ids.extend(stack.submit_all(vec![job("many"); GROUP]).await);
    }
    let mut starts: HashMap<JobId, u32> = HashMap::new();
    while starts.len() < JOBS {
        let id = tokio::time::timeout(Duration::from_secs(60), told.recv()).await.expect("all jobs to start").unwrap();
        *starts.entry(id).or_default() += 1;
    }
    let mut left: HashSet<JobId> = ids.iter().copied().collect();
    until(Duration::from_secs(120), "all jobs to succeed", async || {
        let asked: Vec<JobId> = left.iter().copied().collect();
        for record in stack.store().read(&asked, Fields::NONE).await {
            let record = record.unwrap().unwrap();
            if record.head.state() == State::Succeeded {
                assert_eq!((record.head.attempt, record.history.last().unwrap().to), (1, State::Succeeded));
                left.remove(&record.id);
            }
        }
        left.is_empty().then_some(())
    })
    .await;
    while let Ok(id) = told.try_recv() {
        *starts.entry(id).or_default() += 1;
    }
    assert!(starts.values().all(|n| *n == 1), "a job was started twice");
    // An entry is removed after its offer is on the bus; its job may have ended by then.
    until(Duration::from_secs(60), "the backlog to be empty", async || {
        (stack.redis.cli(&["ZCARD", "muster:queue:default:many:normal"]).await == "0").then_some(())
    })
    .await;
    until(Duration::from_secs(60), "no home to be left", async || {
        (stack.store().count_homes().await.unwrap() == 0).then_some(())
    })
    .await;
    workers.drain(Duration::from_millis(10)).await;
}
