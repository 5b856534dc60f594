//! The loads that bring a process to a failpoint. Each load records the expected results of its jobs; most loads do
//! not wait for them.

use futures_util::{StreamExt, future::join_all};
use muster_domain::{Topic, slot::Limit};
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{Setup, TestWorker, by_hand::HandWorker};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{Ground, SOON};

/// The topic of all plain jobs.
pub(crate) const WORK: &str = "work";
/// Longer than this program runs.
const LATER_MS: u64 = 3_600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Submits, most of which are repeated until they are answered.
    Submits,
    /// Jobs that succeed, fail for good and fail twice.
    Jobs,
    /// More jobs than a window holds.
    Crowd,
    /// Jobs under a concurrency key, under a topic's limit, and under both.
    Slots,
    /// A job whose slot was taken long ago by a scheduler that died before it dispatched the job.
    HalfAdmitted,
    /// The same with a place of its topic.
    HalfPlaced,
    /// Offers that are on the bus when their topic is paused.
    Recall,
    /// Jobs that a policy hook is asked about.
    Asked,
    /// Jobs whose time runs out, and one whose worker falls silent, each with another job that waits for its slot.
    OutOfTime,
    /// A job whose worker reports that it took too long, before any scheduler notices.
    TookTooLong,
    /// Cancels of a job that waits, of one that runs and of one that was retried.
    Cancels,
    /// A cancel of a job that holds a slot and was not started, with another job waiting for the slot.
    CancelledOffer,
    /// A bulk cancel.
    Bulk,
    /// A worker that speaks HTTP.
    OverHttp,
    /// A retry by hand.
    Retried,
    /// A delete by hand.
    Deleted,
    /// A key that is created and gets a new secret.
    Keys,
    /// A worker that is asked to drain.
    Drained,
    /// A job whose home is lost.
    Homeless,
    /// A job that Redis has lost completely.
    Forgotten,
    /// A job of a run of a workflow.
    OfRun,
    /// A job that a run cancelled before its submit, and that Redis has lost.
    Forestalled,
    /// Jobs that ended long ago.
    LongAgo,
    /// A topic's settings.
    Settings,
    /// An act that is exported.
    Export,
    /// Offers that vanish from the bus.
    LostOffers,
    /// An offer that its worker cannot understand.
    Senseless,
    /// An undecodable message.
    Unreadable,
    /// Jobs whose submit was never published.
    LostSubmits,
}

impl Load {
    pub(crate) async fn bring(self, ground: &mut Ground, row: &str, point: &str) {
        let name = row.replace(['.', '_', ' ', ':'], "-");
        match self {
            Load::Submits => ground.submits(row).await,
            Load::Jobs => ground.jobs(row).await,
            Load::Crowd => ground.crowd(row, &name).await,
            Load::Slots => ground.slots(row, &name).await,
            Load::HalfAdmitted => ground.half_admitted(row, &name).await,
            Load::HalfPlaced => ground.half_placed(row, &name).await,
            Load::Recall => ground.recall(row, &name, point).await,
            Load::Asked => ground.asked(row).await,
            Load::OutOfTime => ground.out_of_time(row, &name).await,
            Load::TookTooLong => ground.took_too_long(row, &name).await,
            Load::Cancels => ground.cancels(row).await,
            Load::CancelledOffer => ground.cancelled_offer(row, &name).await,
            Load::Bulk => ground.bulk(row, &name).await,
            Load::OverHttp => ground.over_http(row, &name).await,
            Load::Retried => ground.retried(row).await,
            Load::Deleted => ground.deleted(row).await,
            Load::Keys => ground.keys(&name).await,
            Load::Drained => ground.drained(row, &name).await,
            Load::Homeless => drop(ground.homeless(row).await),
            Load::Forgotten => ground.forgotten(row).await,
            Load::OfRun => ground.of_run(row).await,
            Load::Forestalled => ground.forestalled(row).await,
            Load::LongAgo => ground.long_ago(&name).await,
            Load::Settings => ground.settings(&name).await,
            Load::Export => {
                let key = json!({"name": name, "tenant": "other", "scopes": ["read"]}).to_string();
                ground.insist((Method::POST, "/api/v1/keys", &[], &key), 201).await;
            }
            Load::LostOffers => ground.lost_offers(row, &name, point).await,
            Load::Senseless => ground.senseless(row, &name).await,
            Load::Unreadable => ground.unreadable(&name).await,
            Load::LostSubmits => ground.lost_submits(row).await,
        }
    }
}

