//! A worker asks for jobs: the gateway notes which jobs it will get, then starts them, then answers.
//!
//! The note is written before the start and never changes. A repeat of the request, on any gateway, reads the note
//! and asks for the same starts under the same ids. No note is written after the call has ended or its client has
//! left, because this future is dropped then.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use muster_bus::{Question, subjects};
use muster_domain::{JobId, Labels, Line, RequestId, StartId, Time, Topic, WorkerId};
use muster_flow::failpoint;
use muster_store::{Fields, Record};
use muster_wire::{
    Body, job_id,
    v1::{self, start_answer::Verdict},
};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Workers,
    beat::{Beat, EVERY},
    on_bus,
    pull::{Offered, Want},
    raw, readable,
};
use crate::{auth::Caller, problem::Problem};

/// The shortest time that a note is kept.
const LEAST_NOTE: Duration = Duration::from_secs(60);
/// How long the gateway keeps asking for starts.
const START_WITHIN: Duration = Duration::from_secs(5);
/// When to ask again about a job without a record.
const UNKNOWN_AGAIN: Duration = Duration::from_secs(1);

/// The request of a worker for jobs.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) request: RequestId,
    pub(crate) worker: WorkerId,
    pub(crate) topics: Vec<Topic>,
    pub(crate) provides: BTreeMap<String, String>,
    pub(crate) max: usize,
    pub(crate) wait: Duration,
    /// `None`: the lease of the topic.
    pub(crate) lease: Option<Duration>,
}

/// A job that the worker may run now.
#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) job: JobId,
    pub(crate) topic: String,
    pub(crate) payload: bytes::Bytes,
    pub(crate) labels: Labels,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) fence: u64,
    pub(crate) lease: Duration,
    pub(crate) timeout_ms: u32,
    pub(crate) deadline: Option<Time>,
    pub(crate) traceparent: String,
}

/// A job in a note, with its offer if this call has it.
struct Noted {
    job: JobId,
    version: u32,
    offer: v1::Offer,
    offered: Option<Offered>,
}

/// What one call has asked the pullers for.
struct Wishes {
    until: Instant,
    /// Weak, so that the call sees when all pullers have ended.
    give: mpsc::WeakUnboundedSender<Vec<Offered>>,
    /// The lines that the call asks for besides those of its topics.
    lines: Vec<Line>,
}

/// Whether a worker that asks gets jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Work,
    /// The worker was asked to drain.
    Nothing,
}

impl Workers {
    /// Gives the worker jobs to run, or none, and says whether the worker should drain.
    pub(crate) async fn lease(&self, caller: &Caller, asked: &Lease) -> Result<(Vec<Leased>, bool), Problem> {
        let worker = on_bus(&caller.tenant, &asked.worker);
        let store = &self.flow.store;
        let (note, leave) = store.read_lease_note(&caller.tenant, &worker, &asked.request).await?;
        if leave {
            self.beat(caller, &worker, asked, Takes::Nothing).await;
        }
        if let Some(note) = note {
            let noted = self.recall(caller, note).await?;
            return Ok((self.begin(&worker, asked, noted).await?, leave));
        }
        if leave {
            return Ok((Vec::new(), true));
        }
        let (offered, drain) = self.gather(caller, &worker, asked).await?;
        if offered.is_empty() {
            return Ok((Vec::new(), drain));
        }
        let mut at_hand = HashMap::new();
        for offered in offered {
            // The bus passes on no offer without a job id, and has the job of any other unreadable offer ended.
            if let Ok(id) = job_id(&offered.offer.job_id) {
                at_hand.insert((id, offered.offer.version), offered);
            }
        }
        let mine: Vec<(JobId, u32)> = at_hand.keys().copied().collect();
        let ttl = self.note_ttl(asked, at_hand.values().map(|offered| &offered.offer));
        let note = store.note_lease(&caller.tenant, &worker, &asked.request, &mine, ttl).await?;
        failpoint!("lease.after_note");
        let (here, elsewhere): (Vec<_>, Vec<_>) = note.into_iter().partition(|entry| at_hand.contains_key(entry));
        let mut noted = self.recall(caller, elsewhere).await?;
        for (job, version) in here {
            let offered = at_hand.remove(&(job, version));
            let offer = offered.as_ref().map(|o| o.offer.clone()).unwrap_or_default();
            noted.push(Noted { job, version, offer, offered });
        }
        // If another request with the same id was first, the offers that are not in its note go back.
        drop(at_hand);
        Ok((self.begin(&worker, asked, noted).await?, drain))
    }

