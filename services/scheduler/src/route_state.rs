//! The routes that this replica has used lately, each with its window.
//!
//! Knows: a [`RouteState`] per tenant and line (the jobs of a topic with the same requirements), its window, the labels
//! that its workers must provide, and the rounds that release its backlog. Promises: a lookup of a known route
//! allocates nothing; a route that was idle for minutes is forgotten, so that topics which appear on first use cannot
//! grow a replica's memory. Leaves to others: measuring (`survey`) and moving jobs (`dispatch`, `backlog`).

mod rules;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use muster_bus::{Subject, subjects};
use muster_domain::{Labels, Line, NameFault, Tenant, Topic, line};
use muster_flow::Settings;
use muster_store::TopicRecord;
use tokio::sync::{Notify, mpsc};

use crate::{decide::TopicView, local_claims::LocalClaims, window::Window};

/// How long a route without offers, backlog or traffic is remembered.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// How often at most a line in use is announced to workers.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// How often a line in use is noted in Redis: long before its name could be dropped.
const NOTE_AGAIN: Duration = Duration::from_secs(60);
/// Pause after a note that failed; jobs do not wait for the note meanwhile.
const NOTE_RETRY: Duration = Duration::from_secs(1);
/// Most rounds that release one route at once: one publishes while one claims.
const ROUNDS: usize = 2;

/// The state of one route (a tenant's line) in this replica.
#[derive(Debug)]
pub(crate) struct RouteState {
    pub(crate) tenant: Tenant,
    pub(crate) topic: Topic,
    pub(crate) line: Line,
    pub(crate) subject: Subject,
    /// Labels that workers must provide; known after the first job, because the line's name has only their hash.
    requires: OnceLock<Labels>,
    /// When the route was last announced to its workers.
    told: Mutex<Option<Instant>>,
    /// When to note the line in Redis again; none if it was never noted.
    note_at: Mutex<Option<Instant>>,
    window: Mutex<Window>,
    /// Queue entries that this replica enqueued and claimed.
    pub(crate) local_claims: LocalClaims,
    /// Set after the first count: before it nothing is known of the backlog.
    surveyed: AtomicBool,
    /// Used since the last survey.
    active: AtomicBool,
    used: Mutex<Instant>,
    /// Whether the route already waits for its release.
    poked: AtomicBool,
    rounds: AtomicUsize,
    /// Run-time settings of the topic.
    pub(crate) rules: ArcSwapOption<TopicRecord>,
    /// Set while the rate has no tokens.
    pub(crate) resting: AtomicBool,
    /// Whether workers for all tenants may take its jobs.
    shared: AtomicBool,
    /// Set when a place of the topic was given back since the last count of places.
    pub(crate) place_came_free: AtomicBool,
}

impl RouteState {
    fn new(tenant: Tenant, line: Line, rules: Option<Arc<TopicRecord>>, shared: bool) -> RouteState {
        RouteState {
            shared: AtomicBool::new(shared),
            rules: ArcSwapOption::new(rules),
            resting: AtomicBool::new(false),
            place_came_free: AtomicBool::new(false),
            subject: subjects::offer(&tenant, &line),
            tenant,
            topic: line.topic().clone(),
            line,
            requires: OnceLock::new(),
            told: Mutex::new(None),
            note_at: Mutex::new(None),
            window: Mutex::new(Window::new()),
            local_claims: LocalClaims::default(),
            surveyed: AtomicBool::new(false),
            active: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
            poked: AtomicBool::new(false),
            rounds: AtomicUsize::new(0),
        }
    }

    /// Locks the window; hold it only for a moment.
    pub(crate) fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The input of a decision.
    pub(crate) fn view(&self, window: &Window) -> TopicView {
        TopicView { waiting: window.waiting(), room: window.room(), held: self.holds_newcomers() }
    }

    /// Whether workers learn of this route only by a notice: it is not a plain line, which they pull by themselves.
    pub(crate) fn is_pooled(&self) -> bool {
        !self.line.pool().is_empty()
    }