pub(crate) fn once(topic: &str, what: &str) -> Value {
    json!({"topic": topic, "payload": {"do": what}, "retry": {"max_attempts": 1}})
}

impl Ground {
    /// Starts the workers and the policy hook.
    pub(crate) async fn begin(&mut self) {
        for name in ["w1", "w2"] {
            let worker = self.worker(name, WORK);
            self.workers.push(worker);
        }
        let worker = self.worker("w3", "asked");
        self.workers.push(worker);
        self.answer().await;
    }

    /// A worker that does what the payload says.
    pub(crate) fn worker(&self, name: &str, topic: &str) -> TestWorker {
        self.runs.worker(
            &self.stack,
            Setup { slots: 32, ..Setup::new(name, topic) },
            |ctx, payload: Value| async move {
                match payload["do"].as_str() {
                    Some("stumble") if ctx.attempt() == 1 => Err(HandlerError::retryable("not yet")),
                    Some("fail") => Err(HandlerError::retryable("not yet")),
                    Some("refuse") => Err(HandlerError::permanent("never")),
                    Some("hang" | "stumble") => std::future::pending().await,
                    _ => Ok(payload),
                }
            },
        )
    }

    pub(crate) async fn submit(&self, job: &Value) -> String {
        self.submit_as(&uuid::Uuid::new_v4().to_string(), job).await
    }

    async fn submit_as(&self, key: &str, job: &Value) -> String {
        let headers = [("Idempotency-Key", key)];
        self.insist((Method::POST, "/api/v1/jobs", &headers, &job.to_string()), 202).await.id()
    }

    pub(crate) async fn submit_many(&self, n: usize, job: &Value) -> Vec<String> {
        join_all((0..n).map(|_| self.submit(job))).await
    }

    async fn submits(&mut self, row: &str) {
        let job = |who: &str| json!({"topic": WORK, "payload": {"who": who}, "retry": {"max_attempts": 1}});
        let (this, same) = (&*self, format!("{row} same"));
        let alone: Vec<String> = (0..3).map(|n| format!("{row} {n}")).collect();
        let posts = alone.iter().enumerate().map(|(n, who)| {
            let body = Some(job(who).to_string().into_bytes());
            async move { this.gateways[n % 2].send(Method::POST, "/api/v1/jobs", &[], body).await.ok() }
        });
        let (one, other) = (job(&same), once(WORK, "succeed"));
        let (answers, repeated, shared) = tokio::join!(
            join_all(posts),
            this.submit_many(6, &other),
            join_all((0..12).map(|_| this.submit_as(&same, &one))),
        );
        assert!(shared.iter().all(|id| *id == shared[0]), "{row}: one key is one job: {shared:?}");
        self.expect(row, repeated, "succeeded", 1, 1);
        self.expect(row, vec![shared[0].clone()], "succeeded", 1, 1);
        for (who, answer) in alone.into_iter().zip(answers) {
            match answer.filter(|answer| answer.status == 202) {
                Some(answer) => self.expect(row, vec![answer.id()], "succeeded", 1, 1),
                None => self.unanswered.push(who),
            }
        }
    }

    async fn jobs(&mut self, row: &str) {
        let backoff = json!({"initial_ms": 50, "jitter": 0});
        let twice = json!({"topic": WORK, "payload": {"do": "fail"}, "retry": {"max_attempts": 2, "backoff": backoff}});
        let (good, bad) = (once(WORK, "succeed"), once(WORK, "refuse"));
        let (good, bad, twice) =
            tokio::join!(self.submit_many(4, &good), self.submit_many(1, &bad), self.submit_many(2, &twice));
        // Only the death of the worker itself costs an attempt.
        self.expect(row, good, "succeeded", 1, 1);
        self.expect(row, bad, "failed", 1, 1);
        self.expect(row, twice, "failed", 2, 2);
    }

    async fn crowd(&mut self, row: &str, topic: &str) {
        let worker = self.worker(&format!("w-{topic}"), topic);
        self.workers.push(worker);
        self.topics.push(topic.to_owned());
        let ids = self.gateways[0].submit_many(200, &once(topic, "succeed")).await;
        self.expect(row, ids, "succeeded", 1, 1);
    }

