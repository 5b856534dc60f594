//! What the NATS server and our streams on it are like, for whoever asks whether the promises can be
//! kept on them.
//!
//! Promises: only reads; a stream that is missing or cannot be read is told and hides no other. Leaves
//! to others: what is well and what is not.

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::Value;

use crate::{Bus, BusError, Stream};

/// The server that this process is connected to, and the streams.
#[derive(Clone, Debug)]
pub struct BusVitals {
    /// How the server calls itself.
    pub server: String,
    /// Of the server: `2.9.10`.
    pub version: String,
    /// The largest message that it takes.
    pub max_payload: usize,
    /// How many copies of each stream we ask for.
    pub wanted_copies: usize,
    /// Each of [`Stream::ALL`].
    pub streams: Vec<(Stream, Result<StreamVitals, BusError>)>,
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamVitals {
    /// How many copies it is to have.
    pub copies: usize,
    /// How many of them have all of it now.
    pub in_step: usize,
}

#[derive(Deserialize)]
struct Info {
    config: Config,
    #[serde(default)]
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct Config {
    num_replicas: usize,
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

impl From<Info> for StreamVitals {
    fn from(info: Info) -> StreamVitals {
        let followers = info.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
        let in_step = followers.iter().filter(|peer| peer.current && !peer.offline).count();
        // Who answers leads, and has all of it.
        StreamVitals { copies: info.config.num_replicas, in_step: in_step + 1 }
    }
}

impl Bus {
    /// Asks how the server and the streams are. Fails if the server does not answer.
    pub async fn checkup(&self) -> Result<BusVitals, BusError> {
        self.ping(self.inner.settings.request_timeout).await?;
        let server = self.inner.client.server_info();
        let ask = async |stream: Stream| {
            let info = self.api::<Info>(&format!("STREAM.INFO.{}", stream.name()), &Value::Null).await;
            (stream, info.map(StreamVitals::from))
        };
        Ok(BusVitals {
            server: server.server_name,
            version: server.version,
            max_payload: server.max_payload,
            wanted_copies: self.inner.settings.replicas,
            streams: join_all(Stream::ALL.map(ask)).await,
        })
    }
}
