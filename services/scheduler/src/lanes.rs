//! The subjects this replica has dealt with lately, each with its window.
//!
//! Knows: a [`Lane`] per (tenant, topic), what its window says, who is releasing its backlog.
//! Promises: a lane is found without an allocation; one that has been idle for minutes is
//! forgotten, so that topics which appear on first use cannot grow a replica's memory. Leaves to
//! others: measuring (`survey`) and moving jobs (`dispatch`, `backlog`).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use muster_bus::{Subject, subjects};
use muster_domain::{NameFault, Tenant, Topic};
use tokio::sync::{Notify, mpsc};

use crate::{decide::TopicView, window::Window};

/// How long a lane without offers, backlog or traffic is remembered.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// How many rounds of releases of one lane may be under way: one publishes while one claims.
const ROUNDS: usize = 2;

/// One tenant's topic, as this replica sees it.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) tenant: Tenant,
    pub(crate) topic: Topic,
    pub(crate) subject: Subject,
    window: Mutex<Window>,
    /// Counted at least once: before that nothing is known of its backlog.
    surveyed: AtomicBool,
    /// Used since the last survey.
    active: AtomicBool,
    used: Mutex<Instant>,
    /// Already waits for its release.
    poked: AtomicBool,
    rounds: AtomicUsize,
}

impl Lane {
    fn new(tenant: Tenant, topic: Topic) -> Lane {
        Lane {
            subject: subjects::offer(&tenant, &topic),
            tenant,
            topic,
            window: Mutex::new(Window::new()),
            surveyed: AtomicBool::new(false),
            active: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
            poked: AtomicBool::new(false),
            rounds: AtomicUsize::new(0),
        }
    }

    /// The window, for a moment.
    pub(crate) fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a decision needs to know.
    pub(crate) fn view(window: &Window) -> TopicView {
        TopicView { waiting: window.waiting(), room: window.room() }
    }

    /// Whether it was ever counted.
    pub(crate) fn is_surveyed(&self) -> bool {
        self.surveyed.load(Ordering::Acquire)
    }

    /// It has been counted.
    pub(crate) fn set_surveyed(&self) {
        self.surveyed.store(true, Ordering::Release);
    }

    /// Jobs wait and the window has room.
    pub(crate) fn can_release(&self) -> bool {
        let window = self.window();
        window.waiting() > 0 && window.room() > 0
    }

    /// A turn to release, unless enough rounds are under way.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Turn> {
        let taken = self.rounds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < ROUNDS).then_some(n + 1));
        taken.ok().map(|_| Turn { lane: self.clone() })
    }

    fn touch(&self) -> bool {
        let woken = !self.active.swap(true, Ordering::AcqRel);
        if woken {
            *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        woken
    }

    fn forgettable(&self, now: Instant) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(used) > FORGET_AFTER && self.window().is_idle()
    }
}

/// The right to release a lane's backlog; given back when dropped.
pub(crate) struct Turn {
    lane: Arc<Lane>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lane.rounds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All lanes of this replica.
#[derive(Debug)]
pub(crate) struct Lanes {
    known: RwLock<HashMap<String, HashMap<String, Arc<Lane>>>>,
    /// Told when a lane becomes active, so that the survey need not poll.
    pub(crate) stirred: Notify,
    pokes: mpsc::UnboundedSender<Arc<Lane>>,
}

impl Lanes {
    /// No lanes yet, and where those go that want a release. The channel is bounded by the number
    /// of lanes: each is in it at most once.
    pub(crate) fn new() -> (Lanes, mpsc::UnboundedReceiver<Arc<Lane>>) {
        let (pokes, poked) = mpsc::unbounded_channel();
        (Lanes { known: RwLock::default(), stirred: Notify::new(), pokes }, poked)
    }

    /// The lane of these names, made on first use; marks it active.
    pub(crate) fn lane(&self, tenant: &str, topic: &str) -> Result<Arc<Lane>, NameFault> {
        let found = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            known.get(tenant).and_then(|topics| topics.get(topic)).cloned()
        };
        let lane = match found {
            Some(lane) => lane,
            None => {
                let (t, p) = (Tenant::parse(tenant)?, Topic::parse(topic)?);
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                let topics = known.entry(tenant.to_owned()).or_default();
                topics.entry(topic.to_owned()).or_insert_with(|| Arc::new(Lane::new(t, p))).clone()
            }
        };
        if lane.touch() {
            self.stirred.notify_one();
        }
        Ok(lane)
    }

