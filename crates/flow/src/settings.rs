//! Settings that change at run time, as one replica knows them.
//!
//! This module keeps a snapshot of the settings of every topic and of the cluster in memory. It follows Redis in two
//! ways: at once by `sys.config.changed`, and by a poll in case that message was missed. A lookup in the path of a job
//! reads a map, never Redis. A snapshot never contains half a change. The value in Redis always wins, even if it is
//! older than the known one (a failover can lose writes). Each service has a loop that decides when to poll; gateway
//! and scheduler decide what the settings mean.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use muster_bus::subjects;
use muster_domain::{Tenant, Time, Topic, topic::TopicRetention};
use muster_store::{ConfigRecord, Put, SeenVersion, StoreError, TopicChange, TopicRecord};
use muster_telemetry::{Emit, events::UnreadableSettings};
use muster_wire::{Body, v1::ConfigChanged};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::Flow;

/// A poll asks again for changes up to this long before the last poll: a writer enters its topic's name before it
/// writes, and replicas' estimates of the time differ a little.
const OVERLAP: Duration = Duration::from_secs(120);
/// How many topics one poll reads besides those that changed.
const SLICE: usize = 500;
/// How long a request waits for the first reading of the settings: a request must be answered within two seconds,
/// even if Redis does not answer.
const FIRST_READING: Duration = Duration::from_secs(1);

/// The tenant of requests that name none. A setting for all tenants is stored in this tenant's topic.
const DEFAULT_TENANT: &str = "default";

type Topics = HashMap<String, HashMap<String, Arc<TopicRecord>>>;

/// The settings that this replica knows. Every lookup is cheap and safe to call from anywhere.
#[derive(Debug)]
pub struct Settings {
    topics: ArcSwap<Topics>,
    config: ArcSwap<ConfigRecord>,
    /// Counts the changes; the first poll counts as one.
    changes: watch::Sender<u64>,
    /// The time from which the next poll asks for changes. The lock also makes polls and change messages take turns, so
    /// that a task that read early cannot store late.
    since: Mutex<Time>,
    /// Where the slice of the next poll begins.
    place: AtomicUsize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            topics: ArcSwap::default(),
            config: ArcSwap::default(),
            changes: watch::Sender::new(0),
            since: Mutex::new(Time::NONE),
            place: AtomicUsize::new(0),
        }
    }
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Topics and scopes that were read.
    pub read: u64,
    /// Topics and scopes that had changed.
    pub changed: u64,
    /// Topics that are known now.
    pub topics: u64,
    /// Topics that could not be read, and keep their last known settings.
    pub unreadable: u64,
}

impl Settings {
    /// The settings of a topic; none if it has none.
    pub fn topic(&self, tenant: &str, topic: &str) -> Option<Arc<TopicRecord>> {
        let topics = self.topics.load();
        if topics.is_empty() {
            return None;
        }
        topics.get(tenant)?.get(topic).cloned()
    }

    /// Whether workers of all tenants may take the jobs of this topic, whatever tenant owns them. The setting is stored
    /// in the default tenant's topic and applies to every tenant's topic of that name.
    pub fn is_shared(&self, topic: &str) -> bool {
        self.topic(DEFAULT_TENANT, topic).is_some_and(|record| record.settings.shared)
    }

    /// The topics of a tenant that have settings, in the order of their names.
    pub fn topics_of(&self, tenant: &str) -> Vec<(String, Arc<TopicRecord>)> {
        let topics = self.topics.load();
        let own = topics.get(tenant).into_iter().flatten();
        let mut named: Vec<_> = own.map(|(name, record)| (name.clone(), record.clone())).collect();
        named.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        named
    }

    /// Every topic that has a retention setting.
    pub fn retentions(&self) -> BTreeMap<(Tenant, Topic), TopicRetention> {
        let topics = self.topics.load();
        let all =
            topics.iter().flat_map(|(tenant, own)| own.iter().map(move |(topic, record)| (tenant, topic, record)));
        let named = all.filter_map(|(tenant, topic, record)| {
            Some(((Tenant::parse(tenant).ok()?, Topic::parse(topic).ok()?), record.settings.retention?))
        });
        named.collect()
    }