    /// As long as the longest lease that any of the jobs gets, so that the note exists while one of them runs.
    fn note_ttl<'a>(&self, asked: &Lease, offers: impl Iterator<Item = &'a v1::Offer>) -> Duration {
        let told = |offer: &v1::Offer| self.flow.settings.topic(&offer.tenant, &offer.topic)?.settings.lease_ms;
        let topics = || Some(Duration::from_millis(offers.filter_map(told).max()?.into()));
        asked.lease.or_else(topics).unwrap_or_default().max(LEAST_NOTE)
    }

    /// Waits for offers on any of the topics.
    async fn gather(&self, caller: &Caller, worker: &WorkerId, asked: &Lease) -> Result<(Vec<Offered>, bool), Problem> {
        let until = Instant::now() + asked.wait.max(Duration::from_millis(50));
        let mut control = self.flow.bus.subscribe(&subjects::worker_ctl(worker), None).await.ok();
        let (mut wishes, mut given) = self.wish(caller, worker, asked, until)?;
        let mut heartbeat = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                biased;
                list = given.recv() => match list {
                    Some(mut offered) => {
                        while let Ok(more) = given.try_recv() {
                            offered.extend(more);
                        }
                        offered.truncate(asked.max);
                        return Ok((offered, false));
                    }
                    None if self.stop.is_cancelled() => return Ok((Vec::new(), false)),
                    None => {
                        // The pullers have ended, because the bus did not answer or no call waited: start new ones.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        (wishes, given) = self.wish(caller, worker, asked, until)?;
                    }
                },
                () = tokio::time::sleep_until(until) => return Ok((Vec::new(), false)),
                () = self.stop.cancelled() => return Ok((Vec::new(), false)),
                _ = heartbeat.tick() => self.beat(caller, worker, asked, Takes::Work).await,
                received = hear(&mut control) => {
                    if received.drain {
                        self.beat(caller, worker, asked, Takes::Nothing).await;
                        return Ok((Vec::new(), true));
                    }
                    self.told.note(worker, &received.pools, Instant::now());
                    self.wish_more(caller, worker, asked, &mut wishes)?;
                }
            }
        }
    }

    /// Asks the pullers of all topics for offers.
    fn wish(
        &self,
        caller: &Caller,
        worker: &WorkerId,
        asked: &Lease,
        until: Instant,
    ) -> Result<(Wishes, mpsc::UnboundedReceiver<Vec<Offered>>), Problem> {
        let (give, given) = mpsc::unbounded_channel();
        for topic in &asked.topics {
            self.pullers.want(&caller.tenant, topic.into(), Want { n: asked.max, until, give: give.clone() })?;
        }
        let mut wishes = Wishes { until, give: give.downgrade(), lines: Vec::new() };
        self.wish_more(caller, worker, asked, &mut wishes)?;
        Ok((wishes, given))
    }

    /// Asks for offers on the other lines that the worker was notified of, unless that was already done.
    fn wish_more(&self, caller: &Caller, worker: &WorkerId, asked: &Lease, wishes: &mut Wishes) -> Result<(), Problem> {
        for line in self.told.lines(worker, &asked.topics, Instant::now()) {
            if wishes.lines.contains(&line) {
                continue;
            }
            // `give` is gone when all pullers have ended. Then the call asks for everything again.
            let Some(give) = wishes.give.upgrade() else { return Ok(()) };
            self.pullers.want(&caller.tenant, line.clone(), Want { n: asked.max, until: wishes.until, give })?;
            wishes.lines.push(line);
        }
        Ok(())
    }

    async fn beat(&self, caller: &Caller, worker: &WorkerId, asked: &Lease, takes: Takes) {
        let beat = Beat {
            worker,
            tenant: &caller.tenant,
            topics: asked.topics.iter().map(ToString::to_string).collect(),
            slots: if takes == Takes::Work { asked.max } else { 0 },
            busy: 0,
            provides: Some(asked.provides.clone()),
            consuming: takes == Takes::Work,
        };
        self.beats.send(&self.flow.bus, beat).await;
    }

    /// Rebuilds the jobs of a note from their records, because this call does not have the offers.
    async fn recall(&self, caller: &Caller, note: Vec<(JobId, u32)>) -> Result<Vec<Noted>, Problem> {
        if note.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = note.iter().map(|(id, _)| *id).collect();
        let records = self.flow.store.read(&ids, Fields::PAYLOAD).await;
        let mut noted = Vec::with_capacity(note.len());
        for ((job, version), record) in note.into_iter().zip(records) {
            let theirs =
                |r: &Record| !r.deleted && r.spec.tenant == caller.tenant && caller.may_touch(&r.spec.topic).is_ok();
            let Some(record) = readable(record)?.filter(theirs) else { continue };
            let offer = v1::Offer { version, ..muster_flow::offer_of(&record, &record.head) };
            noted.push(Noted { job, version, offer, offered: None });
        }
        Ok(noted)
    }

    /// Asks for the starts of the noted jobs. Jobs that cannot be started any more are left out.
    async fn begin(&self, worker: &WorkerId, asked: &Lease, noted: Vec<Noted>) -> Result<Vec<Leased>, Problem> {
        let deadline = Instant::now() + START_WITHIN;
        let (mut open, mut leased) = (noted, Vec::new());
        while !open.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Problem::store_away());
            }
            let items = open.iter().map(|noted| start_ask(worker, asked, noted)).collect();
            let request = Body::Start(v1::StartRequest { worker: worker.to_string(), items });
            let Body::Started(reply) = self.ask(Question::Start, &request, left).await? else {
                return Err(Problem::bus_away());
            };
            let mut answers: HashMap<JobId, v1::StartAnswer> =
                reply.items.into_iter().filter_map(|a| Some((job_id(&a.job_id).ok()?, a))).collect();
            let mut again = Vec::new();
            for noted in open {
                let Some(answer) = answers.remove(&noted.job) else {
                    again.push(noted);
                    continue;
                };
                match answer.verdict() {
                    Verdict::Go => leased.push(started(noted, &answer)),
                    Verdict::Gone => settle(noted.offered, Offered::decided),
                    Verdict::Unknown => settle(noted.offered, |offered| offered.later(UNKNOWN_AGAIN)),
                    Verdict::Retry | Verdict::Unspecified => again.push(noted),
                }
            }
            failpoint!("lease.after_start");
            open = again;
            if !open.is_empty() {
                tokio::time::sleep(super::ASK_PAUSE).await;
            }
        }
        Ok(leased)
    }
}

