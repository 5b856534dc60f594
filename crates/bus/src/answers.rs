//! Answers to questions, on one subscription for the whole process.
//!
//! The client library has the same, but keeps an entry for ever for every question that was
//! never answered; here the entry goes with whoever asked.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_nats::{Client, Message, Subject, Subscriber};
use futures_util::StreamExt;
use tokio::{sync::oneshot, task::JoinSet};

use crate::BusError;

type Asked = Mutex<HashMap<u64, oneshot::Sender<Message>>>;

/// Where answers arrive.
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
        reader.spawn(hand_over(source, asked.clone()));
        Ok(Answers { prefix, next: AtomicU64::new(0), asked, _reader: reader })
    }

    /// A place for one answer.
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
    /// Where it must be sent.
    pub(crate) reply: Subject,
    answer: oneshot::Receiver<Message>,
    asked: Arc<Asked>,
}

impl Expected {
    /// Waits for it. `None` only if the connection was closed for good.
    pub(crate) async fn heard(&mut self) -> Option<Message> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.asked).remove(&self.id);
    }
}

async fn hand_over(mut source: Subscriber, asked: Arc<Asked>) {
    while let Some(message) = source.next().await {
        let id = message.subject.rsplit_once('.').and_then(|(_, id)| id.parse().ok());
        let sender = id.and_then(|id: u64| lock(&asked).remove(&id));
        if let Some(sender) = sender {
            // Whoever asked may have left meanwhile.
            let _ = sender.send(message);
        }
    }
}

fn lock(asked: &Asked) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}
