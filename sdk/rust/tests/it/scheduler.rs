//! A scheduler without records: answers starts and extensions as a test requires, collects results, sends `settled`. It
//! uses the real protocol over a real NATS.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use muster_bus::{Bus, BusSettings, ConsumerSpec, subjects};
use muster_domain::{JobId, Tenant, Topic, WorkerId};
use muster_sdk::{Worker, WorkerBuilder};
use muster_testkit::{NatsServer, until};
use muster_wire::{Body, v1};
use tokio::task::JoinSet;

pub(super) const SOON: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct Wishes {
    /// How many start requests to leave unanswered.
    pub(super) deaf_to_starts: AtomicUsize,
    /// How many starts to answer `unknown`.
    pub(super) unknown_starts: AtomicUsize,
    /// Do not answer results.
    pub(super) mute_about_results: AtomicBool,
    /// Answer extensions that the attempt has ended as its worker reported.
    pub(super) ended_by_worker: AtomicBool,
    /// The answers to extensions, by job; `OK` by default.
    pub(super) standings: Mutex<HashMap<JobId, v1::Standing>>,
    /// The `timeout_ms` of future offers.
    pub(super) timeout_ms: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Heard {
    pub(super) starts: Mutex<Vec<v1::StartRequest>>,
    pub(super) extensions: Mutex<Vec<v1::ExtendAsk>>,
    pub(super) results: Mutex<Vec<v1::Result>>,
    pub(super) beats: Mutex<Vec<v1::Heartbeat>>,
    pub(super) handshakes: AtomicUsize,
    won: Mutex<HashMap<JobId, (Bytes, u64)>>,
}

pub(super) struct Scheduler {
    pub(super) nats: NatsServer,
    pub(super) bus: Bus,
    pub(super) wishes: Arc<Wishes>,
    pub(super) heard: Arc<Heard>,
    tasks: JoinSet<()>,
}

impl Scheduler {
    pub(super) async fn start() -> Scheduler {
        let nats = NatsServer::start().await;
        let bus = Bus::connect(BusSettings::new(nats.url(), "scheduler")).await.unwrap();
        bus.connected().await;
        bus.ensure_streams().await.unwrap();
        let mut scheduler =
            Scheduler { nats, bus, wishes: Arc::default(), heard: Arc::default(), tasks: JoinSet::new() };
        scheduler.answer_starts().await;
        scheduler.answer_extensions().await;
        scheduler.listen_to_hearts().await;
        scheduler.collect_results().await;
        scheduler
    }

    async fn answer_starts(&mut self) {
        let mut asks = self.bus.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
        let (wishes, heard) = (Arc::clone(&self.wishes), Arc::clone(&self.heard));
        self.tasks.spawn(async move {
            while let Some(ask) = asks.next().await {
                let Body::Start(request) = &ask.body else { continue };
                heard.starts.lock().unwrap().push(request.clone());
                let items = request.items.iter().map(|item| heard.start(item, &wishes)).collect();
                if !used_up(&wishes.deaf_to_starts) {
                    continue;
                }
                ask.respond(Body::Started(v1::StartReply { items })).await.unwrap();
            }
        });
    }

    async fn answer_extensions(&mut self) {
        let mut asks = self.bus.subscribe(&subjects::extend(), Some(subjects::SCHEDULERS)).await.unwrap();
        let (wishes, heard) = (Arc::clone(&self.wishes), Arc::clone(&self.heard));
        self.tasks.spawn(async move {
            while let Some(ask) = asks.next().await {
                let Body::Extend(request) = &ask.body else { continue };
                heard.extensions.lock().unwrap().extend(request.items.clone());
                let standings = wishes.standings.lock().unwrap().clone();
                let lease_us = u64::from(!wishes.ended_by_worker.load(Ordering::SeqCst));
                let answer = |item: &v1::ExtendAsk| {
                    let job = JobId::from_slice(&item.job_id).unwrap();
                    let standing = standings.get(&job).copied().unwrap_or(v1::Standing::Ok);
                    v1::ExtendAnswer { job_id: item.job_id.clone(), standing: standing.into(), lease_us }
                };
                let items = request.items.iter().map(answer).collect();
                ask.respond(Body::Extended(v1::ExtendReply { items })).await.unwrap();
            }
        });
    }

    async fn listen_to_hearts(&mut self) {
        let mut beats = self.bus.subscribe(&subjects::heartbeat(), None).await.unwrap();
        let mut hands = self.bus.subscribe(&subjects::handshake(), None).await.unwrap();
        let heard = Arc::clone(&self.heard);
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    Some(beat) = beats.next() => {
                        let Body::Heartbeat(beat) = beat.body else { continue };
                        heard.beats.lock().unwrap().push(beat);
                    }
                    Some(_) = hands.next() => { heard.handshakes.fetch_add(1, Ordering::SeqCst); }
                    else => break,
                }
            }
        });
    }

    async fn collect_results(&mut self) {
        let consumer = self.bus.consumer(ConsumerSpec::scheduler(subjects::result())).await.unwrap();
        let (bus, wishes, heard) = (self.bus.clone(), Arc::clone(&self.wishes), Arc::clone(&self.heard));
        self.tasks.spawn(async move {
            loop {
                for delivery in consumer.fetch(64, Duration::from_secs(1)).await.unwrap_or_default() {
                    delivery.ack().await;
                    let Body::Result(group) = delivery.body else { continue };
                    for result in group.items {
                        heard.results.lock().unwrap().push(result.clone());
                        if !wishes.mute_about_results.load(Ordering::SeqCst) {
                            settle(&bus, &result).await;
                        }
                    }
                }
            }
        });
    }

    pub(super) fn worker(&self, id: &str) -> WorkerBuilder {
        Worker::builder(self.nats.url()).id(id).lease(Duration::from_millis(1500))
    }

    /// Offers jobs on a topic, all in one message.
    pub(super) async fn offer<const N: usize>(&self, topic: &str, payloads: [&str; N]) -> [JobId; N] {
        let jobs = payloads.map(|_| JobId::mint(0));
        self.offer_again(topic, &jobs, &payloads).await;
        jobs
    }

    pub(super) async fn offer_again(&self, topic: &str, jobs: &[JobId], payloads: &[&str]) {
        let items = jobs.iter().zip(payloads).map(|(job, payload)| self.offer_of(topic, *job, payload)).collect();
        self.publish(topic, items).await;
    }

    /// A valid offer.
    pub(super) fn offer_of(&self, topic: &str, job: JobId, payload: &str) -> v1::Offer {
        v1::Offer {
            job_id: Bytes::copy_from_slice(job.as_bytes()),
            version: 2,
            dispatched_at: 1,
            tenant: "default".into(),
            topic: topic.into(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            max_attempts: 5,
            timeout_ms: u32::try_from(self.wishes.timeout_ms.load(Ordering::SeqCst)).unwrap(),
            deadline: 0,
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            ..v1::Offer::default()
        }
    }

    /// Publishes offers on a topic in one message, valid or not.
    pub(super) async fn publish(&self, topic: &str, items: Vec<v1::Offer>) {
        let group = v1::OfferGroup { items };
        let subject = subjects::offer(&Tenant::default(), Topic::parse(topic).unwrap());
        self.bus.publish(&subject, None, None, Body::Offer(group)).await.unwrap();
    }

    /// Waits until this many results have arrived, and returns them.
    pub(super) async fn results(&self, count: usize) -> Vec<v1::Result> {
        until(SOON, &format!("{count} results"), async || {
            let results = self.heard.results.lock().unwrap().clone();
            (results.len() >= count).then_some(results)
        })
        .await
    }

    pub(super) async fn tell(&self, worker: &str, control: v1::Control) {
        let subject = subjects::worker_ctl(&WorkerId::parse(worker).unwrap());
        self.bus.broadcast(&subject, Body::Control(control)).await.unwrap();
    }

    /// Waits until a topic has no offer any more.
    pub(super) async fn all_taken(&self, topic: &str) {
        let subject = subjects::offer(&Tenant::default(), Topic::parse(topic).unwrap());
        until(SOON, "the offers to be acked", async || {
            (self.bus.subject_count(&subject).await.ok()? == 0).then_some(())
        })
        .await;
    }

    /// Waits until a worker reported that it leaves.
    pub(super) async fn goodbye(&self, worker: &str) {
        until(SOON, "the goodbye", async || {
            let beats = self.heard.beats.lock().unwrap();
            beats.iter().any(|beat| beat.worker == worker && beat.leaving && !beat.consuming).then_some(())
        })
        .await;
    }

    /// Every start id that workers have used for a job.
    pub(super) fn start_ids(&self, job: JobId) -> Vec<Bytes> {
        let starts = self.heard.starts.lock().unwrap();
        let items = starts.iter().flat_map(|request| &request.items);
        items.filter(|ask| ask.job_id[..] == job.as_bytes()[..]).map(|ask| ask.start_id.clone()).collect()
    }
}

