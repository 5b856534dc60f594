//! A worker over NATS: handlers per topic, as many jobs at once as it has slots.
//!
//! This module knows how a worker is configured ([`WorkerBuilder`]), run and stopped. No more handlers run than there
//! are slots. The worker extends every attempt that it has started, reports it, and repeats the report until a
//! scheduler has settled it. An outage of NATS ends no running handler. A worker that is asked to leave gives back what
//! it did not finish. The schedulers handle retries and time, and decide the state of a job.
//!
//! The parts: `turn` is the loop that owns all state, `errands` holds the messages that it sends. `starts`, `running`,
//! `leases` and `results` each handle one stage of an attempt, `leave` handles the way out, `pulse` the heartbeat.

mod context;
mod errands;
mod handler;
mod leases;
mod leave;
mod phase;
mod pulls;
mod pulse;
mod results;
mod running;
mod slots;
mod spans;
mod starts;
mod turn;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_bus::{Bus, BusError, BusSettings, ConsumerSpec, GroupPublisher, subjects};
use muster_domain::{JobId, Tenant, Topic, WorkerId, line::MAX_REQUIRES, topic::check_label};
use muster_wire::{Body, encoded_len, v1};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::watch, task::JoinSet};

pub use context::{Context, StopReason};
pub use handler::{HandlerError, INVALID_PAYLOAD, JobResult, MAX_RESULT, RESULT_PREVIEW};
pub use leave::LEAVE_GRACE;
use pulls::{Pulls, Source};
use pulse::{Pulse, Vitals};
use turn::Turn;

/// How many results may wait for the stream before the loop's publishes have to wait.
const PUBLISH_BOUND: usize = 8192;
/// How long a worker's last messages may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One attempt at one job. Every message about an attempt carries its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Attempt {
    pub(crate) job: JobId,
    pub(crate) fence: u64,
}

/// The order that a worker has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Work,
    Drain,
    Stop,
}

/// A validated worker configuration.
struct Plan {
    worker: WorkerId,
    tenant: Tenant,
    all_tenants: bool,
    topics: Vec<Topic>,
    handlers: HashMap<String, handler::Handler>,
    labels: BTreeMap<String, String>,
    concurrency: usize,
    lease: Duration,
    drain: Duration,
    grace: Duration,
}

/// Why a worker could not be built or run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The configuration is invalid; every fault is listed.
    #[error("this worker cannot run: {}", .0.join("; "))]
    Invalid(Vec<String>),
    /// NATS cannot be used in its current state. An outage of NATS is no error: the worker waits.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// The totals of a worker that has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts released while leaving.
    pub released: u64,
    /// Attempts that were cancelled, timed out or taken away while they ran.
    pub lost: u64,
    /// Results that were not settled when the worker left. The stream may hold them nevertheless.
    pub unsettled: usize,
}

/// Builds a worker. See the example at [`Worker`].
#[must_use]
pub struct WorkerBuilder {
    url: String,
    tenant: String,
    all_tenants: bool,
    id: Option<String>,
    concurrency: usize,
    lease: Duration,
    drain: Duration,
    grace: Duration,
    replicas: usize,
    labels: BTreeMap<String, String>,
    handlers: Vec<(String, handler::Handler)>,
}

impl WorkerBuilder {
    /// Sets the tenant whose jobs the worker runs; `default` by default.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// On topics that are declared `shared`, the worker runs the jobs of every tenant besides its own. It goes from
    /// tenant to tenant, so that no tenant waits behind another tenant's flood of jobs.
    pub fn all_tenants(mut self) -> Self {
        self.all_tenants = true;
        self
    }

    /// Sets the worker's name: 1 to 64 letters, digits, `_` or `-`. It must be unique; a random one by default.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets how many jobs the worker runs at once; 16 by default.
    pub fn concurrency(mut self, slots: usize) -> Self {
        self.concurrency = slots;
        self
    }

