//! Servers, schedulers and helpers to submit jobs, for one test.

use std::{collections::BTreeMap, time::Duration};

use muster_bus::{Bus, BusSettings};
use muster_chassis::{Chassis, Tasks, settings};
use muster_domain::{JobId, JobSpec, State, Tenant, Topic};
use muster_flow::{Flow, submit_item};
use muster_scheduler::{SERVICE, SETTINGS, run};
use muster_store::{Fields, NewJob, Record, RedisSettings, Store};
use muster_testkit::{NatsServer, RedisServer, until};

/// Time limit for anything that does not wait by design.
pub(crate) const SOON: Duration = Duration::from_secs(25);

/// Servers of one test, and the schedulers on them.
pub(crate) struct Stack {
    pub(crate) redis: RedisServer,
    pub(crate) nats: NatsServer,
    pub(crate) flow: Flow,
    tasks: Tasks,
}

/// One running scheduler.
pub(crate) struct Scheduler {
    pub(crate) chassis: Chassis,
}

impl Stack {
    /// Servers and one scheduler.
    pub(crate) async fn start() -> Stack {
        let stack = Stack::without_scheduler().await;
        stack.scheduler("s1").await;
        stack
    }

    pub(crate) async fn without_scheduler() -> Stack {
        Stack::over(RedisServer::start().await).await
    }

    /// A stack over this Redis, without a scheduler.
    pub(crate) async fn over(redis: RedisServer) -> Stack {
        let nats = NatsServer::start().await;
        // The test itself bears a Redis that stands still for a while, as on a busy machine.
        let patient = RedisSettings { response_timeout: SOON, budget: SOON, ..RedisSettings::new(redis.url()) };
        let store = Store::connect(patient).await.unwrap();
        let bus = Bus::connect(BusSettings::new(nats.url(), "test")).await.unwrap();
        let clock = store.clone();
        bus.set_clock(std::sync::Arc::new(move || clock.now()));
        bus.connected().await;
        bus.ensure_streams().await.unwrap();
        Stack { redis, nats, flow: Flow::new(store, bus), tasks: Tasks::new() }
    }

    /// Starts one more scheduler and waits until it is ready. Its scrub does nothing after its first pass.
    pub(crate) async fn scheduler(&self, name: &str) -> Scheduler {
        self.scrubbing(name, "1h").await
    }

    /// Starts one more scheduler with this scrub interval.
    pub(crate) async fn scrubbing(&self, name: &str, every: &str) -> Scheduler {
        self.scheduler_with(name, &[("--loop-scrub-interval", every)]).await
    }

    /// Starts one more scheduler with more settings.
    pub(crate) async fn scheduler_with(&self, name: &str, more: &[(&str, &str)]) -> Scheduler {
        let args: Vec<String> = [
            ("--redis-url", self.redis.url()),
            ("--nats-url", self.nats.url()),
            ("--instance-id", name.to_owned()),
            ("--admin-addr", "127.0.0.1:0".to_owned()),
            ("--outage-wait", "100ms".to_owned()),
            ("--loop-reconciler-interval", "1s".to_owned()),
        ]
        .into_iter()
        .chain(more.iter().map(|(flag, value)| (*flag, (*value).to_owned())))
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        let loaded = settings::load(SERVICE, SETTINGS, &args, &BTreeMap::new()).unwrap();
        let chassis = Chassis::new(SERVICE, loaded.values);
        self.tasks.spawn("scheduler", run(chassis.clone()));
        until(4 * SOON, "the scheduler to be ready", async || {
            (chassis.health.readiness() == muster_chassis::health::Readiness::Ready).then_some(())
        })
        .await;
        Scheduler { chassis }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.flow.store
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.flow.bus
    }

    pub(crate) async fn submit(&self, spec: JobSpec) -> JobId {
        self.submit_all(vec![spec]).await[0]
    }

    pub(crate) async fn submit_all(&self, specs: Vec<JobSpec>) -> Vec<JobId> {
        self.submit_new(specs.into_iter().map(new_job).collect()).await
    }

    /// Submits jobs. If a busy bus does not confirm a submit in time, publishes it again, as a gateway does.
    pub(crate) async fn submit_new(&self, mut jobs: Vec<NewJob>) -> Vec<JobId> {
        let answers = self.flow.submit(&mut jobs).await;
        let mut deferred = Vec::new();
        for (job, accepted) in jobs.iter().zip(answers) {
            let accepted = accepted.unwrap();
            assert!(!accepted.replayed);
            if accepted.bus_deferred {
                let (spec, payload) = ((&job.spec).into(), job.payload.clone());
                deferred.push(submit_item(job.id, &accepted.head, spec, payload, job.body_hash));
            }
        }
        until(SOON, "the bus to take every submit", async || {
            deferred = self.flow.publish_deferred(std::mem::take(&mut deferred)).await;
            deferred.is_empty().then_some(())
        })
        .await;
        jobs.iter().map(|job| job.id).collect()
    }

    pub(crate) async fn record(&self, id: JobId) -> Record {
        self.store().read_one(id, Fields::ALL).await.unwrap().unwrap()
    }

    pub(crate) async fn state(&self, id: JobId) -> State {
        self.record(id).await.head.state()
    }

    /// Waits until the job is in this state.
    pub(crate) async fn reaches(&self, id: JobId, state: State, within: Duration) -> Record {
        until(within, &format!("job {id} to be {state}"), async || {
            let record = self.record(id).await;
            (record.head.state() == state).then_some(record)
        })
        .await
    }

    /// Waits until the job has this final state and its effects are done: the home is removed last. One that a repeat of
    /// a message has set once more is removed by its look, within half a minute.
    pub(crate) async fn ends(&self, id: JobId, state: State, within: Duration) -> Record {
        let record = self.reaches(id, state, within).await;
        until(2 * SOON, "its home to be gone", async || {
            self.store().home_of(id).await.unwrap().is_none().then_some(())
        })
        .await;
        record
    }

    /// Whether the job is among the dead letters of its tenant.
    pub(crate) async fn is_dead_letter(&self, id: JobId) -> bool {
        let listed = self.redis.cli(&["ZRANGE", "muster:dlq:default", "0", "-1"]).await;
        listed.contains(&id.to_string())
    }
}

pub(crate) fn new_job(spec: JobSpec) -> NewJob {
    NewJob {
        id: JobId::mint(fastrand::u8(0..16)),
        spec,
        payload: "{\"n\":1}".into(),
        body_hash: None,
        place: None,
        at: None,
    }
}

/// A job of this topic with every default.
pub(crate) fn job(topic: &str) -> JobSpec {
    JobSpec::new(Tenant::default(), Topic::parse(topic).unwrap())
}
