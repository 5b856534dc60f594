//! The run-time settings of a route's topic: pause, rate, concurrency.
//!
//! Promises: a topic without settings costs one load of a pointer. Leaves to others: handing changes
//! to routes and taking tokens (`crate::rules`).

use std::sync::atomic::Ordering;

use muster_domain::slot::PER_KEY;
use muster_store::RateLimit;

use super::RouteState;
use crate::window::Window;

impl RouteState {
    /// Whether the topic is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.rules.load().as_ref().is_some_and(|told| told.paused.is_some())
    }

    /// How many jobs may be released per second.
    pub(crate) fn rate(&self) -> Option<RateLimit> {
        let rate = self.rules.load().as_ref()?.settings.rate?;
        Some(RateLimit { per_second: rate.per_s, burst: rate.burst })
    }

    /// How many jobs of the topic may hold a place at one time.
    pub(crate) fn max(&self) -> Option<u32> {
        self.rules.load().as_ref()?.settings.concurrency?.max
    }

    /// Whether even a new job that meets no backlog has to wait: only a release applies the limits.
    pub(crate) fn holds_newcomers(&self) -> bool {
        self.rules.load().as_ref().is_some_and(|told| told.paused.is_some() || told.settings.limits_release())
    }

    /// Whether jobs may be released at this moment.
    pub(crate) fn may_release(&self) -> bool {
        !self.is_paused() && !self.resting.load(Ordering::Acquire)
    }

    /// How many more offers may be on the bus. With a rate, no more than its burst, because otherwise a worker that
    /// arrives late would start all saved offers at once. Also no more than may run at once.
    pub(crate) fn ration(&self, window: &Window) -> u64 {
        let most = [self.rate().map(|rate| rate.burst), self.max()].into_iter().flatten().min();
        most.map_or(u64::MAX, |most| u64::from(most).saturating_sub(window.outstanding()))
    }

    /// How many jobs with the same key may run at once.
    pub(crate) fn per_key(&self) -> u32 {
        let told = self.rules.load();
        let limits = told.as_ref().and_then(|told| told.settings.concurrency);
        limits.and_then(|limits| limits.per_key).unwrap_or(PER_KEY)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::{
        TopicSettings,
        topic::{Concurrency, Paused, TopicRate},
    };
    use muster_store::TopicRecord;

    use super::*;
    use crate::route_state::RouteStates;

    fn told(rate: Option<u32>, paused: bool) -> Option<Arc<TopicRecord>> {
        let rate = rate.map(|burst| TopicRate { per_s: 1.0, burst });
        let paused = paused.then(|| Paused { since: 1, by: "k".into(), reason: String::new() });
        let settings = TopicSettings { rate, ..TopicSettings::default() };
        Some(Arc::new(TopicRecord { settings, paused, ..TopicRecord::default() }))
    }

    #[test]
    fn no_more_offers_stand_than_may_run_at_once() {
        let (routes, _poked) = RouteStates::new(Arc::default());
        let route = routes.route("default", "t").unwrap();
        route.window().queued(10);
        let limits = Concurrency { max: Some(3), per_key: None };
        let settings = TopicSettings { concurrency: Some(limits), ..TopicSettings::default() };
        route.rules.store(Some(Arc::new(TopicRecord { settings, ..TopicRecord::default() })));
        assert!(route.can_release() && route.holds_newcomers() && route.max() == Some(3));
        let taken = route.window().take(3);
        route.window().published(taken, taken);
        assert!(!route.can_release());
        route.rules.store(None);
        assert!(route.can_release() && !route.holds_newcomers());
    }

    #[test]
    fn a_lane_is_released_only_as_its_topic_was_told() {
        let (routes, _poked) = RouteStates::new(Arc::default());
        let route = routes.route("default", "t").unwrap();
        route.window().queued(10);
        assert!(route.can_release() && !route.holds_newcomers());
        route.rules.store(told(None, true));
        assert!(!route.can_release() && route.holds_newcomers(), "paused");
        route.rules.store(told(Some(2), false));
        assert!(route.can_release() && route.holds_newcomers(), "only a release asks for tokens");
        route.resting.store(true, Ordering::Release);
        assert!(!route.can_release(), "no tokens for a moment");
        route.resting.store(false, Ordering::Release);
        let taken = route.window().take(2);
        route.window().published(taken, taken);
        assert!(!route.can_release(), "the burst stands on the bus: asking again and again would change nothing");
        route.window().consumed(1, std::time::Instant::now());
        assert!(route.can_release());
        route.rules.store(told(None, false));
        assert_eq!((route.ration(&route.window()), route.holds_newcomers()), (u64::MAX, false));
    }
}