    /// Whether workers for all tenants may take its jobs.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    pub(crate) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::Release);
    }

    /// Labels that workers must provide; none if not known yet, or if the route is a plain line.
    pub(crate) fn requires(&self) -> Option<&Labels> {
        self.requires.get()
    }

    /// Learns the requirements from a job of this route.
    pub(crate) fn learn(&self, requires: &Labels) {
        if self.is_pooled() && self.requires.get().is_none() {
            // If another task was first, it has set the same labels.
            let _ = self.requires.set(requires.clone());
        }
    }

    /// Whether a worker with this name and these labels may run its jobs.
    pub(crate) fn fits(&self, worker: &str, provided: &Labels) -> bool {
        !self.is_pooled() || self.requires().is_some_and(|required| line::provides(worker, provided, required))
    }

    /// Whether to announce the route now; if so it counts as announced.
    pub(crate) fn to_be_told(&self, now: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let due = told.is_none_or(|last| now.saturating_duration_since(last) >= TELL_AGAIN);
        if due {
            *told = Some(now);
        }
        due
    }

    /// The labels to note the line with; none if it was noted lately, or need not be noted.
    pub(crate) fn to_be_noted(&self, now: Instant) -> Option<&Labels> {
        let requires = self.requires()?;
        let at = *self.note_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_none_or(|at| at <= now).then_some(requires)
    }

    /// The line was noted at `at` or later.
    pub(crate) fn set_noted(&self, at: Instant) {
        self.note_at(at + NOTE_AGAIN);
    }

    /// The line could not be noted; try again soon.
    pub(crate) fn set_not_noted(&self, at: Instant) {
        self.note_at(at + NOTE_RETRY);
    }

    fn note_at(&self, at: Instant) {
        *self.note_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    pub(crate) fn is_surveyed(&self) -> bool {
        self.surveyed.load(Ordering::Acquire)
    }

    pub(crate) fn set_surveyed(&self) {
        self.surveyed.store(true, Ordering::Release);
    }

    /// Whether jobs wait, the window has room, and the topic's settings allow a release.
    pub(crate) fn can_release(&self) -> bool {
        if !self.may_release() {
            return false;
        }
        let window = self.window();
        window.waiting() > 0 && window.room() > 0 && self.ration(&window) > 0
    }

    /// A turn to release; none if enough rounds are running.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Turn> {
        let taken = self.rounds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < ROUNDS).then_some(n + 1));
        taken.ok().map(|_| Turn { route: self.clone() })
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

/// The right to release a route's backlog; given back when dropped.
pub(crate) struct Turn {
    route: Arc<RouteState>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.route.rounds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All routes of this replica.
#[derive(Debug)]
pub(crate) struct RouteStates {
    known: RwLock<HashMap<String, HashMap<String, Arc<RouteState>>>>,
    settings: Arc<Settings>,
    /// Notified when a route becomes active, so that the survey need not poll.
    pub(crate) stirred: Notify,
    pokes: mpsc::UnboundedSender<Arc<RouteState>>,
    /// Number of routes that must be announced to workers: mostly none.
    pooled: AtomicUsize,
}

impl RouteStates {
    /// No routes yet, and the receiver of routes that need a release. Each route is in the channel at most once, so the
    /// number of routes bounds it.
    pub(crate) fn new(settings: Arc<Settings>) -> (RouteStates, mpsc::UnboundedReceiver<Arc<RouteState>>) {
        let (pokes, poked) = mpsc::unbounded_channel();
        let pooled = AtomicUsize::new(0);
        (RouteStates { known: RwLock::default(), settings, stirred: Notify::new(), pokes, pooled }, poked)
    }

    /// The route of these names, created on first use; marks it active.
    pub(crate) fn route(&self, tenant: &str, topic: &str) -> Result<Arc<RouteState>, NameFault> {
        match self.find(tenant, topic) {
            Some(route) => Ok(route),
            None => Ok(self.make(Tenant::parse(tenant)?, &Topic::parse(topic)?.into())),
        }
    }

    /// The route of jobs with these requirements.
    pub(crate) fn route_for(&self, tenant: &str, topic: &str, requires: &Labels) -> Result<Arc<RouteState>, NameFault> {
        if requires.is_empty() {
            return self.route(tenant, topic);
        }
        let route = self.of_line(&Tenant::parse(tenant)?, &Line::of(&Topic::parse(topic)?, requires));
        route.learn(requires);
        Ok(route)
    }

