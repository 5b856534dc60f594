//! Servers, a scheduler, workflow replicas, a worker, and helpers to start runs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use muster_bus::{Bus, BusSettings};
use muster_chassis::{Chassis, Tasks, health::Readiness, settings};
use muster_domain::{RunId, Tenant, WorkflowName};
use muster_engine::{
    definition::{Format, read_named},
    run::RunState,
};
use muster_flow::Flow;
use muster_runs::{Ask, Kept, Operated, Runs, Start, StartRefused, TimelineEntry};
use muster_sdk::{Context, HandlerError, Worker};
use muster_store::{PutDefinition, RedisSettings, SeenVersion, ShardedLock, Store};
use muster_testkit::{NatsServer, RedisServer, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Time limit for anything that does not wait by design.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// What the worker executed, in order: topic and payload.
pub(crate) type Executed = Arc<Mutex<Vec<(String, Value)>>>;

/// Servers of one test, and the services on them.
pub(crate) struct Stack {
    pub(crate) redis: RedisServer,
    pub(crate) nats: NatsServer,
    pub(crate) runs: Runs,
    pub(crate) executed: Executed,
    tasks: Tasks,
    ops: AtomicU32,
}

/// One replica of the workflow service.
pub(crate) struct Replica {
    pub(crate) chassis: Chassis,
    ends: JoinHandle<Option<anyhow::Result<()>>>,
}

impl Replica {
    /// Stops the replica as a signal does, and waits until it has ended.
    pub(crate) async fn stops(self) {
        self.chassis.stop.request();
        self.ends.await.unwrap().expect("no panic").expect("a clean end");
    }
}

/// Topics that the worker handles: what it does is its name.
const TOPICS: [&str; 5] = ["echo", "fail", "flaky", "undo", "slow"];

impl Stack {
    /// Servers, a scheduler, a worker and one workflow replica.
    pub(crate) async fn start() -> Stack {
        let stack = Stack::without_workflow().await;
        stack.workflow("w1").await;
        stack
    }

    pub(crate) async fn without_workflow() -> Stack {
        let (redis, nats) = (RedisServer::start().await, NatsServer::start().await);
        let store = Store::connect(RedisSettings::new(redis.url())).await.unwrap();
        let bus = Bus::connect(BusSettings::new(nats.url(), "test")).await.unwrap();
        let clock = store.clone();
        bus.set_clock(Arc::new(move || clock.now()));
        bus.connected().await;
        bus.ensure_streams().await.unwrap();
        let stack = Stack {
            redis,
            nats,
            runs: Runs::new(Flow::new(store, bus)),
            executed: Executed::default(),
            tasks: Tasks::new(),
            ops: AtomicU32::new(0),
        };
        let scheduler = stack.chassis(
            muster_scheduler::SERVICE,
            muster_scheduler::SETTINGS,
            "s1",
            &[("--outage-wait", "100ms"), ("--loop-scrub-interval", "1h"), ("--loop-reread-interval", "1s")],
        );
        stack.tasks.spawn("scheduler", muster_scheduler::run(scheduler.clone()));
        ready(&scheduler).await;
        stack.work();
        stack
    }

    fn chassis(
        &self,
        service: &'static str,
        known: &'static [settings::Declaration],
        name: &str,
        more: &[(&str, &str)],
    ) -> Chassis {
        let args: Vec<String> = [
            ("--redis-url", self.redis.url()),
            ("--nats-url", self.nats.url()),
            ("--instance-id", name.to_owned()),
            ("--admin-addr", "127.0.0.1:0".to_owned()),
        ]
        .into_iter()
        .chain(more.iter().map(|(flag, value)| (*flag, (*value).to_owned())))
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        Chassis::new(service, settings::load(service, known, &args, &BTreeMap::new()).unwrap().values)
    }

    /// Starts one more workflow replica and waits until it is ready.
    pub(crate) async fn workflow(&self, name: &str) -> Replica {
        let often = [("--loop-run-reread-interval", "1s")];
        let chassis = self.chassis(muster_workflow::SERVICE, muster_workflow::SETTINGS, name, &often);
        let ends = self.tasks.spawn("workflow", muster_workflow::run(chassis.clone()));
        ready(&chassis).await;
        Replica { chassis, ends }
    }

    /// How many shards each replica owns.
    pub(crate) async fn owners(&self) -> BTreeMap<String, usize> {
        let mut owners = BTreeMap::new();
        for seen in self.runs.flow.store.leader_locks().await.unwrap() {
            if let (Some((ShardedLock::Runs, _)), Some(holder)) = (seen.shard, seen.holder) {
                *owners.entry(holder.instance().to_owned()).or_default() += 1;
            }
        }
        owners
    }

    /// Waits until the shards belong to these replicas, so many to each.
    pub(crate) async fn owned_by(&self, wanted: &[(&str, usize)]) {
        let wanted: BTreeMap<String, usize> = wanted.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        until(2 * SOON, &format!("the shards to be owned by {wanted:?}"), async || {
            (self.owners().await == wanted).then_some(())
        })
        .await;
    }

    /// Starts the worker.
    fn work(&self) {
        let mut worker = Worker::builder(self.nats.url()).concurrency(64);
        for topic in TOPICS {
            let executed = self.executed.clone();
            worker = worker.handle(topic, move |ctx: Context, payload: Value| {
                let executed = executed.clone();
                async move { handle(topic, &ctx, payload, &executed).await }
            });
        }
        let worker = worker.build().unwrap();
        self.tasks.spawn("worker", async move { drop(worker.run().await) });
    }

    /// Stores a workflow.
    pub(crate) async fn define(&self, name: &str, yaml: &str) {
        let definition = read_named(yaml.as_bytes(), Format::Yaml, Some(name)).unwrap_or_else(|f| panic!("{f:#?}"));
        let text = definition.canonical().into();
        let (tenant, name) = (Tenant::default(), WorkflowName::parse(name).unwrap());
        let hash = std::array::from_fn(|_| fastrand::u8(..));
        let put = self.runs.flow.store.put_definition(&tenant, &name, SeenVersion::Any, &text, &hash).await;
        assert!(matches!(put, Ok(PutDefinition::Stored { new: true, .. })), "{put:?}");
    }

    pub(crate) fn start_of(&self, workflow: &str, input: Value) -> Start {
        Start {
            id: RunId::mint(fastrand::u8(0..16)),
            tenant: Tenant::default(),
            workflow: WorkflowName::parse(workflow).unwrap(),
            version: None,
            input: Some(input),
            labels: BTreeMap::new(),
            principal: "test".into(),
            topics: Vec::new(),
            hash: None,
            parent: None,
            depth: 0,
        }
    }

    /// Starts a run.
    pub(crate) async fn run(&self, workflow: &str, input: Value) -> RunId {
        self.try_run(workflow, input).await.1.unwrap()
    }

    /// Starts a run that may be refused. Returns the id that it has or would have.
    pub(crate) async fn try_run(&self, workflow: &str, input: Value) -> (RunId, Result<RunId, StartRefused>) {
        let start = self.start_of(workflow, input);
        let id = start.id;
        let started = self.runs.start(start).await.map(|started| {
            assert!(!started.replayed);
            id
        });
        (id, started)
    }

    /// Defines a workflow, runs it and waits for this end.
    pub(crate) async fn ends(&self, yaml: &str, input: Value, state: RunState) -> Kept {
        self.define("w", yaml).await;
        let id = self.run("w", input).await;
        self.ended(id, state).await
    }

    pub(crate) async fn read(&self, id: RunId) -> Kept {
        self.runs.read(id).await.unwrap().expect("the run is stored").0
    }

    /// Waits until a run has ended, with nothing left to do: its home is removed last.
    pub(crate) async fn ended(&self, id: RunId, state: RunState) -> Kept {
        let kept = until(2 * SOON, &format!("run {id} to end"), async || {
            let kept = self.read(id).await;
            kept.run.state().is_end().then_some(kept)
        })
        .await;
        assert_eq!(kept.run.state(), state, "{:?} {:#?}", kept.run.error(), self.timeline(id).await);
        until(2 * SOON, "its home to be gone", async || {
            self.runs.flow.store.home_of(id).await.unwrap().is_none().then_some(())
        })
        .await;
        self.read(id).await
    }

    /// Copies a run, so that [`Stack::set_back`] can restore it like a failover that lost the later saves.
    pub(crate) async fn remember(&self, id: RunId) {
        let (run, then) = (format!("muster:wf:run:{id}"), format!("then:{id}"));
        assert_eq!(self.redis.cli(&["COPY", &run, &then, "REPLACE"]).await, "1");
    }

    /// Sets a run back to what it was, and has the bus read again.
    pub(crate) async fn set_back(&self, id: RunId) {
        self.redis.cli(&["COPY", &format!("then:{id}"), &format!("muster:wf:run:{id}"), "REPLACE"]).await;
        self.reread(id).await;
    }

    /// Deletes a run as a failover does that lost it whole, and has the bus read again.
    pub(crate) async fn forget(&self, id: RunId) {
        self.redis.cli(&["DEL", &format!("muster:wf:run:{id}")]).await;
        self.redis.cli(&["ZREM", &format!("muster:due:run:{:x}", id.shard()), &id.to_string()]).await;
        self.reread(id).await;
    }

    /// An unknown mark: everything on the bus is read again.
    async fn reread(&self, id: RunId) {
        self.redis.cli(&["SET", "muster:workflow-engine:reread:mark", &format!("lost with {id}")]).await;
    }

    /// Waits until everything that was lost is there again.
    pub(crate) async fn is_whole(&self) {
        until(2 * SOON, "the bus to be read again", async || {
            let mark = self.redis.cli(&["GET", "muster:workflow-engine:reread:mark"]).await;
            (!mark.contains("lost with") && !mark.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until a run has this state.
    pub(crate) async fn reaches(&self, id: RunId, state: RunState) {
        until(SOON, &format!("run {id} to be {state}"), async || {
            (self.read(id).await.run.state() == state).then_some(())
        })
        .await;
    }

    /// Sends a signal without a body.
    pub(crate) async fn signal(&self, id: RunId, name: &str) {
        self.ask(id, Ask::Signal { name: name.into(), body: Value::Null }).await;
    }

    /// Waits until a step has this state.
    pub(crate) async fn step(&self, id: RunId, step: &str, state: &str) {
        until(SOON, &format!("step {step} to be {state}"), async || {
            let now = self.read(id).await.run.step_state(step).unwrap();
            (now.map(|now| now.as_str()) == Some(state)).then_some(())
        })
        .await;
    }

    /// Applies an operation.
    pub(crate) async fn ask(&self, id: RunId, ask: Ask) -> Operated {
        let op = format!("op-{}", self.ops.fetch_add(1, Ordering::Relaxed));
        self.runs.operate(&Tenant::default(), id, &op, &ask).await.unwrap()
    }

    pub(crate) async fn timeline(&self, id: RunId) -> Vec<String> {
        let timeline = self.runs.flow.store.read_timeline(id).await.unwrap();
        let line = |bytes: &bytes::Bytes| {
            let TimelineEntry { what, step, why, .. } = TimelineEntry::read(bytes).unwrap();
            format!("{step} {what} {why}").trim().to_owned()
        };
        timeline.first.iter().chain(&timeline.last).map(line).collect()
    }

    /// What the worker executed of a topic, in order.
    pub(crate) fn executed(&self, topic: &str) -> Vec<Value> {
        let executed = self.executed.lock().unwrap();
        executed.iter().filter(|(of, _)| of == topic).map(|(_, payload)| payload.clone()).collect()
    }
}

async fn ready(chassis: &Chassis) {
    until(4 * SOON, "the service to be ready", async || (chassis.health.readiness() == Readiness::Ready).then_some(()))
        .await;
}

async fn handle(topic: &str, ctx: &Context, payload: Value, executed: &Executed) -> Result<Value, HandlerError> {
    executed.lock().unwrap().push((topic.to_owned(), payload.clone()));
    match topic {
        "fail" => Err(HandlerError::permanent("told to fail")),
        "flaky" if ctx.attempt() < 2 => Err(HandlerError::retryable("not yet")),
        "slow" => {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(1000))) => {}
                () = ctx.cancelled() => return Err(HandlerError::retryable("cancelled")),
            }
            Ok(payload)
        }
        _ => Ok(json!({ "got": payload })),
    }
}
