//! Requests about the content of the streams.
//!
//! The result is "empty" only if the server itself said so. Any other failure gives "unknown", from which no caller may
//! conclude that a message was lost. A missing stream is recreated first, and is then truly empty. Apart from that,
//! this module only reads.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{JobId, Line, Tenant, Time, Topic, job::Known};
use muster_wire::{Body, Envelope, decode, job_id};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

use crate::{
    Bus, BusError, ConsumerSpec, Stream, Subject,
    error::{NO_CONSUMER, NO_MESSAGE, NO_STREAM},
    jetstream::judge,
    subjects,
};

/// How many unreadable messages are skipped to find one with a readable time.
const PASSED_OVER: usize = 16;
/// Up to this many lines are asked about one by one.
const BY_NAME: usize = 8;

/// The progress of a durable consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerState {
    /// Messages still to be delivered.
    pub pending: u64,
    /// Messages delivered and not acked.
    pub unacked: u64,
    /// All messages up to this stream sequence were acked.
    pub ack_floor: u64,
}

/// How far results have been handled, so that no lease is ended before its result could be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultsMark {
    /// When the stream was created, as the server writes it. If this value differs, it is another stream, and sequences
    /// of the old one mean nothing.
    pub stream_created: String,
    /// Sequence of the last message of subject `sys.job.result`; 0 if there is none.
    pub last_result_seq: u64,
    /// The results consumer has handled everything up to this stream sequence.
    pub ack_floor: u64,
    /// The consumer has nothing pending and nothing unacked.
    pub idle: bool,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Sequence of the stream's last message; 0 if it never had one.
    pub sequence: u64,
    /// When that message was stored, by the server's clock.
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
    /// Calls JetStream; if a stream is missing, recreates the streams and calls once more.
    pub(crate) async fn about<T: serde::de::DeserializeOwned>(&self, verb: &str, body: &Value) -> Result<T, BusError> {
        match self.api(verb, body).await {
            Err(fault) if fault.is_missing(NO_STREAM) => {
                self.heal().await?;
                self.api(verb, body).await
            }
            answer => answer,
        }
    }

    /// Asks JetStream whether it is working: one request, one answer, within `limit`. An open connection proves little:
    /// a server that hangs keeps it for a while.
    pub async fn ping(&self, limit: Duration) -> Result<(), BusError> {
        let answer = self.ask("$JS.API.INFO".into(), None, Bytes::new(), limit).await?;
        judge::<Value>(&answer.payload).map(|_| ())
    }

    /// One stored message, read from the stream's leader; `None` if the server says that there is none.
    pub(crate) async fn stored(&self, stream: Stream, which: Value) -> Result<Option<StoredMessage>, BusError> {
        match self.about::<Stored>(&format!("STREAM.MSG.GET.{}", stream.name()), &which).await {
            Ok(stored) => Ok(Some(stored.message)),
            Err(fault) if fault.is_missing(NO_MESSAGE) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The time in the first readable message of a subject, from a sequence on.
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
                // All messages there are unreadable: they are about to become dead letters.
                Ok(None) | Err(_) => return Known::Unknown,
                Ok(Some(message)) => match message.read() {
                    Some((envelope, body)) => return Known::Oldest(time(&envelope, &body)),
                    None => seq = message.seq + 1,
                },
            }
        }
        Known::Unknown
    }

    /// `dispatched_at` of the oldest offer on a subject of [`Stream::Jobs`].
    pub async fn oldest(&self, subject: &Subject) -> Known {
        self.first_time(Stream::Jobs, subject, 1, |envelope, body| match body {
            Body::Offer(group) => Time(group.items.iter().map(|o| o.dispatched_at).min().unwrap_or(envelope.sent_at)),
            _ => Time(envelope.sent_at),
        })
        .await
    }

    /// When the oldest submit was sent that no scheduler has handled: the next one after the consumer's ack floor.
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

    /// Up to `each` of the jobs in the oldest and in the newest submit on [`Stream::Sys`], handled or not. Two
    /// requests. Messages that cannot be read are left out.
    pub async fn submitted_jobs(&self, each: usize) -> Result<Vec<JobId>, BusError> {
        let subject = subjects::submit();
        let oldest = self.stored(Stream::Sys, json!({ "next_by_subj": subject.as_str(), "seq": 1 })).await?;
        let newest = self.stored(Stream::Sys, json!({ "last_by_subj": subject.as_str() })).await?;
        let jobs = |message: StoredMessage| match message.read() {
            Some((_, Body::Submit(group))) => {
                group.items.iter().filter_map(|submit| job_id(&submit.job_id).ok()).take(each).collect()
            }
            _ => Vec::new(),
        };
        Ok(oldest.into_iter().chain(newest).flat_map(jobs).collect())
    }

    /// The number of messages on [`Stream::Jobs`] with this subject.
    pub async fn subject_count(&self, subject: &Subject) -> Result<u64, BusError> {
        Ok(self.counts(&subjects::by_pattern(subject)).await?.remove(subject.as_str()).unwrap_or(0))
    }

    /// The same for each of these lines of a tenant's topic. A few lines are asked for by name; many are picked from
    /// one answer about all subjects of the topic and beside it, so that the server never has more work than one such
    /// answer.
    pub async fn line_counts(&self, tenant: &Tenant, topic: &Topic, lines: &[&Line]) -> Result<Vec<u64>, BusError> {
        let subjects = lines.iter().map(|line| subjects::offer(tenant, *line));
        if lines.len() <= BY_NAME {
            let asked = subjects.map(async |subject| self.subject_count(&subject).await);
            return join_all(asked).await.into_iter().collect();
        }
        let counts = self.counts(&subjects::offers_beside(tenant, topic)).await?;
        Ok(subjects.map(|subject| counts.get(subject.as_str()).copied().unwrap_or(0)).collect())
    }

    /// The number of messages of each subject that has any and that the filter matches. The filter has a wildcard.
    async fn counts(&self, filter: &Subject) -> Result<HashMap<String, u64>, BusError> {
        let verb = format!("STREAM.INFO.{}", Stream::Jobs.name());
        let info: StreamInfo = self.about(&verb, &json!({ "subjects_filter": filter.as_str() })).await?;
        Ok(info.state.subjects.unwrap_or_default())
    }

    /// The progress of a consumer. A missing consumer is created first, and has no progress.
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

    /// The current end of [`Stream::Sys`].
    pub async fn sys_end(&self) -> Result<StreamEnd, BusError> {
        let info: StreamInfo = self.about(&format!("STREAM.INFO.{}", Stream::Sys.name()), &Value::Null).await?;
        let at = Time::parse_rfc3339(&info.state.last_ts).unwrap_or(Time::NONE);
        Ok(StreamEnd { sequence: info.state.last_seq, at })
    }

    /// How far results have been handled. Three requests, the consumer last: a result that arrives between them can
    /// only make the answer more cautious.
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
