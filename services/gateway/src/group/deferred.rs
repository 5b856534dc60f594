//! Submits that the bus did not confirm in time, until it does.
//!
//! Promises: a job that was accepted while NATS was away is published as soon as NATS answers again,
//! not only when somebody looks at it; what is kept is bounded, and kept here alone, because it is a
//! help and no more: whatever does not fit, or dies with this replica, is published by its look, and
//! what both publish is decided once.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use muster_flow::{Flow, submit_item};
use muster_store::NewJob;
use muster_telemetry::{Emit, events::Replayed};
use muster_wire::{encoded_len, v1::Submit};
use tokio::sync::Notify;

use super::{Answer, GROUP_ITEMS};

/// Most bytes that all of them hold.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// What one takes beside the bytes it says, and what each of its labels and requirements does.
const EACH: usize = 1024;
const PAIR: usize = 96;
/// Between two tries, while the connection stands and nobody confirms.
const PAUSE: Duration = Duration::from_millis(500);

/// What waits for the bus.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    waiting: Mutex<Waiting>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    submits: VecDeque<Submit>,
    bytes: usize,
}

impl Waiting {
    /// One more, if there is room. Its payload is a part of its request's body, which would stay with it: so
    /// the payload is copied.
    fn add(&mut self, submit: Submit) {
        let size = size(&submit);
        if self.bytes + size <= MOST_BYTES {
            self.bytes += size;
            self.submits.push_back(Submit { payload: Bytes::copy_from_slice(&submit.payload), ..submit });
        }
    }

    /// The first ones. They stay, and count, until it is known what became of them.
    fn first(&self, n: usize) -> Vec<Submit> {
        self.submits.iter().take(n).cloned().collect()
    }

    /// Of the first `n` these are left: they wait behind the others.
    fn settle(&mut self, n: usize, left: Vec<Submit>) {
        self.bytes -= self.submits.drain(..n).map(|submit| size(&submit)).sum::<usize>();
        self.bytes += left.iter().map(size).sum::<usize>();
        self.submits.extend(left);
    }
}

/// What a submit holds in memory, or a little more.
fn size(submit: &Submit) -> usize {
    let pairs = submit.spec.as_ref().map_or(0, |spec| spec.labels.len() + spec.requires.len());
    encoded_len(submit) + EACH + pairs * PAIR
}

impl Deferred {
    /// Keeps what was answered as deferred.
    pub(crate) fn note(&self, answers: &[Answer]) {
        let deferred = |answer: &Answer| match answer {
            Ok((job, accepted)) if accepted.bus_deferred => Some(submit_of(job, accepted)),
            _ => None,
        };
        let mut submits = answers.iter().filter_map(deferred).peekable();
        if submits.peek().is_some() {
            submits.for_each(|submit| self.waiting().add(submit));
            self.came.notify_one();
        }
    }

    /// Publishes what comes, for as long as this runs.
    pub(crate) async fn publish(&self, flow: &Flow) {
        loop {
            flow.bus.connected().await;
            let some = self.waiting().first(GROUP_ITEMS);
            if some.is_empty() {
                self.came.notified().await;
                continue;
            }
            let n = some.len();
            let left = flow.publish_deferred(some).await;
            if left.len() < n {
                Replayed { n: (n - left.len()) as u64 }.emit();
            }
            let again = !left.is_empty();
            self.waiting().settle(n, left);
            if again {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn submit_of(job: &NewJob, accepted: &muster_flow::Accepted) -> Submit {
    submit_item(job.id, &accepted.head, (&job.spec).into(), job.payload.clone(), job.body_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(payload: impl Into<Bytes>) -> Submit {
        Submit { payload: payload.into(), ..Default::default() }
    }

    #[test]
    fn what_does_not_fit_is_left_to_the_look() {
        let mut waiting = Waiting::default();
        let half = || submit(vec![0; MOST_BYTES / 2 - 2 * EACH]);
        (0..3).for_each(|_| waiting.add(half()));
        assert_eq!((waiting.submits.len(), waiting.bytes), (2, 2 * size(&half())));
        let first = waiting.first(1);
        waiting.add(half());
        assert_eq!(waiting.submits.len(), 2, "what is on its way still counts");
        waiting.settle(1, first);
        assert_eq!((waiting.submits.len(), waiting.bytes), (2, 2 * size(&half())), "it was not taken");
        waiting.settle(1, Vec::new());
        waiting.add(submit(vec![0; 10]));
        assert_eq!(waiting.first(9).len(), 2);
        waiting.settle(2, Vec::new());
        assert_eq!((waiting.bytes, waiting.first(9).len()), (0, 0));
    }

    #[test]
    fn a_submit_that_waits_does_not_hold_the_body_it_came_in() {
        let body = Bytes::from(vec![b'1'; MOST_BYTES]);
        let mut waiting = Waiting::default();
        waiting.add(submit(body.slice(..1)));
        assert_eq!(waiting.submits[0].payload, body[..1]);
        assert!(body.is_unique(), "nobody else holds it");
    }

    #[test]
    fn labels_count_too() {
        let labels = (0..32).map(|n| (format!("key-{n}"), "v".repeat(200))).collect();
        let spec = muster_wire::v1::Spec { labels, ..Default::default() };
        assert!(size(&Submit { spec: Some(spec), ..Default::default() }) > 32 * 200 + EACH);
    }
}