fn settle(offered: Option<Offered>, how: impl FnOnce(Offered)) {
    if let Some(offered) = offered {
        how(offered);
    }
}

/// The lease in milliseconds, as schedulers read it: 0 means the lease of the topic.
pub(super) fn lease_ms(asked: Option<Duration>) -> u32 {
    asked.map_or(0, |lease| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX))
}

fn start_ask(worker: &WorkerId, asked: &Lease, noted: &Noted) -> v1::StartAsk {
    v1::StartAsk {
        job_id: raw(noted.job),
        version: noted.version,
        dispatched_at: noted.offer.dispatched_at,
        start_id: StartId::derive(worker, &asked.request, noted.job, noted.version).0.to_vec().into(),
        lease_ms: lease_ms(asked.lease),
        // The bus has already rejected undecodable offers.
        undecodable: false,
        tenant: noted.offer.tenant.clone(),
        topic: noted.offer.topic.clone(),
        pool: noted.offer.pool.clone(),
        carried: noted.offer.carried.clone(),
    }
}

fn started(noted: Noted, answer: &v1::StartAnswer) -> Leased {
    settle(noted.offered, Offered::decided);
    let offer = noted.offer;
    Leased {
        job: noted.job,
        topic: offer.topic,
        payload: offer.payload,
        labels: offer.labels,
        attempt: answer.attempt,
        max_attempts: answer.max_attempts,
        fence: answer.fence,
        lease: Duration::from_micros(answer.lease_us),
        timeout_ms: offer.timeout_ms,
        deadline: Time(offer.deadline).some(),
        traceparent: offer.traceparent,
    }
}

/// The next notice to the worker; never resolves without a subscription.
pub(super) async fn hear(control: &mut Option<muster_bus::Subscription>) -> v1::Control {
    loop {
        match control {
            Some(subscription) => match subscription.next().await.map(|received| received.body) {
                Some(Body::Control(control)) => return control,
                Some(_) => {}
                None => *control = None,
            },
            None => std::future::pending().await,
        }
    }
}
