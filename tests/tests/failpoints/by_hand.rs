//! Loads that need manual steps: an HTTP worker, what people do to jobs, keys and workers, lost messages, lost homes,
//! a lost job, and jobs that ended long ago.

use std::time::{Duration, Instant};

use muster_bus::{Bus, Subject, subjects};
use muster_domain::{
    Event, JobError, JobErrorCode, JobId, JobSpec, RunId, Tenant, Time, Topic, job::QUEUED_LOOK, slot::Limit,
};
use muster_store::{Fields, NewJob, SlotAsk, SlotRef, SlotTaken, Step, Submitted};
use muster_testkit::until;
use muster_tests::by_hand::{HandWorker, bus_of};
use muster_wire::{
    Body,
    v1::{Cancel, CancelGroup, DeadLetter, Failed, Offer, OfferGroup, Submit, SubmitGroup, Wake, result::Kind},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    Ground, SOON,
    loads::{WORK, once},
};

/// Longer than any ended job is kept.
const LONG_AGO: Duration = Duration::from_secs(60 * 24 * 3600);
/// Longer than the time after which a message counts as lost.
const A_WHILE_AGO: Duration = Duration::from_secs(60);
/// The delay of a job that loses its home before it runs: shorter than the time to any look at a pending job.
const LATER: Duration = Duration::from_secs(10);
/// Writes the time at which a job entered its state into a head, packed or whole.
const BACKDATE: &str = "local s, at = redis.call('HGET', KEYS[1], 's'), struct.pack('>I8', ARGV[1])
    if s then return redis.call('HSET', KEYS[1], 's', s:sub(1, 26) .. at .. s:sub(35)) end
    return redis.call('HSET', KEYS[1], 'j', at .. redis.call('HGET', KEYS[1], 'j'):sub(9))";

