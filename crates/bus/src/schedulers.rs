//! Requests to the schedulers: starts and extensions.
//!
//! This module remembers which schedulers have answered lately, and how long an answer usually takes. A request goes to
//! the queue group first. While no answer comes, the same request goes to other schedulers by name, so a scheduler that
//! is frozen or cut off costs a fraction of a second. After several such silences in a row the group is avoided for a
//! while, because the silent scheduler is still a member. The first useful answer counts. After the limit, the caller
//! decides whether to ask again. A scheduler may act on a request whose answer was lost, and two schedulers may act on
//! one request, so every request must be harmless to repeat.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_telemetry::events::{BusAway, Emit};
use muster_wire::{
    Body, decode,
    v1::{Standing, start_answer::Verdict},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Bus, BusError, Subject, subjects};

/// The second scheduler is asked after this many times the usual answer time, within these bounds.
const USUAL_TIMES: u32 = 4;
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(1);
/// While the queue group is suspected, the second scheduler is asked after the usual answer time, but not before this.
const SOONEST_IN_DOUBT: Duration = Duration::from_millis(50);
/// After this many requests in a row that the queue group did not answer and a scheduler by name did, the group is
/// avoided for this long. A busy scheduler is slow now and then; a frozen one is silent each time.
const SILENCES: u32 = 3;
const AVOID: Duration = Duration::from_secs(3);
/// A scheduler that has not answered for this long is forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// The most schedulers that are remembered.
const MOST: usize = 16;

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

/// The receiver of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Group,
    Named(String),
}

/// The schedulers as this process knows them.
#[derive(Debug, Default)]
pub(crate) struct Schedulers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The schedulers that answered, the latest last, with the time of that answer.
    answered: Vec<(String, Instant)>,
    /// A moving average of answer times.
    usual: Duration,
    avoid_group_until: Option<Instant>,
    /// How many times in a row the group did not answer.
    silences: u32,
}

impl Known {
    /// How long to wait for an answer before another scheduler is asked.
    fn patience(&self) -> Duration {
        // One more silence makes the group avoided: the request that finds this out should not wait long.
        if self.silences >= SILENCES - 1 {
            return self.usual.clamp(SOONEST_IN_DOUBT, LATEST);
        }
        (self.usual * USUAL_TIMES).clamp(SOONEST, LATEST)
    }

    /// The next receiver to ask.
    fn next(&mut self, asked: &[Target], now: Instant) -> Target {
        self.answered.retain(|(_, at)| now.duration_since(*at) < FORGET);
        let avoid = self.avoid_group_until.is_some_and(|until| until > now);
        if asked.is_empty() && !avoid {
            return Target::Group;
        }
        let fresh = |name: &&String| !asked.iter().any(|target| matches!(target, Target::Named(n) if n == *name));
        self.answered.iter().rev().map(|(name, _)| name).find(fresh).cloned().map_or(Target::Group, Target::Named)
    }

    /// Records that the scheduler `by` answered at `target` after `took`; `late` are the targets that were asked before
    /// and did not answer.
    fn answered(&mut self, by: &str, took: Duration, target: &Target, late: &[Target], now: Instant) {
        self.usual = if self.usual.is_zero() { took } else { (self.usual * 7 + took) / 8 };
        match target {
            Target::Group => self.silences = 0,
            Target::Named(_) if late.contains(&Target::Group) => self.silences += 1,
            Target::Named(_) => {}
        }
        if self.silences >= SILENCES {
            self.avoid_group_until = Some(now + AVOID);
            // After that, one more silence is enough.
            self.silences = SILENCES - 1;
        }
        self.answered.retain(|(name, _)| {
            name != by && !late.iter().any(|target| matches!(target, Target::Named(silent) if silent == name))
        });
        if self.answered.len() == MOST {
            self.answered.remove(0);
        }
        self.answered.push((by.to_owned(), now));
    }
}

