//! Requests to the schedulers: starts and extensions.
//!
//! A request goes to the queue group first. While no answer comes, the same request goes to other schedulers by name, so
//! a scheduler that is frozen or cut off costs a fraction of a second. After several such silences in a row the group is
//! avoided for a while, because the silent scheduler is still a member. The first useful answer counts. After the limit,
//! the caller decides whether to ask again. A scheduler may act on a request whose answer was lost, and two schedulers
//! may act on one request, so every request must be harmless to repeat.

use std::time::Duration;

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_telemetry::events::{BusAway, Emit};
use muster_wire::{
    Body, decode,
    v1::{Standing, start_answer::Verdict},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Bus, BusError, Subject, bus::answerers::Target, subjects};

/// The requests that schedulers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Asks whether these offers may be started.
    Start,
    /// Asks to keep these leases.
    Extend,
}

impl Question {
    /// The subject of the queue group.
    pub fn group(self) -> Subject {
        match self {
            Question::Start => subjects::start(),
            Question::Extend => subjects::extend(),
        }
    }

    /// The subject of one scheduler.
    pub fn named(self, instance: &str) -> Subject {
        subjects::at(&self.group(), instance)
    }
}

impl Bus {
    /// Asks the schedulers, and waits for the first useful answer. [`BusError::NoResponders`] at once if no scheduler
    /// listens, and soon if the one that was asked left without an answer and no other listens. An answer that says
    /// "again" for everything is returned only if no other scheduler gives a better one before the next would be asked.
    pub async fn ask_schedulers(&self, question: Question, body: Body, limit: Duration) -> Result<Body, BusError> {
        let deadline = Instant::now() + limit;
        self.connected_by(deadline, question.group().as_str()).await?;
        let mut breaks = self.breaks();
        let before = *breaks.borrow();
        let payload = self.sealed(None, body);
        let asked = timeout_at(deadline, self.ask_in_turn(question, payload));
        tokio::select! {
            answer = asked => answer.unwrap_or_else(|_| {
                BusAway { detail: question.group().as_str() }.emit();
                Err(BusError::Timeout { what: question.group().to_string(), after: limit })
            }),
            _ = breaks.wait_for(|now| *now != before) => {
                BusAway { detail: question.group().as_str() }.emit();
                Err(BusError::away(format!("the connection broke during {}", question.group())))
            }
        }
    }

    async fn ask_in_turn(&self, question: Question, payload: Bytes) -> Result<Body, BusError> {
        let schedulers = &self.inner.schedulers;
        let (mut asked, mut waiting, mut again) = (Vec::new(), FuturesUnordered::new(), None);
        let mut pause = schedulers.known().patience();
        loop {
            let now = Instant::now();
            let target = schedulers.known().next(&asked, now);
            let subject = match &target {
                Target::Group => question.group(),
                Target::Named(name) => question.named(name),
            };
            let mut expected = self.expect_answer();
            let client = &self.inner.client;
            let sent = client.publish_with_reply(subject.raw(), expected.reply.clone(), payload.clone()).await;
            sent.map_err(|e| self.unsent(&e, payload.len()))?;
            let place = asked.len();
            asked.push(target);
            waiting.push(async move { (place, now, expected.heard().await) });
            let until = now + pause;
            // Whether the group has no member any more: then an earlier request went to a scheduler that has left.
            let mut left = false;
            // Each further pause is longer: all schedulers may be busy, and each request is work for them.
            pause *= 2;
            loop {
                let answer = tokio::select! {
                    Some(answer) = waiting.next() => answer,
                    // A scheduler that was leaving had this long for the answer that it owed.
                    () = sleep_until(until) => match left {
                        true => {
                            let none = || BusError::NoResponders { subject: question.group().to_string() };
                            return again.ok_or_else(none);
                        }
                        false => break,
                    },
                };
                let (place, sent_at, message) = answer;
                let message = message.ok_or_else(|| BusError::away("the connection was closed"))?;
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    match &asked[place] {
                        // This scheduler has left: ask another one at once.
                        Target::Named(name) => {
                            schedulers.known().forget(name);
                            break;
                        }
                        Target::Group if waiting.is_empty() => {
                            return Err(BusError::NoResponders { subject: question.group().to_string() });
                        }
                        Target::Group => {
                            left = true;
                            continue;
                        }
                    }
                }
                let (envelope, body) = decode(message.payload)?;
                let now = Instant::now();
                if !says_again(&body) {
                    let took = now.duration_since(sent_at);
                    schedulers.known().answered(&envelope.sender, took, &asked[place], &asked[..place], now);
                    return Ok(body);
                }
                if schedulers.known().next(&asked, now) != Target::Group {
                    again = Some(body);
                    break;
                }
                if waiting.is_empty() {
                    return Ok(body);
                }
                again = Some(body);
            }
            if let Some(body) = again.take_if(|_| schedulers.known().next(&asked, Instant::now()) == Target::Group) {
                return Ok(body);
            }
        }
    }
}

/// Whether an answer says nothing but "ask again": its scheduler does not reach Redis.
fn says_again(body: &Body) -> bool {
    match body {
        Body::Started(reply) => {
            !reply.items.is_empty()
                && reply.items.iter().all(|i| matches!(i.verdict(), Verdict::Retry | Verdict::Unspecified))
        }
        Body::Extended(reply) => {
            !reply.items.is_empty() && reply.items.iter().all(|item| item.standing() == Standing::Again)
        }
        _ => false,
    }
}
