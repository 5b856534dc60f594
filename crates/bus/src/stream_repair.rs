//! Repairs streams that exist but have no files on disk.
//!
//! nats-server 2.9 removes the files of a deleted stream in the background. If a process recreates the stream at that
//! moment, as Muster does, the new files may be removed with the old ones. Such a stream exists, its messages can no
//! longer be read or stored, and it never recovers. A purge gives it files again. That is safe: everything that should
//! be on the bus is derived from Redis and published again.

use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    Bus, BusError, Stream,
    error::{NO_MESSAGE, STORE_FAILED},
};

/// The server's wording of this fault. A full disk has another wording, and needs an operator.
const NO_FILE: &str = "no such file or directory";

#[derive(Deserialize)]
struct Info {
    state: Content,
}

/// What a stream reports as its content.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
struct Content {
    messages: u64,
    first_seq: u64,
}

impl Bus {
    /// Gives the stream files again if it reports a first message and cannot read it.
    pub(crate) async fn repair_unreadable(&self, stream: Stream) -> Result<(), BusError> {
        let first = self.content(stream).await?;
        // A message that was acked in the meantime is no longer the first.
        let dead = first.messages > 0 && self.lacks(stream, first.first_seq).await?;
        let same = async || Ok::<_, BusError>(self.content(stream).await?.first_seq == first.first_seq);
        if dead && same().await? && self.lacks(stream, first.first_seq).await? && same().await? {
            self.give_files(stream, "its messages cannot be read").await?;
        }
        Ok(())
    }

    /// Gives the stream files again if missing files are why it refused a message.
    pub(crate) async fn repair_refusal(&self, stream: Stream, fault: &BusError) -> Result<(), BusError> {
        match fault {
            BusError::Refused { err_code: STORE_FAILED, description, .. } if description.contains(NO_FILE) => {
                self.give_files(stream, description).await
            }
            _ => Ok(()),
        }
    }

    async fn content(&self, stream: Stream) -> Result<Content, BusError> {
        let info: Info = self.api(&format!("STREAM.INFO.{}", stream.name()), &Value::Null).await?;
        Ok(info.state)
    }

    async fn lacks(&self, stream: Stream, seq: u64) -> Result<bool, BusError> {
        match self.api::<Value>(&format!("STREAM.MSG.GET.{}", stream.name()), &json!({ "seq": seq })).await {
            Err(fault) if fault.is_missing(NO_MESSAGE) => Ok(true),
            other => other.map(|_| false),
        }
    }

    async fn give_files(&self, stream: Stream, why: &str) -> Result<(), BusError> {
        warn!(stream = stream.name(), why, "the stream has lost its files; purged it, so that NATS creates new ones");
        self.api::<Value>(&format!("STREAM.PURGE.{}", stream.name()), &Value::Null).await.map(drop)
    }
}
