//! Answers to requests, on one subscription for the whole process.
//!
//! The client library has the same, but keeps an entry forever for every request that was never answered. Here the
//! entry is removed when the requester drops its [`Expected`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_nats::{Client, Message, Subject};
use futures_util::{Stream, StreamExt};
use muster_telemetry::{Pauses, caught};
use tokio::{sync::oneshot, task::JoinSet};

use crate::BusError;

type Asked = Mutex<HashMap<u64, oneshot::Sender<Message>>>;

/// Receives the answers of this process.
pub(crate) struct Answers {
    prefix: String,
    next: AtomicU64,
    asked: Arc<Asked>,
    /// Ends when this is dropped.
    _reader: JoinSet<()>,
}

impl Answers {
    pub(crate) async fn open(client: &Client) -> Result<Answers, BusError> {
        let prefix = client.new_inbox();
        let opened = client.subscribe(format!("{prefix}.*")).await;
        let source = opened.map_err(|e| BusError::away(e.to_string()))?;
        let asked = Arc::new(Asked::default());
        let mut reader = JoinSet::new();
        reader.spawn(read(source, asked.clone()));
        Ok(Answers { prefix, next: AtomicU64::new(0), asked, _reader: reader })
    }

    /// Reserves a place for one answer.
    pub(crate) fn expect(&self) -> Expected {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.asked).insert(id, sender);
        Expected { id, reply: format!("{}.{id}", self.prefix).into(), answer, asked: self.asked.clone() }
    }
}

/// One answer that may come.
pub(crate) struct Expected {
    id: u64,
    /// The subject to which the answer must be sent.
    pub(crate) reply: Subject,
    answer: oneshot::Receiver<Message>,
    asked: Arc<Asked>,
}

impl Expected {
    /// Waits for the answer. `None` only if the connection was closed for good.
    pub(crate) async fn heard(&mut self) -> Option<Message> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.asked).remove(&self.id);
    }
}

/// Delivers answers until the connection is closed for good. A panic loses the answer in hand; its requester gets none.
async fn read(mut source: impl Stream<Item = Message> + Unpin, asked: Arc<Asked>) {
    let mut pauses = Pauses::default();
    while caught("answers", hand_over(&mut source, &asked)).await.is_err() {
        pauses.rest().await;
    }
}

async fn hand_over(source: &mut (impl Stream<Item = Message> + Unpin), asked: &Asked) {
    while let Some(message) = source.next().await {
        let id = message.subject.rsplit_once('.').and_then(|(_, id)| id.parse().ok());
        let sender = id.and_then(|id: u64| lock(asked).remove(&id));
        if let Some(sender) = sender {
            // The requester may have gone in the meantime.
            let _ = sender.send(message);
        }
    }
}

fn lock(asked: &Asked) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    fn answer(to: &str) -> Message {
        Message {
            subject: to.into(),
            reply: None,
            payload: Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        }
    }

    #[tokio::test]
    async fn a_panic_of_the_reader_costs_one_answer_and_not_those_after_it() {
        let asked = Arc::new(Asked::default());
        let (sender, heard) = oneshot::channel();
        lock(&asked).insert(7, sender);
        let mut step = 0;
        let source = stream::poll_fn(move |_| {
            step += 1;
            match step {
                1 => panic!("on purpose"),
                2 => Poll::Ready(Some(answer("inbox.7"))),
                _ => Poll::Ready(None),
            }
        });
        read(source, asked).await;
        assert_eq!(heard.await.expect("an answer").subject.as_str(), "inbox.7");
    }
}
