//! Questions about what stands on the streams.
//!
//! Promises: "empty" is said only when the server itself said so; whatever else goes wrong is
//! "unknown", from which nobody may conclude that something was lost. A stream that is missing
//! is made again first, and is then truly empty. All of it only reads, apart from that.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{Line, Tenant, Time, Topic, job::Known};
use muster_wire::{Body, Envelope, decode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

use crate::{
    Bus, BusError, ConsumerSpec, Stream, Subject,
    error::{NO_CONSUMER, NO_MESSAGE, NO_STREAM},
    jetstream::judge,
    subjects,
};

/// How many unreadable messages are passed over to find one that tells its time.
const PASSED_OVER: usize = 16;
/// So many lines are asked about one by one.
const BY_NAME: usize = 8;

/// How far a durable consumer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerState {
    /// Messages it has still to deliver.
    pub pending: u64,
    /// Messages delivered and not acked.
    pub unacked: u64,
    /// Everything up to this stream sequence was acked.
    pub ack_floor: u64,
}

/// How far results have been handled, for "no lease is ended before its result could be heard".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultsMark {
    /// When the stream was made, as the server writes it. Another value: another stream, and
    /// sequences of the old one mean nothing.
    pub stream_created: String,
    /// Sequence of the last message of subject `sys.job.result`; 0 if there is none.
    pub last_result_seq: u64,
    /// The results consumer has handled everything up to this stream sequence.
    pub ack_floor: u64,
    /// It has nothing pending and nothing unacked.
    pub idle: bool,
}

/// How far a stream goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Sequence of its last message; 0 if it never had one.
    pub sequence: u64,
    /// When that was stored, by the server's clock.
    pub at: Time,
}

#[derive(Deserialize)]
struct StreamInfo {
    created: String,
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
    #[serde(default)]
    last_ts: String,
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    ack_floor: Position,
    num_pending: u64,
    num_ack_pending: u64,
}

#[derive(Deserialize)]
struct Position {
    stream_seq: u64,
}

#[derive(Deserialize)]
struct Stored {
    message: StoredMessage,
}

#[derive(Deserialize)]
pub(crate) struct StoredMessage {
    pub(crate) seq: u64,
    #[serde(default)]
    data: String,
}

impl StoredMessage {
    pub(crate) fn read(&self) -> Option<(Envelope, Body)> {
        decode(STANDARD.decode(&self.data).ok()?.into()).ok()
    }
}

impl Bus {
    /// Calls, and once more after the streams were made again if one of them was missing.
    pub(crate) async fn about<T: serde::de::DeserializeOwned>(&self, verb: &str, body: &Value) -> Result<T, BusError> {
        match self.api(verb, body).await {
            Err(fault) if fault.is_missing(NO_STREAM) => {
                self.heal().await?;
                self.api(verb, body).await
            }
            answer => answer,
        }
    }

    /// Asks JetStream whether it is there: one question, one answer, within `limit`. A connection
    /// that stands says little: a server that hangs keeps it for a while.
    pub async fn ping(&self, limit: Duration) -> Result<(), BusError> {
        let answer = self.ask("$JS.API.INFO".into(), None, Bytes::new(), limit).await?;
        judge::<Value>(&answer.payload).map(|_| ())
    }