impl Schedulers {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bus {
    /// Asks the schedulers, and waits for the first useful answer. [`BusError::NoResponders`] at once if no scheduler
    /// listens. An answer that says "again" for everything is returned only if no other scheduler gives a better one
    /// before the next would be asked.
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
            // Each further pause is longer: all schedulers may be busy, and each request is work for them.
            pause *= 2;
            loop {
                let answer = tokio::select! {
                    Some(answer) = waiting.next() => answer,
                    () = sleep_until(until) => break,
                };
                let (place, sent_at, message) = answer;
                let message = message.ok_or_else(|| BusError::away("the connection was closed"))?;
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    match &asked[place] {
                        // This scheduler has left: ask another one at once.
                        Target::Named(name) => {
                            schedulers.known().answered.retain(|(known, _)| known != name);
                            break;
                        }
                        Target::Group if waiting.is_empty() => {
                            return Err(BusError::NoResponders { subject: question.group().to_string() });
                        }
                        Target::Group => continue,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Target {
        Target::Named(name.to_owned())
    }

    #[tokio::test]
    async fn the_group_is_asked_first_and_then_who_answered_last() {
        let (mut known, now) = (Known::default(), Instant::now());
        assert_eq!(known.next(&[], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now), Target::Group, "no name is known");
        for name in ["s1", "s2"] {
            known.answered(name, Duration::from_millis(1), &Target::Group, &[], now);
        }
        assert_eq!(known.next(&[], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now), named("s2"));
        assert_eq!(known.next(&[Target::Group, named("s2")], now), named("s1"));
        assert_eq!(known.next(&[Target::Group, named("s2"), named("s1")], now), Target::Group);
        assert_eq!(known.next(&[Target::Group], now + FORGET), Target::Group, "forgotten");
    }

    #[tokio::test]
    async fn a_silent_group_is_avoided_for_a_while_and_a_silent_scheduler_forgotten() {
        let (mut known, now) = (Known::default(), Instant::now());
        for name in ["s1", "s2"] {
            known.answered(name, Duration::from_millis(1), &Target::Group, &[], now);
        }
        for _ in 1..SILENCES {
            known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group, named("s2")], now);
            assert_eq!(known.next(&[], now), Target::Group, "it may only be slow");
        }
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group, named("s2")], now);
        assert_eq!(known.next(&[], now), named("s1"));
        assert_eq!(known.next(&[named("s1")], now), Target::Group, "s2 was silent");
        assert_eq!(known.next(&[], now + AVOID), Target::Group);
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group], now + AVOID);
        assert_eq!(known.next(&[], now + AVOID), named("s1"), "still silent");
        known.answered("s2", Duration::from_millis(1), &Target::Group, &[], now + 3 * AVOID);
        known.answered("s1", Duration::from_millis(1), &named("s1"), &[Target::Group], now + 3 * AVOID);
        assert_eq!(known.next(&[], now + 3 * AVOID), Target::Group, "it has answered since");
    }

    #[tokio::test]
    async fn patience_follows_the_usual_answer_time() {
        let (mut known, now) = (Known::default(), Instant::now());
        assert_eq!(known.patience(), SOONEST);
        for _ in 0..50 {
            known.answered("s1", Duration::from_millis(80), &Target::Group, &[], now);
        }
        assert_eq!(known.patience().as_millis(), 320);
        for _ in 0..50 {
            known.answered("s1", Duration::from_secs(5), &Target::Group, &[], now);
        }
        assert_eq!(known.patience(), LATEST, "slow schedulers are not asked twice as often");
    }

    #[tokio::test]
    async fn a_doubted_group_is_given_less_time() {
        let (mut known, now) = (Known::default(), Instant::now());
        let silent = |known: &mut Known| known.answered("s1", Duration::ZERO, &named("s1"), &[Target::Group], now);
        for _ in 2..SILENCES {
            silent(&mut known);
        }
        assert_eq!(known.patience(), SOONEST, "it may only be slow");
        for _ in 0..5 {
            silent(&mut known);
            assert_eq!(known.patience(), SOONEST_IN_DOUBT, "also when it is tried again after a while");
        }
        known.answered("s2", Duration::ZERO, &Target::Group, &[], now);
        assert_eq!(known.patience(), SOONEST, "it has answered since");
    }
}
