//! The live workers, from their heartbeats.
//!
//! Knows: each worker's topics, slots and number of busy slots; the crew of each route, updated with every heartbeat.
//! Promises: a worker without a heartbeat for 30 s is gone; a worker that reports `leaving` is gone at once. Leaves to
//! others: giving work (workers pull), and judging a worker's attempts (by their leases).

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_domain::{Time, WorkerId};
use muster_store::WorkerSeen;
use muster_wire::v1::Heartbeat;

use crate::{crew::Crew, route_state::RouteState};

/// A worker without a heartbeat for this long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);
/// A replica that has listened for this long has heard every worker: they send a heartbeat every 5 s.
const ALL_HEARD: Duration = Duration::from_secs(6);

/// All workers that this replica has heard of lately.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    workers: HashMap<String, Worker>,
    /// By tenant, then topic.
    crews: HashMap<String, HashMap<String, Crew>>,
    listens_since: Option<Instant>,
}

#[derive(Debug)]
struct Worker {
    said: Heartbeat,
    heard: Instant,
}

impl Fleet {
    /// Records a heartbeat. True if the worker is new, has left, or has started or stopped taking work.
    pub(crate) fn heard(&self, mut beat: Heartbeat, now: Instant) -> bool {
        let mut state = self.state();
        let before = state.forget(&beat.worker).map(|worker| {
            if beat.keeping {
                beat.labels = worker.said.labels;
            }
            worker.said.consuming
        });
        if beat.leaving {
            return before.is_some();
        }
        let changed = before != Some(beat.consuming);
        for topic in &beat.topics {
            state.add(&beat.tenant, topic, Crew::of(&beat));
        }
        state.workers.insert(beat.worker.clone(), Worker { said: beat, heard: now });
        changed
    }

    /// Removes workers without a recent heartbeat. True if there was one.
    pub(crate) fn sweep(&self, now: Instant) -> bool {
        let mut state = self.state();
        let gone = |w: &Worker| now.saturating_duration_since(w.heard) > GONE_AFTER;
        let names: Vec<String> = state.workers.iter().filter(|(_, w)| gone(w)).map(|(name, _)| name.clone()).collect();
        for name in &names {
            state.forget(name);
        }
        !names.is_empty()
    }

    /// Marks that heartbeats arrive from now on.
    pub(crate) fn listens(&self, now: Instant) {
        self.state().listens_since = Some(now);
    }

    /// Whether this replica has listened long enough to have heard every live worker.
    pub(crate) fn has_heard_all(&self, now: Instant) -> bool {
        self.state().listens_since.is_some_and(|since| now.saturating_duration_since(since) > ALL_HEARD)
    }

    /// The live workers, in order of tenant and name. `at` is Redis time at `now`.
    pub(crate) fn live(&self, now: Instant, at: Time) -> Vec<WorkerSeen> {
        let state = self.state();
        let mut live: Vec<WorkerSeen> = state
            .workers
            .values()
            .map(|worker| (worker, now.saturating_duration_since(worker.heard)))
            .filter(|(_, silent)| *silent <= GONE_AFTER)
            .map(|(Worker { said, .. }, silent)| WorkerSeen {
                id: said.worker.clone(),
                tenant: said.tenant.clone(),
                all_tenants: said.all_tenants,
                topics: said.topics.clone(),
                slots: said.slots,
                busy: said.busy,
                healthy: said.consuming,
                version: said.version.clone(),
                labels: said.labels.clone(),
                last_seen: at.before(silent),
            })
            .collect();
        live.sort_unstable_by(|a, b| (&a.tenant, &a.id).cmp(&(&b.tenant, &b.id)));
        live
    }

    /// The live workers of a tenant's topic.
    fn crew(&self, tenant: &str, topic: &str) -> Crew {
        self.state().crews.get(tenant).and_then(|topics| topics.get(topic)).copied().unwrap_or_default()
    }

    /// The live workers of a route, including those of pooled and shared routes.
    pub(crate) fn crew_of(&self, route: &RouteState) -> Crew {
        if !route.is_pooled() && !route.is_shared() {
            return self.crew(route.tenant.as_str(), route.topic.as_str());
        }
        let mut crew = Crew::default();
        self.state().workers.values().filter(|worker| worker.takes(route)).for_each(|w| crew.join(Crew::of(&w.said)));
        crew
    }