    /// One stored message, read from the stream's leader; `None` when the server says that
    /// there is none.
    pub(crate) async fn stored(&self, stream: Stream, which: Value) -> Result<Option<StoredMessage>, BusError> {
        match self.about::<Stored>(&format!("STREAM.MSG.GET.{}", stream.name()), &which).await {
            Ok(stored) => Ok(Some(stored.message)),
            Err(fault) if fault.is_missing(NO_MESSAGE) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The time that the first readable message of a subject tells, from a sequence on.
    async fn first_time(
        &self,
        stream: Stream,
        subject: &Subject,
        from: u64,
        time: fn(&Envelope, &Body) -> Time,
    ) -> Known {
        let mut seq = from.max(1);
        for _ in 0..PASSED_OVER {
            let which = json!({ "next_by_subj": subject.as_str(), "seq": seq });
            match self.stored(stream, which).await {
                Ok(None) if seq == from.max(1) => return Known::Empty,
                // Only unreadable ones stand there: they are about to become dead letters.
                Ok(None) | Err(_) => return Known::Unknown,
                Ok(Some(message)) => match message.read() {
                    Some((envelope, body)) => return Known::Oldest(time(&envelope, &body)),
                    None => seq = message.seq + 1,
                },
            }
        }
        Known::Unknown
    }

    /// `dispatched_at` of the oldest offer that stands on a subject of [`Stream::Jobs`].
    pub async fn oldest(&self, subject: &Subject) -> Known {
        self.first_time(Stream::Jobs, subject, 1, |envelope, body| match body {
            Body::Offer(group) => Time(group.items.iter().map(|o| o.dispatched_at).min().unwrap_or(envelope.sent_at)),
            _ => Time(envelope.sent_at),
        })
        .await
    }

    /// When the oldest submit was sent that no scheduler has handled: the next one after the
    /// consumer's ack floor.
    pub async fn oldest_unhandled_submit(&self) -> Known {
        let spec = ConsumerSpec::scheduler(subjects::submit());
        match self.consumer_state(&spec).await {
            Ok(state) => {
                let sent_at = |envelope: &Envelope, _: &Body| Time(envelope.sent_at);
                self.first_time(Stream::Sys, &spec.filter, state.ack_floor + 1, sent_at).await
            }
            Err(_) => Known::Unknown,
        }
    }

    /// Messages that stand on [`Stream::Jobs`] for a subject.
    pub async fn subject_count(&self, subject: &Subject) -> Result<u64, BusError> {
        Ok(self.counts(&subjects::by_pattern(subject)).await?.remove(subject.as_str()).unwrap_or(0))
    }

    /// The same for each of these lines of a tenant's topic. A few are asked for by name; many are picked
    /// from one answer about all that stands on the topic and beside it, so that a question costs the
    /// server no more than one such answer.
    pub async fn line_counts(&self, tenant: &Tenant, topic: &Topic, lines: &[&Line]) -> Result<Vec<u64>, BusError> {
        let subjects = lines.iter().map(|line| subjects::offer(tenant, *line));
        if lines.len() <= BY_NAME {
            let asked = subjects.map(async |subject| self.subject_count(&subject).await);
            return join_all(asked).await.into_iter().collect();
        }
        let counts = self.counts(&subjects::offers_beside(tenant, topic)).await?;
        Ok(subjects.map(|subject| counts.get(subject.as_str()).copied().unwrap_or(0)).collect())
    }

    /// Messages by subject, of those subjects that have any and that a filter matches. The filter has a wildcard.
    async fn counts(&self, filter: &Subject) -> Result<HashMap<String, u64>, BusError> {
        let verb = format!("STREAM.INFO.{}", Stream::Jobs.name());
        let info: StreamInfo = self.about(&verb, &json!({ "subjects_filter": filter.as_str() })).await?;
        Ok(info.state.subjects.unwrap_or_default())
    }

    /// How far a consumer has come. One that is missing is made first, and has come nowhere.
    pub async fn consumer_state(&self, spec: &ConsumerSpec) -> Result<ConsumerState, BusError> {
        let verb = format!("CONSUMER.INFO.{}.{}", spec.stream.name(), spec.name);
        let info: ConsumerInfo = match self.api(&verb, &Value::Null).await {
            Err(fault) if fault.is_missing(NO_CONSUMER) || fault.is_missing(NO_STREAM) => {
                self.ensure_consumer(spec).await?;
                self.api(&verb, &Value::Null).await?
            }
            answer => answer?,
        };
        Ok(ConsumerState {
            pending: info.num_pending,
            unacked: info.num_ack_pending,
            ack_floor: info.ack_floor.stream_seq,
        })
    }

    /// Where [`Stream::Sys`] ends now.
    pub async fn sys_end(&self) -> Result<StreamEnd, BusError> {
        let info: StreamInfo = self.about(&format!("STREAM.INFO.{}", Stream::Sys.name()), &Value::Null).await?;
        let at = Time::parse_rfc3339(&info.state.last_ts).unwrap_or(Time::NONE);
        Ok(StreamEnd { sequence: info.state.last_seq, at })
    }

    /// How far results have been handled. Three questions, the consumer last: a result that
    /// comes between them can only make the answer more careful.
    pub async fn results_mark(&self) -> Result<ResultsMark, BusError> {
        let spec = ConsumerSpec::scheduler(subjects::result());
        let info: StreamInfo = self.about(&format!("STREAM.INFO.{}", Stream::Sys.name()), &Value::Null).await?;
        let last = self.stored(Stream::Sys, json!({ "last_by_subj": spec.filter.as_str() })).await?;
        let state = self.consumer_state(&spec).await?;
        Ok(ResultsMark {
            stream_created: info.created,
            last_result_seq: last.map_or(0, |message| message.seq),
            ack_floor: state.ack_floor,
            idle: state.pending == 0 && state.unacked == 0,
        })
    }
}