    /// Asks for a release of this lane's backlog, soon.
    pub(crate) fn poke(&self, lane: &Arc<Lane>) {
        if !lane.poked.swap(true, Ordering::AcqRel) {
            // Fails only when the process is on its way out.
            let _ = self.pokes.send(lane.clone());
        }
    }

    /// The poke of this lane is being answered; later ones count anew.
    pub(crate) fn answered(&self, lane: &Lane) {
        lane.poked.store(false, Ordering::Release);
    }

    /// Lanes used since the last call.
    pub(crate) fn take_active(&self) -> Vec<Arc<Lane>> {
        self.each(|lane| lane.active.swap(false, Ordering::AcqRel))
    }

    /// Lanes with offers on the stream or jobs in the backlog.
    pub(crate) fn occupied(&self) -> Vec<Arc<Lane>> {
        self.each(|lane| !lane.window().is_idle())
    }

    /// All lanes.
    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        self.each(|_| true)
    }

    /// Forgets lanes that have been idle for minutes.
    pub(crate) fn forget_idle(&self, now: Instant) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for topics in known.values_mut() {
            topics.retain(|_, lane| !lane.forgettable(now));
        }
        known.retain(|_, topics| !topics.is_empty());
    }

    fn each(&self, wanted: impl Fn(&Lane) -> bool) -> Vec<Arc<Lane>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().flat_map(HashMap::values).filter(|lane| wanted(lane)).cloned().collect()
    }
}

/// Counts per lane within one batch, in which most jobs share few lanes.
#[derive(Default)]
pub(crate) struct PerLane {
    counts: Vec<(Arc<Lane>, u64)>,
}

impl PerLane {
    /// One more.
    pub(crate) fn add(&mut self, lane: &Arc<Lane>) {
        match self.counts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, lane)) {
            Some((_, n)) => *n += 1,
            None => self.counts.push((lane.clone(), 1)),
        }
    }

    /// Each lane with its count.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Arc<Lane>, u64)> {
        self.counts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_made_once_and_bad_names_make_none() {
        let (lanes, _poked) = Lanes::new();
        let lane = lanes.lane("default", "mail.send").unwrap();
        assert!(Arc::ptr_eq(&lane, &lanes.lane("default", "mail.send").unwrap()));
        assert_eq!(lane.subject.as_str(), "job.default.mail.send");
        assert!(lanes.lane("default", "mail.>").is_err());
        assert_eq!(lanes.all().len(), 1);
    }

    #[test]
    fn a_poke_is_heard_once_until_it_is_answered() {
        let (lanes, mut poked) = Lanes::new();
        let lane = lanes.lane("default", "t").unwrap();
        lanes.poke(&lane);
        lanes.poke(&lane);
        assert!(poked.try_recv().is_ok());
        assert!(poked.try_recv().is_err(), "merged");
        lanes.answered(&lane);
        lanes.poke(&lane);
        assert!(poked.try_recv().is_ok());
    }

    #[test]
    fn only_so_many_rounds_run_at_once() {
        let (lanes, _poked) = Lanes::new();
        let lane = lanes.lane("default", "t").unwrap();
        let turns: Vec<_> = (0..ROUNDS).map(|_| lane.turn().unwrap()).collect();
        assert!(lane.turn().is_none());
        drop(turns);
        assert!(lane.turn().is_some());
    }

    #[test]
    fn idle_lanes_are_forgotten_and_busy_ones_kept() {
        let (lanes, _poked) = Lanes::new();
        lanes.lane("default", "idle").unwrap();
        lanes.lane("default", "busy").unwrap().window().queued(1);
        lanes.forget_idle(Instant::now());
        assert_eq!(lanes.all().len(), 2, "not yet");
        lanes.forget_idle(Instant::now() + FORGET_AFTER * 2);
        assert_eq!(lanes.all().iter().map(|l| l.topic.as_str().to_owned()).collect::<Vec<_>>(), ["busy"]);
    }
}