    /// The route that a message names by topic and pool.
    pub(crate) fn route_named(&self, tenant: &str, topic: &str, pool: &str) -> Result<Arc<RouteState>, NameFault> {
        match pool {
            "" => self.route(tenant, topic),
            pool => Ok(self.of_line(&Tenant::parse(tenant)?, &Line::named(topic, pool)?)),
        }
    }

    pub(crate) fn of_line(&self, tenant: &Tenant, line: &Line) -> Arc<RouteState> {
        self.find(tenant.as_str(), line.as_str()).unwrap_or_else(|| self.make(tenant.clone(), line))
    }

    fn find(&self, tenant: &str, line: &str) -> Option<Arc<RouteState>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let route = known.get(tenant).and_then(|lines| lines.get(line)).cloned();
        drop(known);
        route.inspect(|route| self.stir(route))
    }

    fn make(&self, tenant: Tenant, line: &Line) -> Arc<RouteState> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let lines = known.entry(tenant.to_string()).or_default();
        let made = || {
            self.pooled.fetch_add(usize::from(!line.pool().is_empty()), Ordering::AcqRel);
            // Read under the lock: a later change of the settings finds the route in the map.
            let rules = self.settings.topic(tenant.as_str(), line.topic().as_str());
            let shared = self.settings.is_shared(line.topic().as_str());
            Arc::new(RouteState::new(tenant, line.clone(), rules, shared))
        };
        let route = lines.entry(line.to_string()).or_insert_with(made).clone();
        drop(known);
        self.stir(&route);
        route
    }

    fn stir(&self, route: &RouteState) {
        if route.touch() {
            self.stirred.notify_one();
        }
    }

    /// All known routes of a tenant's topic: one, unless its jobs have different requirements.
    pub(crate) fn of_topic(&self, tenant: &Tenant, topic: &Topic) -> Vec<Arc<RouteState>> {
        if self.pooled.load(Ordering::Acquire) == 0 {
            return self.find(tenant.as_str(), topic.as_str()).into_iter().collect();
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let lines = known.get(tenant.as_str()).into_iter().flat_map(HashMap::values);
        lines.filter(|route| route.topic == *topic).cloned().collect()
    }

    /// The tenant's routes of these topics that must be announced to workers and are not idle.
    pub(crate) fn pooled(&self, tenant: &str, topics: &[String]) -> Vec<Arc<RouteState>> {
        if self.pooled.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let Some(lines) = known.get(tenant) else { return Vec::new() };
        let theirs = |route: &&Arc<RouteState>| {
            route.is_pooled() && topics.iter().any(|t| t == route.topic.as_str()) && !route.window().is_idle()
        };
        lines.values().filter(theirs).cloned().collect()
    }

    /// Other tenants' routes of these topics, where the topic is shared and the route is not idle.
    pub(crate) fn shared(&self, own: &str, topics: &[String]) -> Vec<Arc<RouteState>> {
        self.each(|route| {
            route.is_shared()
                && route.tenant.as_str() != own
                && topics.iter().any(|t| t == route.topic.as_str())
                && !route.window().is_idle()
        })
    }

    /// Requests a release of this route's backlog.
    pub(crate) fn poke(&self, route: &Arc<RouteState>) {
        if !route.poked.swap(true, Ordering::AcqRel) {
            // Fails only while the process stops.
            let _ = self.pokes.send(route.clone());
        }
    }

    /// The request for a release is being handled; later ones count again.
    pub(crate) fn answered(&self, route: &RouteState) {
        route.poked.store(false, Ordering::Release);
    }

    /// Routes used since the last call.
    pub(crate) fn take_active(&self) -> Vec<Arc<RouteState>> {
        self.each(|route| route.active.swap(false, Ordering::AcqRel))
    }

    /// Routes with offers on the stream or jobs in the backlog.
    pub(crate) fn occupied(&self) -> Vec<Arc<RouteState>> {
        self.each(|route| !route.window().is_idle())
    }

    pub(crate) fn all(&self) -> Vec<Arc<RouteState>> {
        self.each(|_| true)
    }

    /// Forgets routes that were idle for minutes.
    pub(crate) fn forget_idle(&self, now: Instant) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for topics in known.values_mut() {
            topics.retain(|_, route| {
                let forget = route.forgettable(now);
                self.pooled.fetch_sub(usize::from(forget && route.is_pooled()), Ordering::AcqRel);
                !forget
            });
        }
        known.retain(|_, topics| !topics.is_empty());
    }

    fn each(&self, wanted: impl Fn(&RouteState) -> bool) -> Vec<Arc<RouteState>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().flat_map(HashMap::values).filter(|route| wanted(route)).cloned().collect()
    }
}