/// A job of this run with a derived id.
fn named(run: RunId, row: &str) -> NewJob {
    let mut spec = JobSpec::new(Tenant::default(), Topic::parse(WORK).expect("a topic"));
    spec.run = Some(run);
    spec.retry.max_attempts = 1;
    let id = JobId::derive("step", &spec.tenant, &format!("{run} {row}"));
    NewJob { id, spec, payload: r#"{"do":"succeed"}"#.into(), body_hash: Some([7; 16]), place: None, at: None }
}

impl Ground {
    /// An HTTP worker that repeats each of its requests until it gets an answer.
    pub(crate) async fn over_http(&mut self, row: &str, topic: &str) {
        let ids = self.submit_many(3, &once(topic, "succeed")).await;
        let (mut request, mut done, began) = (0, 0, Instant::now());
        while done < ids.len() {
            assert!(began.elapsed() < SOON, "{row}: {done} of {ids:?} could be completed");
            let ask = json!({
                "worker_id": topic, "request_id": format!("r{request}"), "topics": [topic], "max": 2, "wait_ms": 5_000,
            });
            let leased = self.insist((Method::POST, "/api/v1/worker/lease", &[], &ask.to_string()), 200).await;
            // Any answer counts: only a request without an answer is repeated under its id. If a request was given
            // offers that were replaced by new ones meanwhile, its repeat gets an empty answer.
            request += 1;
            let held = leased.body["items"].as_array().expect("items");
            if held.is_empty() {
                continue;
            }
            let result = |job: &Value| json!({"job_id": job["job_id"], "fence": job["fence"], "result": {"ok": true}});
            let items: Vec<Value> = held.iter().map(result).collect();
            let results = json!({"worker_id": topic, "items": items}).to_string();
            let heard = self.insist((Method::POST, "/api/v1/worker/complete", &[], &results), 200).await;
            let heard = heard.body["items"].as_array().expect("items").clone();
            assert!(heard.iter().all(|item| item["status"] == "ok"), "{row}: {heard:?}");
            done += heard.len();
        }
        self.topics.push(topic.to_owned());
        self.expect(row, ids, "succeeded", 1, 0);
    }

    /// A job that ended badly, retried by a client that repeats until it gets an answer.
    pub(crate) async fn retried(&mut self, row: &str) {
        let old = self.submit(&once(WORK, "refuse")).await;
        self.gateways[0].ended(&old, SOON).await;
        let better = json!({"payload": {"do": "succeed"}}).to_string();
        let new = self.insist((Method::POST, &format!("/api/v1/jobs/{old}/retry"), &[], &better), 202).await.id();
        self.retried.push((old.clone(), new.clone()));
        self.expect(row, vec![old], "failed", 1, 1);
        self.expect(row, vec![new], "succeeded", 1, 1);
    }

    /// A job that ended badly, deleted by a client that repeats until the job is gone.
    pub(crate) async fn deleted(&mut self, row: &str) {
        let id = self.submit(&once(WORK, "refuse")).await;
        self.gateways[0].ended(&id, SOON).await;
        let (path, mut turn) = (format!("/api/v1/jobs/{id}"), 0);
        until(SOON, &format!("{row}: the delete of {id}"), async || {
            turn += 1;
            let answer = self.gateways[turn % 2].send(Method::DELETE, &path, &[], None).await.ok()?;
            assert!([204, 404, 503].contains(&answer.status.as_u16()), "{row}: {}", answer.text);
            (answer.status != 503).then_some(())
        })
        .await;
        self.deleted.push(id);
    }

    /// A key that is created and rotated.
    pub(crate) async fn keys(&mut self, name: &str) {
        let asked = json!({"name": name, "tenant": "default", "scopes": ["read"]}).to_string();
        let made = self.insist((Method::POST, "/api/v1/keys", &[], &asked), 201).await;
        let path = format!("/api/v1/keys/{}/rotate", made.id());
        let rotated = self.insist((Method::POST, &path, &[], "{}"), 200).await;
        self.keys.push((name.to_owned(), rotated.field("key").as_str().expect("a secret").to_owned()));
    }

    /// A worker that is asked to drain, and leaves.
    pub(crate) async fn drained(&mut self, row: &str, name: &str) {
        let mut worker = self.runs.echo(&self.stack, name, name);
        until(SOON, &format!("{row}: {name} to be seen"), async || {
            let seen = self.gateways[0].get("/workers").await.body;
            seen["items"].as_array()?.iter().any(|seen| seen["id"] == name).then_some(())
        })
        .await;
        self.insist((Method::POST, &format!("/api/v1/workers/{name}/drain"), &[], "{}"), 202).await;
        worker.left(SOON).await;
    }

    /// Offers that are taken off the bus without a start, as if the bus had lost them. A scheduler that crashes while
    /// it offers the jobs again leaves some without an offer, and those are not missed before the offers beside them
    /// are taken. So from then on a worker takes them.
    pub(crate) async fn lost_offers(&mut self, row: &str, topic: &str, point: &str) {
        let ids = self.submit_many(3, &once(topic, "succeed")).await;
        let thief = HandWorker::on(&self.stack, &format!("thief-{topic}"), topic).await;
        for _ in &ids {
            thief.offered().await.1.ack().await;
        }
        self.look_at(&thief.bus, &ids.iter().map(|id| id.parse().expect("an id")).collect::<Vec<_>>()).await;
        self.points.has_acted(point).await;
        let worker = self.worker(&format!("w-{topic}"), topic);
        self.workers.push(worker);
        self.expect(row, ids, "succeeded", 1, 1);
    }

    /// The job's offer is taken off the bus and put back under another topic.
    pub(crate) async fn senseless(&mut self, row: &str, topic: &str) {
        let id = self.submit(&once(topic, "succeed")).await;
        let thief = HandWorker::on(&self.stack, &format!("thief-{topic}"), topic).await;
        let (offer, delivery) = thief.offered().await;
        delivery.ack().await;
        let subject = subjects::offer(&Tenant::default(), Topic::parse(topic).expect("a topic"));
        let astray = Body::Offer(OfferGroup { items: vec![Offer { topic: "elsewhere".into(), ..offer }] });
        thief.bus.publish(&subject, None, None, astray).await.expect("published");
        let worker = self.worker(&format!("w-{topic}"), topic);
        self.workers.push(worker);
        self.expect(row, vec![id], "failed", 0, 0);
    }

    /// Reports an undecodable message.
    pub(crate) async fn unreadable(&mut self, name: &str) {
        let bus = bus_of(&self.stack, "reader").await;
        let letter = DeadLetter { subject: "sys.job.submit".into(), reason: name.into(), original: "odd".into() };
        bus.publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.expect("published");
        self.unreadable.push(name.to_owned());
    }

    /// A job with a concurrency key, whose slot was taken longer ago than any dispatch takes.
    pub(crate) async fn half_admitted(&mut self, row: &str, name: &str) {
        self.resumed(row, name, |topic| Some(Limit::Key(topic.to_owned()))).await;
    }

    /// A job under a limit of its topic, whose place was taken longer ago than any dispatch takes.
    pub(crate) async fn half_placed(&mut self, row: &str, name: &str) {
        self.resumed(row, name, |topic| Some(Limit::Topic(Topic::parse(topic).expect("a topic")))).await;
    }

    /// A job that got another version while its entry in the backlog has the old one.
    pub(crate) async fn queued_anew(&mut self, name: &str) {
        self.resumed(name, name, |_| None).await;
    }

    /// Prepares a job that a pause keeps in the backlog, and resumes the topic. A scheduler that does not know about
    /// the pause yet offers the job at once: then another job is tried.
    async fn resumed(&mut self, row: &str, name: &str, limit: impl Fn(&str) -> Option<Limit>) {
        for round in 0.. {
            let topic = format!("{name}-{round}");
            let (path, limit) = (format!("/api/v1/topics/{topic}"), limit(&topic));
            let mut job = once(&topic, "succeed");
            match &limit {
                Some(Limit::Key(key)) => job["concurrency_key"] = json!(key),
                Some(Limit::Topic(_)) => {
                    let one = json!({"concurrency": {"max": 1}}).to_string();
                    self.insist((Method::PUT, &path, &[], &one), 200).await;
                }
                None => {}
            }
            self.insist((Method::POST, &format!("{path}/pause"), &[], "{}"), 200).await;
            let id = self.submit(&job).await;
            let state = until(SOON, &format!("{row}: {id} to be held"), async || {
                let state = self.gateways[0].job(&id).await["state"].as_str()?.to_owned();
                ["queued", "dispatched"].contains(&state.as_str()).then_some(state)
            })
            .await;
            if state == "queued" {
                self.held_long_ago(id.parse().expect("an id"), limit.as_ref()).await;
            }
            let worker = self.worker(&format!("w-{topic}"), &topic);
            self.workers.push(worker);
            self.topics.push(topic);
            self.limits.extend(limit);
            self.expect(row, vec![id], "succeeded", 1, 1);
            self.insist((Method::POST, &format!("{path}/resume"), &[], "{}"), 200).await;
            if state == "queued" {
                return;
            }
        }
    }

    /// Takes the job's slot as a scheduler does, so long ago that a scheduler that needs the slot checks whether it
    /// is still held. Without a limit, gives the job another version. The job's next look is as late as that of any
    /// queued job.
    async fn held_long_ago(&self, job: JobId, limit: Option<&Limit>) {
        let store = self.stack.store().await;
        store.set_homes(&[job], QUEUED_LOOK).await.expect("redis answers");
        let record = store.read_one(job, Fields::NONE).await.expect("redis answers").expect("a record");
        let version = record.head.version;
        let Some(limit) = limit.cloned() else {
            let moved = store.apply_one(Step::new(job, Event::Hold, version.into())).await.expect("redis answers");
            return assert!(moved.done().is_some(), "{moved:?}");
        };
        let set = match &limit {
            Limit::Key(key) => format!("muster:slots:default:{key}"),
            Limit::Topic(topic) => format!("muster:places:default:{topic}"),
        };
        let slot = SlotRef { tenant: Tenant::default(), limit, job, version };
        let ask = SlotAsk { slot, max: 1, priority: record.spec.priority, since: record.head.created_at };
        let taken = store.take_slots(&[ask]).await;
        assert!(matches!(taken[..], [Ok(SlotTaken::Admitted)]), "{taken:?}");
        assert_eq!(self.redis(&["ZADD", &set, "XX", "CH", "1", &format!("{job}:{version}")]), "1", "{set}");
    }

    /// The only attempt takes longer than allowed, and the worker reports that itself, before a look finds it.
    pub(crate) async fn took_too_long(&mut self, row: &str, topic: &str) {
        let mut job = once(topic, "succeed");
        job["timeout_ms"] = json!(1_000);
        let id = self.submit(&job).await;
        let slow = HandWorker::on(&self.stack, topic, topic).await;
        let (attempt, began) = (slow.start_next().await, Instant::now());
        let store = self.stack.store().await;
        store.set_homes(&[attempt.job], LONG_AGO).await.expect("redis answers");
        until(SOON, "its time to pass", async || (began.elapsed() > Duration::from_millis(1_200)).then_some(())).await;
        let failure = JobError::new(JobErrorCode::AttemptTimeout.as_str(), "it took too long", true);
        let kind = Kind::Failed(Failed { failure: Some((&failure).into()), retry_in_ms: None });
        slow.report(&attempt, kind).await;
        self.expect(row, vec![id], "timed_out", 1, 0);
    }

    /// Jobs of a gateway that died before it could publish them.
    pub(crate) async fn lost_submits(&mut self, row: &str) {
        let (store, bus) = (self.stack.store().await, bus_of(&self.stack, "loser").await);
        let mut spec = JobSpec::new(Tenant::default(), Topic::parse(WORK).expect("a topic"));
        spec.retry.max_attempts = 1;
        let payload = json!({"do": "succeed"}).to_string();
        let new = |n| NewJob {
            id: JobId::mint(n),
            spec: spec.clone(),
            payload: payload.clone().into(),
            body_hash: None,
            place: None,
            at: None,
        };
        let mut jobs: Vec<NewJob> = (0..3).map(new).collect();
        assert!(store.prepare(&mut jobs, SOON).await.iter().all(Result::is_ok));
        assert!(store.submit(&jobs).await.iter().all(Result::is_ok));
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        self.look_at(&bus, &ids).await;
        self.expect(row, ids.iter().map(JobId::to_string).collect(), "succeeded", 1, 1);
    }

    /// Backdates these jobs, as if they had waited longer than any message takes, and makes them due for a look.
    async fn look_at(&self, bus: &Bus, ids: &[JobId]) {
        let store = self.stack.store().await;
        let at = store.now().before(A_WHILE_AGO);
        ids.iter().for_each(|id| self.backdate(*id, at));
        let due: Vec<_> = ids.iter().map(|id| (*id, Duration::ZERO)).collect();
        store.forward_homes(&due).await.expect("redis answers");
        let hint = Body::Wake(Wake { r#loop: "reconciler".into(), in_us: 0 });
        bus.broadcast(&subjects::wake(), hint).await.expect("nats answers");
    }

    fn backdate(&self, id: JobId, at: Time) {
        let said = self.redis(&["EVAL", BACKDATE, "1", &format!("muster:job:{id}"), &at.0.to_string()]);
        assert_eq!(said, "0", "its record is there");
    }

    /// A job that waits for its time, and loses its home before that: only the scrub finds it.
    pub(crate) async fn homeless(&mut self, row: &str) -> String {
        let mut job = once(WORK, "succeed");
        job["delay_ms"] = json!(LATER.as_millis());
        let id = self.submit(&job).await;
        self.gateways[0].reaches(&id, "scheduled", SOON).await;
        let (lost, store) = (id.parse::<JobId>().expect("an id"), self.stack.store().await);
        // The scheduler sets the home after it schedules the job, and would set it again.
        until(SOON, "its home to be due when its time comes", async || {
            let due = store.home_of(lost).await.expect("redis answers").expect("a home");
            (due.remaining(store.now()) <= LATER).then_some(())
        })
        .await;
        store.drop_homes(&[lost]).await.expect("redis answers");
        self.expect(row, vec![id.clone()], "succeeded", 1, 1);
        id
    }

    /// A job that waits for its time and is lost before that, with its home. The mark of the last complete state is
    /// lost too, as when Redis comes back without its last writes. So the scheduler reads everything again that the
    /// bus kept.
    pub(crate) async fn forgotten(&mut self, row: &str) {
        let id = self.homeless(row).await;
        self.redis(&["DEL", &format!("muster:job:{id}")]);
        self.redis(&["SET", "muster:scheduler:reread:mark", &format!("lost with {id}")]);
    }

    /// A job of a run, submitted as the workflow engine does it.
    pub(crate) async fn of_run(&mut self, row: &str) {
        let (run, store) = (RunId::mint(0), self.stack.store().await);
        let mut jobs = [named(run, row)];
        assert!(store.prepare(&mut jobs, Duration::from_secs(30)).await.iter().all(Result::is_ok));
        let made = store.submit(&jobs).await.remove(0).expect("redis answers");
        let (Submitted::Created(head), [job]) = (made, jobs) else { panic!("a new job") };
        let item = Submit {
            job_id: job.id.as_bytes().to_vec().into(),
            version: head.version,
            spec: Some((&job.spec).into()),
            payload: job.payload.clone(),
            pending_since: head.since.0,
            created_at: head.created_at.0,
            body_hash: [7; 16].to_vec().into(),
            ..Submit::default()
        };
        self.publish(&subjects::submit(), Body::Submit(SubmitGroup { items: vec![item] })).await;
        self.expect(row, vec![job.id.to_string()], "succeeded", 1, 1);
        self.of_runs.push((run, job.id));
    }

    /// A cancel that came before the submit of its job and that Redis has lost: only the bus knows of it.
    pub(crate) async fn forestalled(&mut self, row: &str) {
        let run = RunId::mint(0);
        let job = named(run, row);
        let item = Cancel {
            job_id: job.id.as_bytes().to_vec().into(),
            tenant: job.spec.tenant.to_string(),
            reason: "the run has ended".into(),
            created_at: 1,
            spec: Some((&job.spec).into()),
            body_hash: [7; 16].to_vec().into(),
        };
        self.publish(&subjects::cancel(), Body::Cancel(CancelGroup { items: vec![item] })).await;
        self.redis(&["SET", "muster:scheduler:reread:mark", &format!("lost with {}", job.id)]);
        self.expect(row, vec![job.id.to_string()], "cancelled", 0, 0);
        self.of_runs.push((run, job.id));
    }

    async fn publish(&self, subject: &Subject, body: Body) {
        let bus = bus_of(&self.stack, "engine").await;
        until(SOON, "the bus to take it", async || bus.publish(subject, None, None, body.clone()).await.ok()).await;
    }

    /// Jobs of a separate tenant that succeeded and failed longer ago than anything is kept.
    pub(crate) async fn long_ago(&mut self, name: &str) {
        let (store, tenant) = (self.stack.store().await, Tenant::parse(name).expect("a tenant"));
        let (at, topic) = (store.now().before(LONG_AGO), Topic::parse("old").expect("a topic"));
        let spec = JobSpec::new(tenant.clone(), topic);
        let new = |n| NewJob {
            id: JobId::mint(n),
            spec: spec.clone(),
            payload: "1".into(),
            body_hash: None,
            place: None,
            at: None,
        };
        let mut jobs: Vec<NewJob> = (0..4).map(new).collect();
        let entries: Vec<_> = jobs.iter().map(|job| (job.id, at)).collect();
        // They keep their homes, so that they are not deleted yet.
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        store.set_homes(&ids, 2 * LONG_AGO).await.expect("redis answers");
        let places = store.index_jobs(&tenant, &entries).await.expect("redis answers");
        // Keep them from being looked at: the retention loop leaves an active job alone for a whole retention time.
        self.redis(&["SREM", "muster:idx:tenants", name]);
        jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
        assert!(store.submit(&jobs).await.iter().all(Result::is_ok));
        let end = |(n, id): (usize, &JobId)| match n % 2 {
            0 => Step::new(*id, Event::Cancel, 0),
            _ => Step::new(*id, Event::Deny, 1),
        };
        let ended = store.apply(ids.iter().enumerate().map(end).collect()).await;
        assert!(ended.iter().all(|moved| moved.as_ref().is_ok_and(|moved| moved.done().is_some())), "{ended:?}");
        let letters: Vec<_> = ids.iter().skip(1).step_by(2).map(|id| (tenant.clone(), *id, at)).collect();
        store.add_dead_letters(&letters).await.expect("redis answers");
        ids.iter().for_each(|id| self.backdate(*id, at));
        store.drop_homes(&ids).await.expect("redis answers");
        self.redis(&["DEL", &format!("muster:idx:{name}:kept")]);
        self.redis(&["SADD", "muster:idx:tenants", name]);
        self.removed.push((tenant, ids));
    }
}
