//! Settings that change at run time: hashes with a version, written by compare-and-set.
//!
//! There are two kinds: those of a topic (`muster:topic:<tenant>:<topic>`) and those of the cluster
//! (`muster:config:<scope>`), and an index of the topics that have settings. If two writers saw the same version, one
//! succeeds and the other receives [`Put::Mismatch`]. A call that is sent twice is one write. A version is never used
//! twice. `flow` informs the replicas; the callers know what the values mean.
//!
//! How a replica finds changes without scanning the keys: one sorted set for the whole cluster has every topic with
//! settings, scored by the time of the last change. A write adds its topic there *before* it writes the settings, so a
//! crash in between leaves a name without a change, never a change without a name. A poll reads the names that changed
//! since shortly before the last poll, and their settings. It also reads a bounded slice of the other topics, so that a
//! write that a failover lost on one of the two keys is found after a few polls.

use std::collections::BTreeMap;

use muster_domain::{Tenant, Time, Topic, TopicSettings, topic::Paused};

use crate::{
    Store, StoreError, keys,
    router::Command,
    script::{flat, list, pairs},
    scripts,
};

/// The scope of the settings that apply to every replica of every service.
const CLUSTER: &str = "cluster";

/// The settings of a topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicRecord {
    /// Changes with every write; never used twice.
    pub version: u64,
    /// When the settings were last written.
    pub updated_at: Time,
    /// Limits and defaults.
    pub settings: TopicSettings,
    /// Set while the topic is paused: its jobs wait.
    pub paused: Option<Paused>,
}

/// The settings of the cluster: values by the name of their setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigRecord {
    /// Changes with every write; 0 = never written.
    pub version: u64,
    /// When the settings were last written.
    pub updated_at: Time,
    /// The values as people write them.
    pub values: BTreeMap<String, String>,
}

/// The version that a writer has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenVersion {
    /// Replace any version.
    Any,
    /// Write only if the stored version is this one; 0 = only if nothing was ever written.
    Exactly(u64),
}

impl SeenVersion {
    pub(crate) fn text(self) -> Vec<u8> {
        match self {
            SeenVersion::Any => b"any".to_vec(),
            SeenVersion::Exactly(version) => version.to_string().into_bytes(),
        }
    }
}

/// A change of a topic.
#[derive(Clone, Debug, PartialEq)]
pub enum TopicChange {
    /// New settings; a pause stays.
    Settings(TopicSettings),
    /// Pauses the topic: its jobs wait from now on.
    Pause(Paused),
    /// Ends the pause.
    Resume,
}

/// The result of a write, with the settings that are stored now.
#[derive(Clone, Debug, PartialEq)]
pub enum Put<T> {
    /// The change was written.
    Stored(T),
    /// The stored version was another one; nothing was written.
    Mismatch(T),
}

impl Store {
    /// Changes the settings of a topic by compare-and-set. Adds the name of the topic to the index first. A call that
    /// is sent twice is one write; after an error the change may or may not be stored.
    pub async fn put_topic(
        &self,
        tenant: &Tenant,
        topic: &Topic,
        seen: SeenVersion,
        change: &TopicChange,
    ) -> Result<Put<TopicRecord>, StoreError> {
        let json = |fault: serde_json::Error| StoreError::Decode(fault.to_string());
        let field = match change {
            TopicChange::Settings(settings) => ("settings", serde_json::to_vec(settings).map_err(json)?),
            TopicChange::Pause(paused) => ("paused", serde_json::to_vec(paused).map_err(json)?),
            TopicChange::Resume => ("paused", Vec::new()),
        };
        let index = keys::topics();
        let mut enter = redis::cmd("ZADD");
        enter.arg(index.as_bytes()).arg("GT").arg(self.now().0).arg(format!("{tenant}:{topic}"));
        self.router().call(Command::plain(enter)).await?;
        let (stored, fields) = self.put_settings(keys::topic(tenant, topic), seen, pairs([field])).await?;
        let record = read_topic(&fields)?.unwrap_or_default();
        Ok(if stored { Put::Stored(record) } else { Put::Mismatch(record) })
    }