/// Counts per route within one batch, in which most jobs share few routes.
#[derive(Default)]
pub(crate) struct PerRoute {
    counts: Vec<(Arc<RouteState>, u64)>,
}

impl PerRoute {
    pub(crate) fn add(&mut self, route: &Arc<RouteState>) {
        match self.counts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, route)) {
            Some((_, n)) => *n += 1,
            None => self.counts.push((route.clone(), 1)),
        }
    }

    /// Each route with its count.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Arc<RouteState>, u64)> {
        self.counts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_made_once_and_bad_names_make_none() {
        let (routes, _poked) = RouteStates::new(Arc::default());
        let route = routes.route("default", "mail.send").unwrap();
        assert!(Arc::ptr_eq(&route, &routes.route("default", "mail.send").unwrap()));
        assert_eq!(route.subject.as_str(), "job.default.mail.send");
        assert!(routes.route("default", "mail.>").is_err());
        assert_eq!(routes.all().len(), 1);
    }

    #[test]
    fn a_poke_is_heard_once_until_it_is_answered() {
        let (routes, mut poked) = RouteStates::new(Arc::default());
        let route = routes.route("default", "t").unwrap();
        routes.poke(&route);
        routes.poke(&route);
        assert!(poked.try_recv().is_ok());
        assert!(poked.try_recv().is_err(), "merged");
        routes.answered(&route);
        routes.poke(&route);
        assert!(poked.try_recv().is_ok());
    }

    #[test]
    fn only_so_many_rounds_run_at_once() {
        let (routes, _poked) = RouteStates::new(Arc::default());
        let route = routes.route("default", "t").unwrap();
        let turns: Vec<_> = (0..ROUNDS).map(|_| route.turn().unwrap()).collect();
        assert!(route.turn().is_none());
        drop(turns);
        assert!(route.turn().is_some());
    }

    #[test]
    fn a_line_is_noted_again_and_again_and_a_plain_one_never() {
        assert!(NOTE_AGAIN * 5 <= muster_store::LINE_KEPT, "it is noted long before its name could be dropped");
        let ((routes, _poked), now) = (RouteStates::new(Arc::default()), Instant::now());
        let requires: Labels = [("gpu".to_owned(), "a100".to_owned())].into();
        let route = routes.route_for("default", "t", &requires).unwrap();
        assert_eq!(route.to_be_noted(now), Some(&requires));
        assert_eq!(route.to_be_noted(now), Some(&requires), "until it was");
        route.set_not_noted(now);
        assert_eq!(route.to_be_noted(now + NOTE_RETRY / 2), None, "nobody is held up again at once");
        assert_eq!(route.to_be_noted(now + NOTE_RETRY), Some(&requires));
        route.set_noted(now);
        assert_eq!(route.to_be_noted(now + NOTE_AGAIN / 2), None);
        assert_eq!(route.to_be_noted(now + NOTE_AGAIN), Some(&requires));
        let plain = routes.route("default", "t").unwrap();
        plain.learn(&Labels::new());
        assert_eq!(plain.to_be_noted(now), None);
        let unseen = routes.route_named("default", "u", route.line.pool()).unwrap();
        assert_eq!(unseen.to_be_noted(now), None, "nobody knows yet what its jobs require");
    }

    #[test]
    fn idle_lanes_are_forgotten_and_busy_ones_kept() {
        let (routes, _poked) = RouteStates::new(Arc::default());
        routes.route("default", "idle").unwrap();
        routes.route("default", "busy").unwrap().window().queued(1);
        routes.forget_idle(Instant::now());
        assert_eq!(routes.all().len(), 2, "not yet");
        routes.forget_idle(Instant::now() + FORGET_AFTER * 2);
        assert_eq!(routes.all().iter().map(|l| l.topic.as_str().to_owned()).collect::<Vec<_>>(), ["busy"]);
    }
}
