//! Open questions to the counsel: jobs that must be allowed before the scheduler decides about them.
//!
//! Knows: which jobs have a question waiting or in progress on this replica. Promises: at most one
//! question per job, a bounded number in all. Leaves to others: asking (`consult`), the answers (`counsel`).

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_domain::{JobId, Time};
use muster_wire::{job_id, v1::Submit};
use tokio::sync::mpsc;

use crate::counsel::Counsel;

/// Most questions that may wait for their turn; the deliveries of further ones come again.
const WAITING: usize = 4_096;

/// Questions for the task that asks them.
pub(crate) type Asked = mpsc::Receiver<Submit>;

/// The counsel and the questions that are open.
pub(crate) struct Questions {
    counsel: Box<dyn Counsel>,
    replica: String,
    /// Jobs whose question waits or is in progress here.
    open: Mutex<HashSet<JobId>>,
    asks: mpsc::Sender<Submit>,
}

/// A batch without the jobs that the counsel must allow first.
pub(crate) struct Rest {
    /// Jobs that may be decided now.
    pub(crate) items: Vec<Submit>,
    /// The index of each in the whole batch.
    pub(crate) places: Vec<usize>,
    /// Indexes of jobs whose question found no room; they must be delivered again.
    pub(crate) failed: Vec<usize>,
}

impl Questions {
    /// Begins without open questions. `replica` is the holder that operators see in the locks.
    pub(crate) fn new(counsel: Box<dyn Counsel>, replica: &str) -> (Questions, Asked) {
        let (asks, asked) = mpsc::channel(WAITING);
        (Questions { counsel, replica: replica.to_owned(), open: Mutex::default(), asks }, asked)
    }

    /// Opens questions for the jobs that concern the counsel, and returns the rest.
    pub(crate) fn take_out(&self, items: Vec<Submit>, now: Time) -> Rest {
        let mut rest = Rest { items: Vec::new(), places: Vec::new(), failed: Vec::new() };
        for (place, submit) in items.into_iter().enumerate() {
            // A job with a future `run_at` is asked about when that time has come.
            let ahead = Time(submit.run_at).some().is_some_and(|at| !at.reached(now));
            match job_id(&submit.job_id) {
                Ok(id) if !ahead && self.concern_job(&submit) => {
                    if !self.hand_over(id, submit) {
                        rest.failed.push(place);
                    }
                }
                _ => {
                    rest.items.push(submit);
                    rest.places.push(place);
                }
            }
        }
        rest
    }

    /// Whether the counsel has a say in the jobs of this topic.
    pub(crate) fn concern(&self, tenant: &str, topic: &str) -> bool {
        self.counsel.concerns(tenant, topic)
    }

    fn concern_job(&self, submit: &Submit) -> bool {
        submit.spec.as_ref().is_some_and(|spec| self.concern(&spec.tenant, &spec.topic))
    }

    pub(crate) fn counsel(&self) -> &dyn Counsel {
        &*self.counsel
    }

    pub(crate) fn replica(&self) -> &str {
        &self.replica
    }

    /// Marks the question about this job as answered or given up.
    pub(crate) fn close(&self, id: JobId) {
        self.open().remove(&id);
    }

    /// Returns false if too many questions wait already.
    fn hand_over(&self, id: JobId, submit: Submit) -> bool {
        // The reconciler may publish a submit again while its question is still open.
        if !self.open().insert(id) {
            return true;
        }
        let taken = self.asks.try_send(submit).is_ok();
        if !taken {
            self.close(id);
        }
        taken
    }

    fn open(&self) -> MutexGuard<'_, HashSet<JobId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use muster_wire::v1::Spec;

    use super::*;
    use crate::counsel::Advice;

    /// Has a say in one topic, and answers nothing.
    struct OnlyAsked;

    impl Counsel for OnlyAsked {
        fn concerns(&self, _tenant: &str, topic: &str) -> bool {
            topic == "asked"
        }

        fn ask<'a>(&'a self, _submit: &'a Submit) -> BoxFuture<'a, Result<Advice, String>> {
            Box::pin(std::future::pending())
        }
    }

    fn submit(topic: &str, run_at: u64) -> Submit {
        let spec = Spec { tenant: "acme".into(), topic: topic.into(), ..Spec::default() };
        Submit { job_id: JobId::mint(3).as_bytes().to_vec().into(), spec: Some(spec), run_at, ..Submit::default() }
    }

    #[test]
    fn only_jobs_of_its_topics_wait_for_the_counsel() {
        let (questions, mut asked) = Questions::new(Box::new(OnlyAsked), "r1");
        assert!(questions.concern("acme", "asked") && !questions.concern("acme", "free"));
        let rest = questions.take_out(vec![submit("free", 0), submit("asked", 0), submit("asked", 99)], Time(5));
        assert_eq!(
            (rest.places, rest.failed),
            (vec![0, 2], vec![]),
            "a job whose time has not come is asked about later"
        );
        assert_eq!(asked.try_recv().unwrap().spec.unwrap().topic, "asked");
        assert!(asked.try_recv().is_err());
    }
}
