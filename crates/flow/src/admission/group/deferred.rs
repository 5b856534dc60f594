//! Keeps the submits that the bus did not confirm in time until the bus confirms them.
//!
//! Promises: a job that was accepted while NATS did not answer is published as soon as NATS answers again, and does not
//! have to wait for the reconciler's check. The kept submits are bounded and kept only in this process, because they
//! are only an optimization: the reconciler publishes a submit that does not fit, or is lost with this replica. If both
//! publish a submit, it is decided once.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use muster_store::NewJob;
use muster_telemetry::{Emit, events::Replayed};
use muster_wire::{encoded_len, v1::Submit};
use tokio::sync::Notify;

use super::{GROUP_ITEMS, Outcome};
use crate::{Accepted, Flow, submit_item};

/// The most bytes that all kept submits may use.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Estimated overhead in bytes of one submit (`EACH`), and of each of its labels and requirements (`PAIR`).
const EACH: usize = 1024;
const PAIR: usize = 96;
/// The pause between two tries while the connection is up but the bus confirms nothing.
const PAUSE: Duration = Duration::from_millis(500);

/// The submits that wait for the bus.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    waiting: Mutex<Waiting>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    submits: VecDeque<Submit>,
    bytes: usize,
}

impl Waiting {
    /// Adds a submit if there is room. The payload is copied: it is a slice of the request body, and would keep the
    /// whole body in memory.
    fn add(&mut self, submit: Submit) {
        let size = size(&submit);
        if self.bytes + size <= MOST_BYTES {
            self.bytes += size;
            self.submits.push_back(Submit { payload: Bytes::copy_from_slice(&submit.payload), ..submit });
        }
    }

    /// The first `n` submits. They stay in the queue, and count, until the result of publishing them is known.
    fn first(&self, n: usize) -> Vec<Submit> {
        self.submits.iter().take(n).cloned().collect()
    }

    /// Removes the first `n` submits. Those in `left` were not published and go to the end of the queue.
    fn settle(&mut self, n: usize, left: Vec<Submit>) {
        self.bytes -= self.submits.drain(..n).map(|submit| size(&submit)).sum::<usize>();
        self.bytes += left.iter().map(size).sum::<usize>();
        self.submits.extend(left);
    }
}

/// An upper estimate of the memory that a submit uses.
fn size(submit: &Submit) -> usize {
    let pairs = submit.spec.as_ref().map_or(0, |spec| spec.labels.len() + spec.requires.len());
    encoded_len(submit) + EACH + pairs * PAIR
}

impl Deferred {
    /// Keeps the submits whose answer says that the bus deferred them.
    pub(super) fn note(&self, answers: &[Outcome]) {
        let deferred = |answer: &Outcome| match answer {
            Ok((job, accepted)) if accepted.bus_deferred => Some(submit_of(job, accepted)),
            _ => None,
        };
        let mut submits = answers.iter().filter_map(deferred).peekable();
        if submits.peek().is_some() {
            submits.for_each(|submit| self.waiting().add(submit));
            self.came.notify_one();
        }
    }

    /// Publishes kept submits for as long as it runs.
    pub(super) async fn publish(&self, flow: &Flow) {
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

fn submit_of(job: &NewJob, accepted: &Accepted) -> Submit {
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