    /// Jobs with a key on one topic, under the limit of another topic, and under both.
    async fn slots(&mut self, row: &str, name: &str) {
        let worker = self.worker(&format!("w-{name}"), name);
        self.workers.push(worker);
        self.topics.push(name.to_owned());
        let limit = json!({"concurrency": {"max": 2}}).to_string();
        self.insist((Method::PUT, &format!("/api/v1/topics/{name}"), &[], &limit), 200).await;
        let (mut keyed, placed) = (once(WORK, "succeed"), once(name, "succeed"));
        let mut both = placed.clone();
        let keys = [name.to_owned(), format!("{name}-both")];
        (keyed["concurrency_key"], both["concurrency_key"]) = (json!(keys[0]), json!(keys[1]));
        let (keyed, placed, both) =
            tokio::join!(self.submit_many(5, &keyed), self.submit_many(5, &placed), self.submit_many(3, &both));
        self.in_turn.extend([keyed.clone(), both.clone()]);
        self.limits.extend(keys.map(Limit::Key));
        self.limits.push(Limit::Topic(Topic::parse(name).expect("a topic")));
        self.expect(row, [keyed, placed, both].concat(), "succeeded", 1, 1);
    }

    /// Each job has a key of its own, so that it holds a slot. A scheduler that does not know about the pause yet
    /// lets them start: then others are tried.
    async fn recall(&mut self, row: &str, name: &str, point: &str) {
        for round in 0.. {
            let topic = format!("{name}-{round}");
            self.topics.push(topic.clone());
            let mut ids = Vec::new();
            for n in 0..3 {
                let (mut job, key) = (once(&topic, "succeed"), format!("{topic}-{n}"));
                job["concurrency_key"] = json!(key);
                ids.push(self.submit(&job).await);
                self.limits.push(Limit::Key(key));
            }
            for id in &ids {
                self.gateways[0].reaches(id, "dispatched", SOON).await;
            }
            self.expect(row, ids.clone(), "succeeded", 1, 1);
            let path = format!("/api/v1/topics/{topic}");
            self.insist((Method::POST, &format!("{path}/pause"), &[], "{}"), 200).await;
            let worker = self.worker(&format!("w-{topic}"), &topic);
            self.workers.push(worker);
            until(SOON, "the offers to be asked for", async || {
                let acted = self.points.acted(point);
                let started = ids.iter().any(|id| !self.runs.of(id).is_empty());
                (acted || started).then_some(())
            })
            .await;
            self.insist((Method::POST, &format!("{path}/resume"), &[], "{}"), 200).await;
            if self.points.acted(point) {
                return;
            }
        }
    }

    /// Answers as the policy hook: no if the label says so.
    #[expect(clippy::disallowed_methods, reason = "a test's own answerer")]
    async fn answer(&self) {
        let urls = self.stack.state().nats_url;
        let nats = async_nats::connect(urls.split(',').collect::<Vec<_>>()).await.expect("a connection");
        let mut asked = nats.subscribe("sys.job.decide").await.expect("a subscription");
        nats.flush().await.expect("heard");
        tokio::spawn(async move {
            while let Some(question) = asked.next().await {
                let said: Value = serde_json::from_slice(&question.payload).expect("a question");
                let denied = said["labels"]["say"] == "no";
                let answer = if denied { json!({"decision": "deny"}) } else { json!({"decision": "allow"}) };
                let _ = nats.publish(question.reply.expect("who asks"), answer.to_string().into()).await;
            }
        });
    }

    async fn asked(&mut self, row: &str) {
        let (yes, mut no) = (once("asked", "succeed"), once("asked", "succeed"));
        no["labels"] = json!({"say": "no"});
        let (yes, no) = tokio::join!(self.submit_many(2, &yes), self.submit_many(1, &no));
        self.expect(row, yes, "succeeded", 1, 1);
        self.expect(row, no, "denied", 0, 0);
    }

