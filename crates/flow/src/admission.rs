//! Admission: decides whether a job may enter, and commits the jobs that may.
//!
//! Knows: every check between a job that was read from a request and its commit, each in one place: the lag of the
//! schedulers, declared topics, payload schemas and full backlogs in [`Open::admit`]; the tenant's rate and the queue
//! of commits in [`Admission::submit`] and [`Admission::submit_all`]. Promises: no check depends on the transport, so
//! every service that submits jobs uses the same ones; a refusal says why and when to try again ([`Refusal`]); a repeat
//! of a stored job passes the settings that changed since, and costs no token. A job whose fields are
//! beyond their [`bounds`] cannot be asked for. Leaves to others: reading a request, access, and the commit itself
//! (`submit`).

mod backlog;
pub mod bounds;
mod group;
mod lag;
mod limits;
mod refusal;
mod schemas;
mod task;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use muster_domain::{JobId, JobSpec, Tenant, Topic};
use muster_store::{Fields, NewJob, TopicRecord, Want};

use crate::{Accepted, Flow};
use backlog::Backlogs;
use bounds::Bounded;
use group::{Group, Item, NotCommitted};
use lag::Lag;
use schemas::Schemas;

pub use limits::{Bucket, Limits};
pub use refusal::{Refusal, SchemaFault};
pub use schemas::{pointer, read_schema};
pub use task::Task;

/// The name of the setting of the cluster that says whether only declared topics are used: `open` or `declared`.
pub const TOPICS: &str = "topics";

/// The settings of admission with which a process starts.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Whether only topics with stored settings may be used. The setting [`TOPICS`] of the cluster overrides this.
    pub declared: bool,
    /// Submits per second and tenant; 0 means no limit.
    pub per_second: f64,
    /// Submits of one tenant at once.
    pub burst: u32,
    /// Whether all replicas share the rate; otherwise each replica counts by itself.
    pub shared: bool,
    /// The services whose replicas share the rate.
    pub sharers: &'static [&'static str],
    /// How far behind the schedulers may be; zero means no limit.
    pub max_lag: Duration,
}

/// A job that a caller wants to submit.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Derived from a key that the caller gave; a repeat has the same id. `None`: the commit mints the id.
    pub id: Option<JobId>,
    /// What to run, with its payload.
    pub job: Bounded,
    /// The hash of the request; set if the id was derived.
    pub hash: Option<[u8; 16]>,
    /// Whether the payload is checked against the topic's schema.
    pub payload_check: PayloadCheck,
}

/// Whether a payload is checked against its topic's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadCheck {
    /// The payload must fit the schema.
    Schema,
    /// The payload was accepted for this topic before, and is accepted again whatever the settings are now.
    AcceptedBefore,
}

/// A job that passed every check of [`Open::admit`]. Only the rate, the queue and the stores can still refuse it.
#[derive(Debug)]
pub struct Admitted(Item);

/// The result for one job: the stored job and how it was accepted, or the refusal.
pub type Answer = Result<(NewJob, Accepted), Refusal>;

/// The tasks that must run for as long as jobs are admitted.
pub struct Work {
    /// Measure what the checks ask for. They write nothing.
    pub watch: Vec<Task>,
    /// Commit the submits. They end once they are asked to stop and the queue is empty.
    pub commit: Vec<Task>,
}

/// The checks of this replica.
pub struct Admission {
    flow: Flow,
    declared: bool,
    limits: Arc<Limits>,
    lag: Arc<Lag>,
    backlogs: Backlogs,
    schemas: Schemas,
    group: Group,
}

