//! Who waits for which job to end.
//!
//! Knows: the waiters of this process, by job. Promises: an event on the bus wakes the waiters of
//! its job; a reconnect wakes all of them, because events may have been missed meanwhile; nobody
//! is left in the map once its request is over. A wake-up is a hint: whoever wakes reads the
//! record. Leaves to others: time-outs, and what to answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_bus::{Bus, subjects};
use muster_domain::{JobId, State};
use muster_wire::{Body, v1};
use tokio::sync::Notify;

/// All waiters. Copies are the same.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    by_job: Arc<Mutex<HashMap<JobId, Vec<Arc<Notify>>>>>,
}

/// One request that waits; leaves when dropped.
pub(crate) struct Waiting {
    waits: Waits,
    job: JobId,
    woken: Arc<Notify>,
}

impl Waits {
    fn map(&self) -> MutexGuard<'_, HashMap<JobId, Vec<Arc<Notify>>>> {
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait. Read the record after this, not before: what ends in between is noticed.
    pub(crate) fn enter(&self, job: JobId) -> Waiting {
        let woken = Arc::new(Notify::new());
        self.map().entry(job).or_default().push(woken.clone());
        Waiting { waits: self.clone(), job, woken }
    }

    /// Wakes whoever waits for one of these, if it has ended.
    fn heard(&self, events: &[v1::JobEvent]) {
        let map = self.map();
        if map.is_empty() {
            return;
        }
        for event in events {
            let ended = u8::try_from(event.state).ok().and_then(State::from_code).is_some_and(State::is_end);
            let waiters = JobId::from_slice(&event.job_id).filter(|_| ended).and_then(|id| map.get(&id));
            waiters.into_iter().flatten().for_each(|woken| woken.notify_one());
        }
    }

    /// Wakes everybody, to read again.
    fn wake_all(&self) {
        self.map().values().flatten().for_each(|woken| woken.notify_one());
    }

    /// Listens to events until the connection is closed for good.
    pub(crate) async fn listen(&self, bus: &Bus) -> anyhow::Result<()> {
        let mut events = bus.subscribe(&subjects::event(), None).await?;
        let mut state = bus.watch_state();
        self.wake_all();
        loop {
            tokio::select! {
                received = events.next() => match received.map(|received| received.body) {
                    Some(Body::Event(group)) => self.heard(&group.items),
                    Some(_) => {}
                    None => anyhow::bail!("the subscription to events has ended"),
                },
                changed = state.changed() => {
                    changed?;
                    if *state.borrow_and_update() {
                        self.wake_all();
                    }
                }
            }
        }
    }
}

impl Waiting {
    /// Resolves when the job may have ended. A wake-up that came before the call counts.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut map = self.waits.map();
        if let Some(waiters) = map.get_mut(&self.job) {
            waiters.retain(|other| !Arc::ptr_eq(other, &self.woken));
            if waiters.is_empty() {
                map.remove(&self.job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn event(job: JobId, state: State) -> v1::JobEvent {
        v1::JobEvent { job_id: job.as_bytes().to_vec().into(), state: state.code().into(), ..Default::default() }
    }

    #[test]
    fn an_end_wakes_the_waiters_of_its_job_only() {
        let waits = Waits::default();
        let (one, other) = (JobId::mint(0), JobId::mint(1));
        let (first, second, stranger) = (waits.enter(one), waits.enter(one), waits.enter(other));
        waits.heard(&[event(one, State::Running)]);
        assert!(first.woken().now_or_never().is_none(), "running is no end");
        waits.heard(&[event(JobId::mint(2), State::Failed), event(one, State::Succeeded)]);
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
        assert!(stranger.woken().now_or_never().is_none());
        waits.wake_all();
        assert!(stranger.woken().now_or_never().is_some());
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let waits = Waits::default();
        let job = JobId::mint(0);
        let first = waits.enter(job);
        drop(waits.enter(job));
        assert_eq!(waits.map()[&job].len(), 1);
        drop(first);
        assert!(waits.map().is_empty());
    }
}
