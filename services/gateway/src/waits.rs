//! Requests that wait for a job or a run to end.
//!
//! Knows: the waiting requests of this process, by what they wait for. Promises: an event on the bus wakes the requests
//! that wait for its job or run; a reconnect wakes all requests, because events may have been missed; a request leaves
//! the map when it ends; while no request waits, the gateway does not listen, so that a flood of jobs costs nothing
//! here. A wake-up is a hint: the request then reads the record. Leaves to others: time-outs, and the answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_bus::{Bus, Subscription, subjects};
use muster_domain::{JobId, RunId, State};
use muster_engine::run::RunState;
use muster_wire::{Body, v1};
use tokio::sync::{Notify, watch};

/// How long the gateway keeps listening after the last waiting request has left.
const LINGER: Duration = Duration::from_secs(1);
/// How long a request waits for the gateway to listen. Without NATS only the request's time-out wakes it.
const LISTENED_WITHIN: Duration = Duration::from_millis(500);

/// The end that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Awaited {
    Job(JobId),
    Run(RunId),
}

/// All waiting requests. Clones share the same state.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    by_end: Arc<Mutex<HashMap<Awaited, Vec<Arc<Notify>>>>>,
    /// Whether any request waits.
    wanted: watch::Sender<bool>,
    /// Whether the gateway listens to events.
    heard: watch::Sender<bool>,
}

/// One waiting request. Dropping it removes it from the map.
pub(crate) struct Waiting {
    waits: Waits,
    end: Awaited,
    woken: Arc<Notify>,
}

impl Waits {
    fn map(&self) -> MutexGuard<'_, HashMap<Awaited, Vec<Arc<Notify>>>> {
        self.by_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to wait for the end of a job. Read the record after this call, not before, so that an end in between is
    /// noticed.
    pub(crate) async fn enter(&self, job: JobId) -> Waiting {
        self.enter_for(Awaited::Job(job)).await
    }

    /// Starts to wait for the end of a run. Read the run after this call, not before, so that an end in between is
    /// noticed.
    pub(crate) async fn wait_for_run(&self, run: RunId) -> Waiting {
        self.enter_for(Awaited::Run(run)).await
    }

    async fn enter_for(&self, end: Awaited) -> Waiting {
        let waiting = self.join(end);
        let mut heard = self.heard.subscribe();
        // If this times out, the request still reads the record at its own time-out.
        let _ = tokio::time::timeout(LISTENED_WITHIN, heard.wait_for(|heard| *heard)).await;
        waiting
    }

    fn join(&self, end: Awaited) -> Waiting {
        let woken = Arc::new(Notify::new());
        let mut map = self.map();
        map.entry(end).or_default().push(woken.clone());
        self.wanted.send_replace(true);
        drop(map);
        Waiting { waits: self.clone(), end, woken }
    }

    /// Wakes the requests that wait for one of these ends.
    fn heard(&self, ends: impl Iterator<Item = Option<Awaited>>) {
        let map = self.map();
        if map.is_empty() {
            return;
        }
        for end in ends.flatten() {
            map.get(&end).into_iter().flatten().for_each(|woken| woken.notify_one());
        }
    }

    /// Wakes all requests, so that they read their records again.
    fn wake_all(&self) {
        self.map().values().flatten().for_each(|woken| woken.notify_one());
    }

    /// Listens to events while requests wait, until the connection is closed for good.
    pub(crate) async fn listen(&self, bus: &Bus) -> anyhow::Result<()> {
        self.heard.send_replace(false);
        let mut wanted = self.wanted.subscribe();
        loop {
            wanted.wait_for(|wanted| *wanted).await?;
            let mut events = bus.subscribe_now(&subjects::all_events()).await?;
            self.heard.send_replace(true);
            let followed = self.follow(bus, &mut events, &wanted).await;
            self.heard.send_replace(false);
            followed?;
            events.drain().await;
        }
    }

    /// Wakes requests until no request has waited for a while.
    async fn follow(&self, bus: &Bus, events: &mut Subscription, wanted: &watch::Receiver<bool>) -> anyhow::Result<()> {
        let mut state = bus.watch_state();
        self.wake_all();
        // One idle timer across all events. A timer that each event restarts would never end under load.
        let mut idle = std::pin::pin!(unwanted(wanted.clone()));
        loop {
            tokio::select! {
                received = events.next() => match received.map(|received| received.body) {
                    Some(Body::Event(group)) => self.heard(group.items.iter().map(end_of_job)),
                    Some(Body::RunEvent(group)) => self.heard(group.items.iter().map(end_of_run)),
                    Some(_) => {}
                    None => anyhow::bail!("the subscription to events has ended"),
                },
                changed = state.changed() => {
                    changed?;
                    if *state.borrow_and_update() {
                        self.wake_all();
                    }
                }
                () = &mut idle => {
                    // A request that arrives from here on waits until the gateway listens again. One that arrived
                    // before is found below.
                    self.heard.send_replace(false);
                    if !*self.wanted.borrow() {
                        return Ok(());
                    }
                    self.heard.send_replace(true);
                    idle.set(unwanted(wanted.clone()));
                }
            }
        }
    }
}

/// The end that an event of a job reports, if it reports one.
fn end_of_job(event: &v1::JobEvent) -> Option<Awaited> {
    let ended = u8::try_from(event.state).ok().and_then(State::from_code).is_some_and(State::is_end);
    JobId::from_slice(&event.job_id).filter(|_| ended).map(Awaited::Job)
}

/// The end that an event of a run reports, if it reports one. Events that a run emits after its end report it again.
fn end_of_run(event: &v1::RunEvent) -> Option<Awaited> {
    let ended = u8::try_from(event.state).ok().and_then(RunState::from_code).is_some_and(RunState::is_end);
    RunId::from_slice(&event.run_id).filter(|_| ended).map(Awaited::Run)
}

