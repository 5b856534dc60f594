//! Describes the NATS server and Muster's streams on it, for checks of whether Muster's guarantees can be kept on them.
//!
//! It only reads. A stream that is missing or cannot be read is reported and hides no other stream. The caller judges
//! the result.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{Bus, BusError, Stream};

/// How many requests are timed for the latency.
const TIMED: usize = 5;

/// The server that this process is connected to, and the streams.
#[derive(Clone, Debug, Default)]
pub struct BusVitals {
    /// The server's name.
    pub server: String,
    /// The server's version, such as `2.9.10`.
    pub version: String,
    /// The largest message that the server takes.
    pub max_payload: usize,
    /// How many copies of each stream the settings ask for.
    pub wanted_copies: usize,
    /// Whether the server belongs to a cluster.
    pub clustered: bool,
    /// The disk space of the account's streams.
    pub storage: StorageVitals,
    /// The median response time of JetStream.
    pub latency: Duration,
    /// One entry for each of [`Stream::ALL`].
    pub streams: Vec<(Stream, Result<StreamVitals, BusError>)>,
}

/// The disk space of the account's streams, over all copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageVitals {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that the account may use. `None`: the account has no limit of its own; only the server's monitoring port
    /// shows the server's limit (`max_file_store`).
    pub limit: Option<u64>,
}

/// The state of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamVitals {
    /// How many copies the stream should have.
    pub copies: usize,
    /// How many copies are complete now.
    pub in_step: usize,
    /// The number of messages in the stream.
    pub messages: u64,
    /// The bytes of these messages in one copy.
    pub bytes: u64,
    /// The stream drops its oldest messages above this size; `None` without a limit.
    pub max_bytes: Option<u64>,
    /// The number of consumers on the stream.
    pub consumers: u64,
    /// Sequence of the stream's last message; 0 if it never had one.
    pub last_seq: u64,
}

#[derive(Deserialize)]
struct Info {
    config: Config,
    #[serde(default)]
    cluster: Option<Cluster>,
    state: State,
}

#[derive(Deserialize)]
struct Config {
    num_replicas: usize,
    #[serde(default)]
    max_bytes: i64,
}

#[derive(Deserialize)]
struct State {
    messages: u64,
    bytes: u64,
    last_seq: u64,
    #[serde(default)]
    consumer_count: u64,
}

#[derive(Deserialize)]
struct Cluster {
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    #[serde(default)]
    current: bool,
    #[serde(default)]
    offline: bool,
}

#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    storage: u64,
    limits: Limits,
}

#[derive(Deserialize)]
struct Limits {
    #[serde(default)]
    max_storage: i64,
}

impl From<Info> for StreamVitals {
    fn from(info: Info) -> StreamVitals {
        let followers = info.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
        let in_step = followers.iter().filter(|peer| peer.current && !peer.offline).count();
        StreamVitals {
            copies: info.config.num_replicas,
            // The server that answers is the leader, and its copy is complete.
            in_step: in_step + 1,
            messages: info.state.messages,
            bytes: info.state.bytes,
            max_bytes: limit(info.config.max_bytes),
            consumers: info.state.consumer_count,
            last_seq: info.state.last_seq,
        }
    }
}

impl StreamVitals {
    /// Copies that lag or are offline.
    pub fn lagging(&self) -> usize {
        self.copies.saturating_sub(self.in_step)
    }
}

/// A limit in JetStream's notation: -1 or 0 is none.
fn limit(bytes: i64) -> Option<u64> {
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

impl Bus {
    /// Reads the state of the server and the streams. Fails if the server does not answer.
    pub async fn vitals(&self) -> Result<BusVitals, BusError> {
        let mut took = Vec::with_capacity(TIMED);
        let mut storage = StorageVitals::default();
        for _ in 0..TIMED {
            let asked = Instant::now();
            storage = self.storage().await?;
            took.push(asked.elapsed());
        }
        took.sort();
        let server = self.inner.client.server_info();
        Ok(BusVitals {
            server: server.server_name,
            version: server.version,
            max_payload: server.max_payload,
            wanted_copies: self.inner.settings.replicas,
            clustered: server.cluster.is_some_and(|name| !name.is_empty()),
            storage,
            latency: took[TIMED / 2],
            streams: self.stream_vitals().await,
        })
    }

    /// The state of each of [`Stream::ALL`]. One request each.
    pub async fn stream_vitals(&self) -> Vec<(Stream, Result<StreamVitals, BusError>)> {
        let ask = async |stream: Stream| {
            let info = self.api::<Info>(&format!("STREAM.INFO.{}", stream.name()), &Value::Null).await;
            (stream, info.map(StreamVitals::from))
        };
        join_all(Stream::ALL.map(ask)).await
    }

    /// The disk space of the account's streams. One request.
    pub async fn storage(&self) -> Result<StorageVitals, BusError> {
        let account: Account = self.api("INFO", &Value::Null).await?;
        Ok(StorageVitals { used: account.storage, limit: limit(account.limits.max_storage) })
    }
}