    async fn out_of_time(&mut self, row: &str, name: &str) {
        let topic = |what: &str| format!("{name}-{what}");
        let late = json!({"topic": topic("late"), "expire_in_ms": 1_000});
        let mut long = json!({"topic": topic("long"), "timeout_ms": 4_000, "retry": {"max_attempts": 1}});
        let backoff = json!({"initial_ms": 50, "jitter": 0});
        let mut mute = json!({"topic": topic("mute"), "retry": {"max_attempts": 2, "backoff": backoff}});
        let mut slow = HandWorker::on(&self.stack, &topic("slow"), &topic("long")).await;
        let mut silent = HandWorker::on(&self.stack, &topic("silent"), &topic("mute")).await;
        // A job that only exceeds its time limit keeps its slot until its lease has ended.
        (slow.lease_ms, silent.lease_ms) = (8_000, 4_000);
        let mut heirs = [once(&topic("long"), "succeed"), once(&topic("mute"), "succeed")];
        for (job, what) in
            [(&mut long, "long"), (&mut mute, "mute")].into_iter().chain(heirs.iter_mut().zip(["long", "mute"]))
        {
            job["concurrency_key"] = json!(topic(what));
        }
        let (timed_out, rescued) = tokio::join!(self.submit(&long), self.submit(&mute));
        tokio::join!(slow.start_next(), silent.start_next());
        let heirs = [self.submit(&heirs[0]).await, self.submit(&heirs[1]).await];
        for what in ["long", "mute"] {
            let worker = self.worker(&format!("w-{}", topic(what)), &topic(what));
            self.workers.push(worker);
            self.limits.push(Limit::Key(topic(what)));
        }
        // Last, because the first process that ends them may crash while doing so.
        let expired = self.submit_many(2, &late).await;
        self.expect(row, expired, "expired", 0, 0);
        self.expect(row, vec![timed_out], "timed_out", 1, 0);
        self.expect(row, vec![rescued], "succeeded", 2, 1);
        self.expect(row, heirs.to_vec(), "succeeded", 1, 1);
    }

    async fn cancels(&mut self, row: &str) {
        let waits = self.submit(&json!({"topic": "later", "delay_ms": LATER_MS})).await;
        let mut twice = once(WORK, "stumble");
        twice["retry"] = json!({"max_attempts": 2, "backoff": {"initial_ms": 50, "jitter": 0}});
        let (hangs, twice) = (self.submit(&once(WORK, "hang")).await, self.submit(&twice).await);
        until(SOON, "them to run", async || {
            let runs = [&hangs, &twice].map(|id| self.runs.of(id).len());
            (runs == [1, 2]).then_some(())
        })
        .await;
        for id in [&waits, &hangs, &twice] {
            self.insist((Method::POST, &format!("/api/v1/jobs/{id}/cancel"), &[], "{}"), 200).await;
        }
        self.expect(row, vec![waits], "cancelled", 0, 0);
        self.expect(row, vec![hangs], "cancelled", 1, 1);
        self.expect(row, vec![twice], "cancelled", 2, 2);
    }

    async fn cancelled_offer(&mut self, row: &str, name: &str) {
        let mut job = once(name, "succeed");
        job["concurrency_key"] = json!(name);
        let offered = self.submit(&job).await;
        self.gateways[0].reaches(&offered, "dispatched", SOON).await;
        let heir = self.submit(&job).await;
        self.insist((Method::POST, &format!("/api/v1/jobs/{offered}/cancel"), &[], "{}"), 200).await;
        let worker = self.worker(&format!("w-{name}"), name);
        self.workers.push(worker);
        self.limits.push(Limit::Key(name.to_owned()));
        self.expect(row, vec![offered], "cancelled", 0, 0);
        self.expect(row, vec![heir], "succeeded", 1, 1);
    }

    async fn bulk(&mut self, row: &str, topic: &str) {
        let ids = self.submit_many(6, &json!({"topic": topic, "delay_ms": LATER_MS})).await;
        let body = json!({"action": "cancel", "filter": {"topic": topic}}).to_string();
        let headers = [("Idempotency-Key", topic)];
        let operation = self.insist((Method::POST, "/api/v1/jobs/bulk", &headers, &body), 202).await;
        self.operations.push(operation.id());
        self.expect(row, ids, "cancelled", 0, 0);
    }

    async fn settings(&mut self, topic: &str) {
        let bound = 1_000 + self.told.len() as u64;
        let body = json!({ "max_backlog": bound }).to_string();
        self.insist((Method::PUT, &format!("/api/v1/topics/{topic}"), &[], &body), 200).await;
        self.told.push((topic.to_owned(), bound));
    }
}