    /// Workers that may run a route's jobs but do not pull from it by themselves.
    pub(crate) fn takers(&self, route: &RouteState) -> Vec<WorkerId> {
        let state = self.state();
        let by_itself = |worker: &Worker| !route.is_pooled() && worker.said.tenant == route.tenant.as_str();
        let takers = state.workers.values().filter(|worker| worker.takes(route) && !by_itself(worker));
        takers.map(|worker| WorkerId::trusted(worker.said.worker.clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn takes(&self, route: &RouteState) -> bool {
        let said = &self.said;
        let name = WorkerId::trusted(said.worker.as_str());
        let theirs = said.tenant == route.tenant.as_str() || (said.all_tenants && route.is_shared());
        theirs
            && said.topics.iter().any(|topic| topic == route.topic.as_str())
            && route.fits(name.own_name(), &said.labels)
    }
}

impl State {
    fn forget(&mut self, name: &str) -> Option<Worker> {
        let worker = self.workers.remove(name)?;
        let Some(topics) = self.crews.get_mut(&worker.said.tenant) else { return Some(worker) };
        for topic in &worker.said.topics {
            if let Some(crew) = topics.get_mut(topic) {
                crew.leave(Crew::of(&worker.said));
            }
        }
        topics.retain(|_, crew| crew.workers > 0);
        if topics.is_empty() {
            self.crews.remove(&worker.said.tenant);
        }
        Some(worker)
    }

    fn add(&mut self, tenant: &str, topic: &str, crew: Crew) {
        let topics = self.crews.entry(tenant.to_owned()).or_default();
        topics.entry(topic.to_owned()).or_default().join(crew);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(worker: &str, topics: &[&str], slots: u32, busy: u32) -> Heartbeat {
        Heartbeat {
            worker: worker.into(),
            tenant: "default".into(),
            topics: topics.iter().map(|t| (*t).to_owned()).collect(),
            slots,
            busy,
            ..Default::default()
        }
    }

    #[test]
    fn free_slots_follow_every_heartbeat() {
        let (fleet, now) = (Fleet::default(), Instant::now());
        fleet.heard(beat("w1", &["a", "b"], 10, 4), now);
        fleet.heard(beat("w2", &["a"], 5, 0), now);
        assert_eq!((fleet.crew("default", "a").free, fleet.crew("default", "b").free), (11, 6));
        fleet.heard(beat("w1", &["a"], 10, 10), now);
        assert_eq!((fleet.crew("default", "a").free, fleet.crew("default", "b").free), (5, 0));
        assert_eq!(fleet.crew("other", "a").free, 0);
    }

    #[test]
    fn what_a_worker_provides_outlives_a_call_that_does_not_say() {
        let (fleet, now) = (Fleet::default(), Instant::now());
        let labels = || [("gpu".to_owned(), "a100".to_owned())].into();
        fleet.heard(Heartbeat { labels: labels(), ..beat("h~default~w1", &["a"], 1, 0) }, now);
        fleet.heard(Heartbeat { keeping: true, ..beat("h~default~w1", &["a"], 1, 1) }, now);
        assert_eq!(fleet.live(now, Time(1))[0].labels, labels());
        fleet.heard(beat("h~default~w1", &["a"], 1, 0), now);
        assert!(fleet.live(now, Time(1))[0].labels.is_empty(), "it no longer says so");
    }

    #[test]
    fn a_silent_worker_and_one_that_leaves_are_gone() {
        let (fleet, now) = (Fleet::default(), Instant::now());
        fleet.heard(beat("w1", &["a"], 3, 0), now);
        fleet.heard(beat("w2", &["a"], 4, 0), now + GONE_AFTER);
        fleet.sweep(now + GONE_AFTER + Duration::from_millis(1));
        assert_eq!(fleet.crew("default", "a").free, 4);
        fleet.heard(Heartbeat { leaving: true, ..beat("w2", &["a"], 4, 0) }, now + GONE_AFTER);
        assert_eq!(fleet.crew("default", "a").free, 0);
    }

    #[test]
    fn who_lives_is_told_in_order_with_health_and_age() {
        let (fleet, now, at) = (Fleet::default(), Instant::now(), Time(60_000_000));
        assert!(!fleet.has_heard_all(now + ALL_HEARD * 2), "it does not listen yet");
        fleet.listens(now);
        assert!(!fleet.has_heard_all(now + ALL_HEARD / 2) && fleet.has_heard_all(now + ALL_HEARD * 2));
        let well = |name: &str| Heartbeat { consuming: true, ..beat(name, &["a"], 4, 1) };
        assert!(fleet.heard(well("w2"), now) && fleet.heard(beat("w1", &["a"], 4, 0), now));
        assert!(fleet.heard(Heartbeat { tenant: "acme".into(), ..well("w3") }, now));
        assert!(!fleet.heard(well("w2"), now + Duration::from_secs(10)), "no news");
        assert!(fleet.heard(beat("w2", &["a"], 4, 1), now + Duration::from_secs(10)), "its loop hangs");
        assert!(fleet.heard(well("w2"), now + Duration::from_secs(10)));
        let seen = fleet.live(now + Duration::from_secs(15), at);
        let told: Vec<_> = seen.iter().map(|w| (w.id.as_str(), w.healthy, w.last_seen.0 / 1_000_000)).collect();
        assert_eq!(told, [("w3", true, 45), ("w1", false, 45), ("w2", true, 55)]);
        assert_eq!(fleet.live(now + GONE_AFTER + Duration::from_secs(1), at).len(), 1, "the silent are gone");
        assert!(fleet.sweep(now + GONE_AFTER + Duration::from_secs(1)));
        assert!(fleet.heard(Heartbeat { leaving: true, ..well("w2") }, now));
        assert!(!fleet.heard(Heartbeat { leaving: true, ..well("w2") }, now), "it had left");
    }
}