impl Admission {
    /// Creates the admission of this replica. It admits once the tasks of [`Work`] run.
    pub fn new(flow: &Flow, rules: &Rules) -> (Admission, Work) {
        let shared = rules.shared.then(|| flow.store.clone());
        let limits = Arc::new(Limits::new(rules.per_second, rules.burst, shared));
        let lag = Arc::new(Lag::new(rules.max_lag));
        let (group, commit) = Group::new(flow, &limits);
        let (counting, store, sharers) = (limits.clone(), flow.store.clone(), rules.sharers);
        let (measuring, of) = (lag.clone(), flow.clone());
        let watch = vec![
            Task::until_stopped("replicas", move || {
                let (limits, store) = (counting.clone(), store.clone());
                async move { limits.count_replicas(&store, sharers).await }
            }),
            Task::until_stopped("lag", move || {
                let (lag, flow) = (measuring.clone(), of.clone());
                async move { lag.watch(&flow).await }
            }),
        ];
        let admission = Admission {
            flow: flow.clone(),
            declared: rules.declared,
            limits,
            lag,
            backlogs: Backlogs::default(),
            schemas: Schemas::default(),
            group,
        };
        (admission, Work { watch, commit })
    }

    /// The rate limits of tenants.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Makes sure that the settings of topics are known: no job is read or admitted without them.
    pub async fn open(&self) -> Result<Open<'_>, Refusal> {
        self.flow.know_settings().await?;
        Ok(Open(self))
    }

    /// Submits one job and waits for its answer. A token of the tenant's rate is taken with the commit; a repeat of a
    /// stored job is answered even beyond the rate.
    pub async fn submit(&self, Admitted(item): Admitted) -> Answer {
        let outcome = match self.limits.refused(&item.spec.tenant) {
            Some(retry_after) => Err(NotCommitted::Unpaid { item: Box::new(item), retry_after }),
            None => self.group.submit(item).await,
        };
        match outcome {
            Err(NotCommitted::Unpaid { item, retry_after }) if item.id.is_some() => {
                Box::pin(self.repeat(*item, retry_after)).await
            }
            outcome => outcome.map_err(Refusal::from),
        }
    }

    /// Submits a job that the tenant's rate refused, if it is stored already: a repeat costs no token. The check is a
    /// read, and counts as one.
    async fn repeat(&self, item: Item, retry_after: Duration) -> Answer {
        let over = Refusal::RateLimited { retry_after };
        if !self.take_read(&item.spec.tenant).await {
            return Err(over);
        }
        self.unless_stored(&item.spec.tenant, item.id, over).await?;
        Ok(self.group.submit(Item { paid: true, ..item }).await?)
    }

    /// Submits jobs of one tenant. The rate admits all of them or refuses the call as a whole. The answers come in the
    /// same order.
    pub async fn submit_all(&self, jobs: Vec<Admitted>) -> Result<Vec<Answer>, Refusal> {
        let Some(Admitted(first)) = jobs.first() else { return Ok(Vec::new()) };
        let tenant = first.spec.tenant.clone();
        let n = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        let ids: Vec<JobId> = jobs.iter().filter_map(|Admitted(item)| item.id).collect();
        let paid = Box::pin(self.pay(&tenant, n, &ids)).await?;
        let items = jobs.into_iter().map(|Admitted(item)| Item { paid: true, ..item }).collect();
        let answers: Vec<Answer> =
            self.group.submit_all(items).await.into_iter().map(|outcome| outcome.map_err(Refusal::from)).collect();
        // Repeats cost nothing. For jobs that `pay` found to be stored already, no token was taken.
        let replayed = answers.iter().flatten().filter(|(_, accepted)| accepted.replayed).count();
        let back = u32::try_from(replayed).unwrap_or(u32::MAX).saturating_sub(n - paid).min(paid);
        if back > 0 {
            self.limits.give_back(&tenant, back).await;
        }
        Ok(answers)
    }

    /// Takes a token for each of `n` jobs or, if there are not that many, only for the jobs that are not stored yet.
    /// Returns how many tokens were taken.
    async fn pay(&self, tenant: &Tenant, n: u32, ids: &[JobId]) -> Result<u32, Refusal> {
        let refused = match self.limits.take_all(tenant, n).await {
            Ok(()) => return Ok(n),
            Err(refused) => refused,
        };
        if ids.is_empty() || !self.take_read(tenant).await {
            return Err(refused);
        }
        let read = self.flow.store.read(ids, Fields::NONE).await;
        let there = read.iter().flatten().flatten().filter(|record| record.spec.tenant == *tenant).count();
        if there == 0 {
            return Err(refused);
        }
        let new = n.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX));
        if new > 0 {
            self.limits.take_all(tenant, new).await?;
        }
        Ok(new)
    }

    async fn take_read(&self, tenant: &Tenant) -> bool {
        self.limits.take(tenant, Bucket::Read, 1, Want::Some).await.granted > 0
    }

    /// Lets a refused job through if it was accepted before: newer settings of its topic do not refuse a repeat.
    async fn unless_stored(&self, tenant: &Tenant, id: Option<JobId>, refused: Refusal) -> Result<(), Refusal> {
        let Some(id) = id else { return Err(refused) };
        match self.flow.store.read_one(id, Fields::NONE).await? {
            Some(record) if record.spec.tenant == *tenant => Ok(()),
            _ => Err(refused),
        }
    }

    /// The settings of a topic, if the topic may be used.
    fn topic(&self, tenant: &Tenant, topic: &Topic) -> Result<Option<Arc<TopicRecord>>, Refusal> {
        let told = self.flow.settings.topic(tenant.as_str(), topic.as_str());
        if told.is_none() && self.must_be_declared() {
            return Err(Refusal::Undeclared);
        }
        Ok(told)
    }

    /// Reads the known settings, not the applied ones: the first request that reads Redis must not be admitted before
    /// the rest of this replica applies the settings.
    fn must_be_declared(&self) -> bool {
        match self.flow.settings.config().values.get(TOPICS).map(String::as_str) {
            Some("declared") => true,
            Some("open") => false,
            _ => self.declared,
        }
    }
}