    /// Sets how long the worker may be silent before other workers get its jobs; 30 s by default, 1 s to 15 min.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long running jobs may continue when the worker is asked to leave; 25 s by default.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Sets how long a handler that was asked to stop may take before it is aborted; 5 s by default. When the time for
    /// draining is over it is 3 s at most, so that a worker leaves soon after its drain limit.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the number of copies of the streams, in case this worker is the first to need them; 1 by default, use 3 on
    /// a NATS cluster.
    pub fn stream_replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Adds a label that this worker provides: jobs that require it are offered to this worker. Every worker provides
    /// its own name as `worker`.
    pub fn provides(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the handler for the jobs of a topic. The payload is parsed into `T`; a payload that does not fit fails the
    /// job for good with the code `invalid_payload`. The result is `R` as JSON.
    pub fn handle<T, R, F, Fut>(mut self, topic: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(Context, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.handlers.push((topic.into(), handler::typed(handler)));
        self
    }

    /// The same with JSON bytes: the payload arrives exactly as it was sent (empty if there is none), and the result is
    /// sent exactly as it is returned: [`Bytes`], or a [`JobResult`] of which the handler kept only the beginning.
    pub fn handle_raw<F, Fut, R>(mut self, topic: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context, Bytes) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
        R: Into<JobResult> + Send + 'static,
    {
        self.handlers.push((topic.into(), handler::raw(handler)));
        self
    }

    /// Returns the worker, or everything that is wrong with its configuration.
    pub fn build(self) -> Result<Worker, WorkerError> {
        let mut faults = Vec::new();
        let tenant = Tenant::parse(&self.tenant).map_err(|f| faults.push(format!("tenant {:?}: {f}", self.tenant)));
        let worker = match &self.id {
            Some(id) => WorkerId::parse(id).map_err(|f| faults.push(format!("id {id:?}: {f}"))),
            None => Ok(WorkerId::random("w")),
        };
        let mut topics: Vec<Topic> = Vec::new();
        for (name, _) in &self.handlers {
            match Topic::parse(name) {
                Ok(topic) if topics.contains(&topic) => faults.push(format!("topic {name:?} has two handlers")),
                Ok(topic) => topics.push(topic),
                Err(fault) => faults.push(format!("topic {name:?}: {fault}")),
            }
        }
        if self.handlers.is_empty() {
            faults.push("it has no handler".to_owned());
        }
        if self.labels.len() > MAX_REQUIRES {
            faults.push(format!("it provides more than {MAX_REQUIRES} labels"));
        }
        for (key, value) in &self.labels {
            if let Err(fault) = check_label(key, value) {
                faults.push(format!("provides {key:?}: {fault}"));
            }
        }
        if self.concurrency == 0 {
            faults.push("concurrency is 0".to_owned());
        }
        if self.lease < Duration::from_secs(1) || self.lease > Duration::from_secs(900) {
            faults.push(format!("a lease of {:?} is not within 1 s and 15 min", self.lease));
        }
        let (Ok(tenant), Ok(worker), true) = (tenant, worker, faults.is_empty()) else {
            return Err(WorkerError::Invalid(faults));
        };
        let plan = Plan {
            worker,
            tenant,
            all_tenants: self.all_tenants,
            topics,
            handlers: self.handlers.into_iter().collect(),
            labels: self.labels,
            concurrency: self.concurrency,
            lease: self.lease,
            drain: self.drain,
            grace: self.grace,
        };
        let orders = watch::Sender::new(Order::Work);
        Ok(Worker { url: self.url, replicas: self.replicas, plan: Arc::new(plan), orders: Arc::new(orders) })
    }
}

/// Runs jobs. Built by [`Worker::builder`], runs until it is asked to leave.
///
/// ```no_run
/// use muster_sdk::{Context, HandlerError, Worker};
///
/// #[derive(serde::Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// # async fn example() -> Result<(), muster_sdk::WorkerError> {
/// let worker = Worker::builder("nats://127.0.0.1:4222")
///     .concurrency(32)
///     .handle("mail.send", |ctx: Context, mail: Mail| async move {
///         ctx.progress(50.0, "half way", None);
///         if mail.to.is_empty() {
///             return Err(HandlerError::permanent("nobody to write to"));
///         }
///         Ok(format!("sent to {}", mail.to))
///     })
///     .build()?;
/// let handle = worker.handle(); // drain() or stop() it from anywhere
/// # drop(handle);
/// worker.run_until_signal().await?;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    url: String,
    replicas: usize,
    plan: Arc<Plan>,
    orders: Arc<watch::Sender<Order>>,
}

impl Worker {
    /// A builder for a worker that finds NATS at `nats_url` (several servers comma-separated).
    pub fn builder(nats_url: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder {
            url: nats_url.into(),
            tenant: Tenant::default().to_string(),
            all_tenants: false,
            id: None,
            concurrency: 16,
            lease: Duration::from_secs(30),
            drain: Duration::from_secs(25),
            grace: Duration::from_secs(5),
            replicas: 1,
            labels: BTreeMap::new(),
            handlers: Vec::new(),
        }
    }