    /// The settings of the cluster.
    pub fn config(&self) -> Arc<ConfigRecord> {
        self.config.load_full()
    }

    /// A receiver for every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether Redis was read at least once. Before that, this replica does not know which topics are paused.
    pub fn is_known(&self) -> bool {
        *self.changes.borrow() > 0
    }

    /// Waits until Redis was read once.
    pub async fn known(&self) {
        // The sender lives as long as `self`, so only a poll ends the wait.
        let _ = self.changes.subscribe().wait_for(|n| *n > 0).await;
    }

    /// Stores these settings in the snapshot. Returns how many had changed.
    fn take(&self, read: Vec<((Tenant, Topic), Option<TopicRecord>)>, config: Option<ConfigRecord>) -> u64 {
        let mut news = 0;
        let known = self.topics.load();
        let differs = |((tenant, topic), record): &((Tenant, Topic), Option<TopicRecord>)| {
            let known = known.get(tenant.as_str()).and_then(|topics| topics.get(topic.as_str()));
            known.map(|known| known.version) != record.as_ref().map(|record| record.version)
        };
        let fresh: Vec<_> = read.into_iter().filter(differs).collect();
        if !fresh.is_empty() {
            news += fresh.len() as u64;
            let mut topics = Topics::clone(&known);
            for ((tenant, topic), record) in fresh {
                let own = topics.entry(tenant.to_string()).or_default();
                match record {
                    Some(record) => _ = own.insert(topic.to_string(), Arc::new(record)),
                    None => _ = own.remove(topic.as_str()),
                }
            }
            topics.retain(|_, own| !own.is_empty());
            self.topics.store(Arc::new(topics));
        }
        if let Some(config) = config.filter(|config| config.version != self.config.load().version) {
            news += 1;
            self.config.store(Arc::new(config));
        }
        if news > 0 {
            self.changes.send_modify(|n| *n += 1);
        }
        news
    }
}

impl Flow {
    /// Makes sure that the settings were read from Redis once. Before that, no setting of a topic is known.
    pub async fn know_settings(&self) -> Result<(), StoreError> {
        if self.settings.is_known() {
            return Ok(());
        }
        // Boxed, because it is rarely awaited. Otherwise each request would carry the memory for it.
        match Box::pin(tokio::time::timeout(FIRST_READING, self.poll_settings())).await {
            Ok(polled) => polled.map(|_| ()),
            Err(_) => Err(StoreError::Unavailable { detail: "settings were not read in time".to_owned() }),
        }
    }

    /// Reads the settings that changed since the last poll, and a slice of the rest. Repeating is harmless.
    pub async fn poll_settings(&self) -> Result<Polled, StoreError> {
        let mut since = self.settings.since.lock().await;
        // A replica that cannot read the stored format must not take work, so check the format first.
        self.store.check_format().await?;
        let asked_at = self.store.now();
        let mut names = self.store.topics_changed(*since).await?;
        let place = self.settings.place.load(Ordering::Relaxed);
        let slice = self.store.topics_from(place, SLICE).await?;
        let next = if slice.len() < SLICE { 0 } else { place + SLICE };
        names.extend(slice);
        names.sort_unstable();
        names.dedup();
        let mut polled = Polled { read: names.len() as u64 + 1, ..Polled::default() };
        let records = self.store.read_topics(&names).await;
        let mut read = Vec::with_capacity(names.len());
        for (name, record) in names.into_iter().zip(records) {
            match record {
                Ok(record) => read.push((name, record)),
                Err(fault) if fault.is_retryable() => return Err(fault),
                Err(fault) => {
                    polled.unreadable += 1;
                    UnreadableSettings { tenant: name.0.as_str(), topic: name.1.as_str(), detail: &fault }.emit();
                }
            }
        }
        let config = self.store.read_config().await?;
        polled.changed = self.settings.take(read, Some(config));
        polled.topics = self.settings.topics.load().values().map(|own| own.len() as u64).sum();
        if !self.settings.is_known() {
            self.settings.changes.send_modify(|n| *n += 1);
        }
        *since = asked_at.before(OVERLAP);
        self.settings.place.store(next, Ordering::Relaxed);
        Ok(polled)
    }