/// Resolves when no request has waited for [`LINGER`].
async fn unwanted(mut wanted: watch::Receiver<bool>) {
    loop {
        if wanted.wait_for(|wanted| !*wanted).await.is_err() {
            return std::future::pending().await;
        }
        if tokio::time::timeout(LINGER, wanted.wait_for(|wanted| *wanted)).await.is_err() {
            return;
        }
    }
}

impl Waiting {
    /// Resolves when the job or run may have ended. A wake-up before this call counts.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut map = self.waits.map();
        if let Some(waiters) = map.get_mut(&self.end) {
            waiters.retain(|other| !Arc::ptr_eq(other, &self.woken));
            if waiters.is_empty() {
                map.remove(&self.end);
            }
        }
        if map.is_empty() {
            self.waits.wanted.send_replace(false);
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

    fn event_of_run(run: RunId, state: RunState) -> v1::RunEvent {
        v1::RunEvent { run_id: run.as_bytes().to_vec().into(), state: state.code().into(), ..Default::default() }
    }

    #[test]
    fn an_end_wakes_the_waiters_of_its_job_only() {
        let waits = Waits::default();
        let (one, other) = (JobId::mint(0), JobId::mint(1));
        let join = |job| waits.join(Awaited::Job(job));
        let (first, second, stranger) = (join(one), join(one), join(other));
        let heard = |events: &[v1::JobEvent]| waits.heard(events.iter().map(end_of_job));
        heard(&[event(one, State::Running)]);
        assert!(first.woken().now_or_never().is_none(), "running is no end");
        heard(&[event(JobId::mint(2), State::Failed), event(one, State::Succeeded)]);
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
        assert!(stranger.woken().now_or_never().is_none());
        waits.wake_all();
        assert!(stranger.woken().now_or_never().is_some());
    }

    #[test]
    fn an_end_of_a_run_wakes_its_waiters_and_not_those_of_a_job_with_the_same_bytes() {
        let waits = Waits::default();
        let run = RunId::mint(0);
        let job = JobId::from_slice(run.as_bytes()).unwrap();
        let (first, stranger) = (waits.join(Awaited::Run(run)), waits.join(Awaited::Job(job)));
        let heard = |state| waits.heard([event_of_run(run, state)].iter().map(end_of_run));
        heard(RunState::Compensating);
        assert!(first.woken().now_or_never().is_none(), "compensating is no end");
        heard(RunState::Cancelled);
        assert!(first.woken().now_or_never().is_some());
        assert!(stranger.woken().now_or_never().is_none());
    }

    #[tokio::test]
    async fn one_subscription_hears_of_jobs_and_of_runs() {
        let server = muster_testkit::NatsServer::start().await;
        let bus = Bus::connect(muster_bus::BusSettings::new(server.url(), "test")).await.unwrap();
        let (waits, job, run) = (Waits::default(), JobId::mint(0), RunId::mint(0));
        let wait = async {
            let (of_job, of_run) = (waits.enter(job).await, waits.wait_for_run(run).await);
            assert!(*waits.heard.borrow(), "somebody waits");
            // A request that begins the listening is woken once, because the gateway may have missed events before.
            let _ = (of_job.woken().now_or_never(), of_run.woken().now_or_never());
            let items = vec![event_of_run(run, RunState::Failed)];
            bus.broadcast(&subjects::workflow_event(), Body::RunEvent(v1::RunEventGroup { items })).await.unwrap();
            tokio::time::timeout(LINGER * 15, of_run.woken()).await.expect("the run has ended");
            let items = vec![event(job, State::Succeeded)];
            bus.broadcast(&subjects::event(), Body::Event(v1::EventGroup { items })).await.unwrap();
            tokio::time::timeout(LINGER * 15, of_job.woken()).await.expect("the job has ended");
        };
        tokio::select! {
            ended = waits.listen(&bus) => panic!("{ended:?}"),
            () = wait => {}
        }
    }

    #[tokio::test]
    async fn who_has_nobody_left_to_wake_stops_listening_however_much_happens() {
        let server = muster_testkit::NatsServer::start().await;
        let bus = Bus::connect(muster_bus::BusSettings::new(server.url(), "test")).await.unwrap();
        let waits = Waits::default();
        let flood = async {
            loop {
                let items = vec![event(JobId::mint(0), State::Succeeded)];
                let _ = bus.broadcast(&subjects::event(), Body::Event(v1::EventGroup { items })).await;
                tokio::time::sleep(LINGER / 20).await;
            }
        };
        let visit = async {
            let waiting = waits.enter(JobId::mint(1)).await;
            assert!(*waits.heard.borrow(), "somebody waits");
            drop(waiting);
            let mut heard = waits.heard.subscribe();
            tokio::time::timeout(LINGER * 15, heard.wait_for(|heard| !*heard)).await.expect("nobody waits").unwrap();
            let again = waits.enter(JobId::mint(2)).await;
            assert!(*waits.heard.borrow(), "somebody waits again");
            drop(again);
        };
        tokio::select! {
            () = flood => unreachable!("it goes on"),
            ended = waits.listen(&bus) => panic!("{ended:?}"),
            () = visit => {}
        }
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let waits = Waits::default();
        let job = Awaited::Job(JobId::mint(0));
        let first = waits.join(job);
        drop(waits.join(job));
        assert_eq!(waits.map()[&job].len(), 1);
        assert!(*waits.wanted.borrow());
        drop(first);
        assert!(waits.map().is_empty());
        assert!(!*waits.wanted.borrow(), "nobody listens for nobody");
    }
}
