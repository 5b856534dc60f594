//! Applies the settings of topics to submits: defaults, full backlogs, payload schemas, undeclared topics.
//!
//! Knows: the snapshot of settings, and how many jobs of a bounded topic wait. Promises: a topic without settings
//! costs one lookup in a map. The backlog of a bounded topic is measured over all its lines, at most every [`FRESH`],
//! and jobs that this gateway admits in between are counted. With n gateways, the bound can therefore be exceeded by
//! what n − 1 of them admit in that time. Leaves to others: storing and distributing settings (`flow`), reading
//! settings from requests (`topics/read`), checking payloads (`topics/schemas`).

mod read;
mod schemas;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use muster_domain::{ProblemCode, Tenant, Topic};
use muster_flow::{Flow, Waits};
use muster_store::{Retention, StoreError, TopicRecord, WorkerSnapshot};

use crate::{auth::Caller, problem::Problem};

pub(crate) use read::read_settings;

/// How long a measurement of a backlog is valid.
const FRESH: Duration = Duration::from_millis(250);
/// The most measurements that are kept.
const MOST_MEASURED: usize = 10_000;
/// How long a request waits for the first reading of the settings: a request must be answered within two seconds,
/// even if Redis does not answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// When a client that met a full backlog should retry.
const COME_BACK: Duration = Duration::from_secs(2);

/// The topics, as this gateway knows them.
pub(crate) struct Topics {
    flow: Flow,
    /// Whether only topics with stored settings may be used. A setting of the cluster overrides this.
    declared: bool,
    measured: Mutex<HashMap<(Tenant, Topic), Measure>>,
    schemas: schemas::Schemas,
}

/// How many jobs waited at the time of the measurement, and how many were admitted since.
#[derive(Clone, Copy, Debug)]
struct Measure {
    waiting: u64,
    admitted: u64,
    at: Instant,
}

impl Topics {
    pub(crate) fn new(flow: Flow, declared: bool) -> Topics {
        Topics { flow, declared, measured: Mutex::default(), schemas: schemas::Schemas::default() }
    }

    /// Makes sure that the settings were read from Redis once. Before that, no setting of a topic is known.
    pub(crate) async fn know(&self) -> Result<(), StoreError> {
        if self.flow.settings.is_known() {
            return Ok(());
        }
        // Boxed, as is everything that is rarely awaited on the path of a submit. Otherwise each request would carry
        // the memory for it.
        match Box::pin(tokio::time::timeout(PATIENCE, self.flow.poll_settings())).await {
            Ok(polled) => polled.map(|_| ()),
            Err(_) => Err(StoreError::Unavailable { detail: "settings were not read in time".to_owned() }),
        }
    }

    /// The settings of a topic, if the topic may be used.
    pub(crate) fn told(&self, tenant: &Tenant, topic: &Topic) -> Result<Option<Arc<TopicRecord>>, &'static str> {
        let told = self.flow.settings.topic(tenant.as_str(), topic.as_str());
        if told.is_none() && self.must_be_declared() {
            return Err("is not declared, and MUSTER_TOPICS=declared refuses topics that are not");
        }
        Ok(told)
    }

    /// Whether a payload, which is at `at` in the request, fits the schema of its topic.
    pub(crate) async fn fits(&self, tenant: &Tenant, topic: &Topic, payload: &Bytes, at: &str) -> Result<(), Problem> {
        match self.flow.settings.topic(tenant.as_str(), topic.as_str()) {
            Some(told) => self.schemas.judge((tenant, topic), &told, payload, at).await,
            None => Ok(()),
        }
    }

    /// Reads the known settings, not the applied ones: the first request that reads Redis must not be admitted before
    /// the rest of this gateway applies the settings.
    fn must_be_declared(&self) -> bool {
        match self.flow.settings.config().values.get(crate::settings::TOPICS.key()).map(String::as_str) {
            Some("declared") => true,
            Some("open") => false,
            _ => self.declared,
        }
    }

    /// How long ended jobs are kept: the usual times, or those of their topic.
    pub(crate) fn retention(&self, usual: &Retention) -> Retention {
        Retention { topics: self.flow.settings.retentions(), ..*usual }
    }

    /// The topics of the caller's tenant that the caller may touch: those with settings, and those that live workers
    /// serve, in the order of their names.
    pub(crate) fn names(
        &self,
        caller: &Caller,
        snapshot: Option<&WorkerSnapshot>,
    ) -> BTreeMap<Topic, Option<Arc<TopicRecord>>> {
        let mine = snapshot.iter().flat_map(|s| &s.workers).filter(|w| w.tenant == caller.tenant.as_str());
        let served = mine.flat_map(|worker| &worker.topics).map(|topic| (topic.clone(), None));
        let told = self.flow.settings.topics_of(caller.tenant.as_str());
        let told = told.into_iter().map(|(topic, told)| (topic, Some(told)));
        let all = served.chain(told).filter_map(|(name, told)| Some((Topic::parse(&name).ok()?, told)));
        all.filter(|(topic, _)| caller.may_touch(topic).is_ok()).collect()
    }

    /// Admits one more job, or refuses it because too many wait.
    pub(crate) async fn admit(&self, tenant: &Tenant, topic: &Topic) -> Result<(), Problem> {
        let told = self.flow.settings.topic(tenant.as_str(), topic.as_str());
        let Some(most) = told.and_then(|told| told.settings.max_backlog) else { return Ok(()) };
        let name = (tenant.clone(), topic.clone());
        let full = match self.enter(&name, most) {
            Some(full) => full,
            None => {
                let waiting = Box::pin(self.measure(tenant, topic)).await?;
                let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
                if measured.len() >= MOST_MEASURED {
                    measured.clear();
                }
                measured.insert(name.clone(), Measure { waiting, admitted: 0, at: Instant::now() });
                drop(measured);
                self.enter(&name, most).unwrap_or(waiting >= most)
            }
        };
        match full {
            false => Ok(()),
            true => Err(Problem {
                retry_after: Some(COME_BACK),
                ..Problem::new(
                    ProblemCode::BacklogFull,
                    format!("{most} jobs of topic {topic} wait already; nothing was stored"),
                )
            }),
        }
    }

    /// Whether the backlog is full, by a fresh measurement; counts the job if it is not. `None` without a fresh
    /// measurement.
    fn enter(&self, name: &(Tenant, Topic), most: u64) -> Option<bool> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let measure = measured.get_mut(name).filter(|measure| measure.at.elapsed() < FRESH)?;
        let full = measure.waiting + measure.admitted >= most;
        measure.admitted += u64::from(!full);
        Some(full)
    }

    /// How many jobs wait, whatever they require: in the backlog, and on the bus if the bus answers.
    async fn measure(&self, tenant: &Tenant, topic: &Topic) -> Result<u64, StoreError> {
        let waiting = self.flow.waiting(&[(tenant.clone(), topic.clone())]).await?;
        Ok(Waits::of(waiting.iter().flatten()).sum())
    }
}