    /// Reads one topic, or the cluster's settings, again.
    async fn refresh(&self, changed: &ConfigChanged) -> Result<(), StoreError> {
        let _turn = self.settings.since.lock().await;
        if changed.topic.is_empty() {
            self.settings.take(Vec::new(), Some(self.store.read_config().await?));
            return Ok(());
        }
        let (Ok(tenant), Ok(topic)) = (Tenant::parse(&changed.tenant), Topic::parse(&changed.topic)) else {
            return Ok(());
        };
        let names = [(tenant, topic)];
        let record = self.store.read_topics(&names).await.pop().unwrap_or(Ok(None))?;
        self.settings.take(names.into_iter().map(|name| (name, record.clone())).collect(), None);
        Ok(())
    }

    /// Changes a topic's settings and announces the change to every replica. Redis holds the change once this returns;
    /// a replica that missed the message has it after its next poll.
    pub async fn put_topic(
        &self,
        tenant: &Tenant,
        topic: &Topic,
        seen: SeenVersion,
        change: &TopicChange,
    ) -> Result<Put<TopicRecord>, StoreError> {
        let put = self.store.put_topic(tenant, topic, seen, change).await?;
        crate::failpoint!("settings.after_put");
        if let Put::Stored(record) = &put {
            let (tenant, topic) = (tenant.to_string(), topic.to_string());
            let changed = ConfigChanged { tenant, topic, version: record.version, ..ConfigChanged::default() };
            self.tell_change(changed).await;
        }
        Ok(put)
    }

    /// Replaces the cluster's settings and announces the change to every replica.
    pub async fn put_config(
        &self,
        seen: SeenVersion,
        values: &BTreeMap<String, String>,
    ) -> Result<Put<ConfigRecord>, StoreError> {
        let put = self.store.put_config(seen, values).await?;
        crate::failpoint!("settings.after_put");
        if let Put::Stored(record) = &put {
            self.tell_change(ConfigChanged { version: record.version, ..ConfigChanged::default() }).await;
        }
        Ok(put)
    }

    async fn tell_change(&self, changed: ConfigChanged) {
        // This replica must not wait for its own message; if the refresh fails, the poll finds the change.
        let _ = self.refresh(&changed).await;
        // The bus reports its own faults; the poll makes up for a lost message.
        let _ = self.bus.broadcast(&subjects::config_changed(), Body::ConfigChanged(changed)).await;
    }

    /// Announces to every gateway that this API key has changed. A gateway that missed the message asks Redis after a
    /// few seconds anyway.
    pub async fn tell_key_change(&self, id: &str) {
        let changed = ConfigChanged { api_key: id.to_owned(), ..ConfigChanged::default() };
        let _ = self.bus.broadcast(&subjects::config_changed(), Body::ConfigChanged(changed)).await;
    }

    /// Passes the id of every changed API key to `forget`, until stopped.
    pub async fn follow_keys(&self, stop: &CancellationToken, forget: impl Fn(&str) + Send) -> anyhow::Result<()> {
        let mut news = self.bus.subscribe(&subjects::config_changed(), None).await?;
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                received = news.next() => received,
            };
            let Some(received) = received else { anyhow::bail!("the subscription to changed keys ended") };
            if let Body::ConfigChanged(changed) = received.body
                && !changed.api_key.is_empty()
            {
                forget(&changed.api_key);
            }
        }
    }

    /// Follows changes by other replicas until stopped. If a change cannot be read at once, calls `poll` to wake the
    /// loop that polls.
    pub async fn follow_settings(&self, stop: &CancellationToken, poll: impl Fn() + Send) -> anyhow::Result<()> {
        let mut news = self.bus.subscribe(&subjects::config_changed(), None).await?;
        // Poll for changes made before this subscription began.
        poll();
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                received = news.next() => received,
            };
            let Some(received) = received else { anyhow::bail!("the subscription to changed settings ended") };
            let Body::ConfigChanged(changed) = received.body else { continue };
            // Gateways follow changed API keys by a subscription of their own.
            if changed.api_key.is_empty() && self.refresh(&changed).await.is_err() {
                poll();
            }
        }
    }
}