    /// The worker's name on the bus.
    pub fn id(&self) -> &WorkerId {
        &self.plan.worker
    }

    /// A handle to stop the worker from anywhere.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle { orders: Arc::clone(&self.orders) }
    }

    /// Works until `stop` resolves, then drains.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Summary, WorkerError> {
        let handle = self.handle();
        let run = self.run();
        tokio::pin!(run, stop);
        tokio::select! {
            done = &mut run => return done,
            () = &mut stop => handle.drain(),
        }
        run.await
    }

    /// Works until SIGTERM or SIGINT, then drains. A second signal stops the worker at once.
    pub async fn run_until_signal(self) -> Result<Summary, WorkerError> {
        let handle = self.handle();
        let run = self.run();
        tokio::pin!(run);
        tokio::select! {
            done = &mut run => return done,
            () = signal() => handle.drain(),
        }
        tokio::select! {
            done = &mut run => return done,
            () = signal() => handle.stop(),
        }
        run.await
    }

    /// Works until its handle, or Muster, asks it to leave. It waits out an outage of NATS. An error means that the
    /// address cannot be used, or that a consumer on the server differs from the one that the worker needs.
    pub async fn run(self) -> Result<Summary, WorkerError> {
        let plan = Arc::clone(&self.plan);
        let settings = BusSettings { replicas: self.replicas, ..BusSettings::new(&self.url, plan.worker.as_str()) };
        let bus = Bus::connect(settings).await?;
        // Subscribe before the first pull, so that no notice about a started job is missed.
        let ctl = bus.subscribe(&subjects::worker_ctl(&plan.worker), None).await?;

        let mut own = Vec::with_capacity(plan.topics.len());
        for topic in &plan.topics {
            let source = Source { tenant: plan.tenant.clone(), line: topic.into() };
            own.push((source, bus.consumer(ConsumerSpec::offers(&plan.tenant, topic)).await?));
        }

        // Tasks beside the loop end with it: dropping the set aborts them.
        let beside = Mutex::new(JoinSet::new());
        let spawn = |task| {
            beside.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
        };
        let publisher = GroupPublisher::new(
            bus.clone(),
            subjects::result(),
            &spawn,
            |items| Body::Result(v1::ResultGroup { items }),
            |result: &v1::Result| encoded_len(result),
            PUBLISH_BOUND,
        );
        let vitals = Vitals::new();
        let pulse = Pulse {
            worker: plan.worker.to_string(),
            tenant: plan.tenant.to_string(),
            all_tenants: plan.all_tenants,
            topics: plan.topics.iter().map(Topic::to_string).collect(),
            labels: plan.labels.clone(),
            slots: plan.concurrency,
            vitals: Arc::clone(&vitals),
        };
        spawn(Box::pin(pulse.clone().run(bus.clone())));
        tracing::info!(worker = %plan.worker, topics = ?plan.topics, slots = plan.concurrency, "worker runs");

        let turn = Turn::new(bus.clone(), plan.clone(), Pulls::new(own, plan.all_tenants), Arc::new(publisher), vitals);
        let (summary, consumers) = turn.run(ctl, self.orders.subscribe()).await;

        let last = async {
            join_all(consumers.iter().map(|consumer| consumer.close())).await;
            pulse.leave(&bus).await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, last).await;
        bus.flush(LAST_WORDS).await;
        tracing::info!(?summary, "worker has left");
        Ok(summary)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.plan.worker)
            .field("topics", &self.plan.topics)
            .finish_non_exhaustive()
    }
}

/// Stops a worker from anywhere. Cheap to clone; a worker continues when all its handles are dropped.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    orders: Arc<watch::Sender<Order>>,
}

impl WorkerHandle {
    /// Takes no more work, lets running jobs finish within the drain limit, gives the rest back, leaves.
    pub fn drain(&self) {
        self.orders.send_if_modified(|order| {
            let was = std::mem::replace(order, if *order == Order::Work { Order::Drain } else { *order });
            was != *order
        });
    }

    /// The same without waiting: running jobs are stopped and given back at once.
    pub fn stop(&self) {
        self.orders.send_replace(Order::Stop);
    }
}

/// Waits for SIGTERM or SIGINT.
async fn signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
        return;
    }
    let _ = interrupt.await;
}