/// An admission that knows the settings of topics.
#[derive(Clone, Copy)]
pub struct Open<'a>(&'a Admission);

impl Open<'_> {
    /// A new spec with the defaults of its topic, for a reader that fills in what the request gives.
    pub fn spec(&self, tenant: &Tenant, topic: Topic) -> Result<JobSpec, Refusal> {
        let told = self.0.topic(tenant, &topic)?;
        let mut spec = JobSpec::new(tenant.clone(), topic);
        if let Some(told) = told {
            spec.timeout_ms = told.settings.timeout_ms.unwrap_or(spec.timeout_ms);
            spec.retry = told.settings.retry.map_or(spec.retry, Into::into);
        }
        Ok(spec)
    }

    /// Admits a job, or returns the first reason to refuse it. A job that is stored already passes the checks of its
    /// topic's settings. Nothing is stored.
    pub async fn admit(&self, asked: Asked) -> Result<Admitted, Refusal> {
        let admission = self.0;
        admission.lag.admit()?;
        let Asked { id, job: Bounded { spec, payload }, hash, payload_check } = asked;
        if let Some(told) = admission.topic(&spec.tenant, &spec.topic)? {
            // Boxed, as is everything that is rarely awaited on the path of a submit. Otherwise each request would
            // carry the memory for it.
            let judged = Box::pin(self.judge(&spec, &payload, payload_check, &told)).await;
            if let Err(refused) = judged {
                Box::pin(admission.unless_stored(&spec.tenant, id, refused)).await?;
            }
        }
        Ok(Admitted(Item { id, spec, payload, hash, paid: false }))
    }

    /// Checks the settings of a topic: the schema of its payloads, and the limit of its backlog.
    async fn judge(
        &self,
        spec: &JobSpec,
        payload: &Bytes,
        payload_check: PayloadCheck,
        told: &TopicRecord,
    ) -> Result<(), Refusal> {
        let name = (&spec.tenant, &spec.topic);
        if payload_check == PayloadCheck::Schema {
            self.0.schemas.judge(name, told, payload).await?;
        }
        match told.settings.max_backlog {
            Some(most) => self.0.backlogs.admit(&self.0.flow, name, most).await,
            None => Ok(()),
        }
    }
}