pub(super) async fn settle(bus: &Bus, result: &v1::Result) {
    let settled = v1::Settled { job_id: result.job_id.clone(), fence: result.fence, standing: v1::Standing::Ok.into() };
    let control = v1::Control { settled: vec![settled], ..v1::Control::default() };
    let subject = subjects::worker_ctl(&WorkerId::parse(&result.worker).unwrap());
    let _ = bus.broadcast(&subject, Body::Control(control)).await;
}

impl Heard {
    /// The gate: the first start id wins a job, and only that id is answered `go` again; a worker that could not read
    /// its offer is answered `gone`.
    fn start(&self, ask: &v1::StartAsk, wishes: &Wishes) -> v1::StartAnswer {
        let job = JobId::from_slice(&ask.job_id).unwrap();
        let mut answer = v1::StartAnswer { job_id: ask.job_id.clone(), ..v1::StartAnswer::default() };
        if ask.undecodable {
            answer.set_verdict(v1::start_answer::Verdict::Gone);
            return answer;
        }
        if !used_up(&wishes.unknown_starts) {
            answer.set_verdict(v1::start_answer::Verdict::Unknown);
            return answer;
        }
        let mut won = self.won.lock().unwrap();
        let fence = 1000 + won.len() as u64;
        let (winner, fence) = won.entry(job).or_insert((ask.start_id.clone(), fence)).clone();
        if winner != ask.start_id {
            answer.set_verdict(v1::start_answer::Verdict::Gone);
            return answer;
        }
        answer.set_verdict(v1::start_answer::Verdict::Go);
        v1::StartAnswer { fence, attempt: 1, max_attempts: 5, lease_us: 1, ..answer }
    }

    pub(super) fn fence(&self, job: JobId) -> u64 {
        self.won.lock().unwrap()[&job].1
    }
}

/// Decrements the counter; true if it was already zero.
fn used_up(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err()
}

pub(super) fn job_of(result: &v1::Result) -> JobId {
    JobId::from_slice(&result.job_id).unwrap()
}

/// Runs a worker beside the test.
pub(super) fn beside(worker: Worker) -> (muster_sdk::WorkerHandle, JoinSet<muster_sdk::Summary>) {
    let handle = worker.handle();
    let mut running = JoinSet::new();
    running.spawn(async move { worker.run().await.unwrap() });
    (handle, running)
}

pub(super) async fn left(mut running: JoinSet<muster_sdk::Summary>) -> muster_sdk::Summary {
    tokio::time::timeout(SOON, running.join_next()).await.expect("the worker leaves").unwrap().unwrap()
}