    /// Reads the settings of topics, in the given order; none for a topic without settings. Each topic has its own
    /// answer: unreadable settings affect no other topic.
    pub async fn read_topics(&self, names: &[(Tenant, Topic)]) -> Vec<Result<Option<TopicRecord>, StoreError>> {
        let command = |(tenant, topic): &(Tenant, Topic)| {
            let key = keys::topic(tenant, topic);
            let mut cmd = redis::cmd("HGETALL");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(names.iter().map(command).collect()).await;
        replies.into_iter().map(|reply| read_topic(&flat(reply?)?)).collect()
    }

    /// The names of the topics that changed at or after this time.
    pub async fn topics_changed(&self, since: Time) -> Result<Vec<(Tenant, Topic)>, StoreError> {
        let key = keys::topics();
        let mut cmd = redis::cmd("ZRANGEBYSCORE");
        cmd.arg(key.as_bytes()).arg(since.0).arg("+inf");
        self.topic_names(cmd).await
    }

    /// The names of `n` topics from index `place` on, in the order of their last change.
    pub async fn topics_from(&self, place: usize, n: usize) -> Result<Vec<(Tenant, Topic)>, StoreError> {
        let key = keys::topics();
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(key.as_bytes()).arg(place).arg(place + n.max(1) - 1);
        self.topic_names(cmd).await
    }

    async fn topic_names(&self, cmd: redis::Cmd) -> Result<Vec<(Tenant, Topic)>, StoreError> {
        let names = list(self.router().call(Command::plain(cmd)).await?)?;
        let read = |name: &Vec<u8>| {
            let (tenant, topic) = std::str::from_utf8(name).ok()?.split_once(':')?;
            Some((Tenant::parse(tenant).ok()?, Topic::parse(topic).ok()?))
        };
        Ok(names.iter().filter_map(read).collect())
    }

    /// Replaces the settings of the cluster by compare-and-set: names that are not given are no longer set. A call that
    /// is sent twice is one write; after an error the change may or may not be stored.
    pub async fn put_config(
        &self,
        seen: SeenVersion,
        values: &BTreeMap<String, String>,
    ) -> Result<Put<ConfigRecord>, StoreError> {
        let text = serde_json::to_vec(values).map_err(|fault| StoreError::Decode(fault.to_string()))?;
        let (stored, fields) = self.put_settings(keys::config(CLUSTER), seen, pairs([("settings", text)])).await?;
        let record = read_config(&fields)?;
        Ok(if stored { Put::Stored(record) } else { Put::Mismatch(record) })
    }

    /// The settings of the cluster; empty if they were never written.
    pub async fn read_config(&self) -> Result<ConfigRecord, StoreError> {
        let key = keys::config(CLUSTER);
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(key.as_bytes());
        read_config(&flat(self.router().call(Command::plain(cmd)).await?)?)
    }

    async fn put_settings(
        &self,
        key: keys::Key,
        seen: SeenVersion,
        fields: Vec<Vec<u8>>,
    ) -> Result<(bool, Vec<Vec<u8>>), StoreError> {
        let writer = uuid::Uuid::new_v4().into_bytes().to_vec();
        let reply = self.run(scripts::setting::Put { key, writer, seen: seen.text(), fields }).await?;
        Ok((reply.outcome == 1, reply.fields))
    }
}

/// The fields of a hash by name.
struct Fields<'a>(BTreeMap<&'a [u8], &'a [u8]>);

impl<'a> Fields<'a> {
    fn of(raw: &'a [Vec<u8>]) -> Fields<'a> {
        Fields(raw.chunks_exact(2).map(|pair| (pair[0].as_slice(), pair[1].as_slice())).collect())
    }

    fn number(&self, name: &str) -> u64 {
        let text = self.0.get(name.as_bytes()).and_then(|raw| std::str::from_utf8(raw).ok());
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StoreError> {
        let wrong = |fault: serde_json::Error| StoreError::Decode(format!("settings: {name}: {fault}"));
        self.0.get(name.as_bytes()).map(|raw| serde_json::from_slice(raw).map_err(wrong)).transpose()
    }
}

fn read_topic(raw: &[Vec<u8>]) -> Result<Option<TopicRecord>, StoreError> {
    if raw.is_empty() {
        return Ok(None);
    }
    let fields = Fields::of(raw);
    Ok(Some(TopicRecord {
        version: fields.number("version"),
        updated_at: Time(fields.number("updated_at")),
        settings: fields.json("settings")?.unwrap_or_default(),
        paused: fields.json("paused")?,
    }))
}

fn read_config(raw: &[Vec<u8>]) -> Result<ConfigRecord, StoreError> {
    let fields = Fields::of(raw);
    Ok(ConfigRecord {
        version: fields.number("version"),
        updated_at: Time(fields.number("updated_at")),
        values: fields.json("settings")?.unwrap_or_default(),
    })
}
