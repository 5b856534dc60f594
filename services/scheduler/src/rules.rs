//! What topics were told, as it bears on who may go onto the bus: a pause, a rate, how many at once.
//!
//! Knows: when a lane lets nobody through, how many its rate grants, and when it may be asked
//! again. Promises: a change reaches every lane of this replica as soon as the replica knows it,
//! and what a pause held is released at once when it ends; a topic that was told nothing costs one
//! look at a pointer. The rate is one for all replicas, counted in Redis on its clock. Leaves to
//! others: storing and spreading it (`flow`), the window (`window`), moving jobs (`backlog`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_store::{RateLimit, Want};
use tokio_util::sync::CancellationToken;

use crate::{desk::Desk, lanes::Lane, window::Window};

/// A lane whose rate has run out is asked again after this at the latest: it may be told otherwise.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How often a replica that knows nothing yet asks.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Lane {
    /// Whether its jobs wait until somebody says otherwise.
    pub(crate) fn is_paused(&self) -> bool {
        self.rules.load().as_ref().is_some_and(|told| told.paused.is_some())
    }

    /// How many jobs may go per second.
    pub(crate) fn rate(&self) -> Option<RateLimit> {
        let rate = self.rules.load().as_ref()?.settings.rate?;
        Some(RateLimit { per_second: rate.per_s, burst: rate.burst })
    }

    /// How many jobs of the topic may hold a place at one time.
    pub(crate) fn max(&self) -> Option<u32> {
        self.rules.load().as_ref()?.settings.concurrency?.max
    }

    /// Whether even a job that meets no backlog has to wait: only a release asks the limits.
    pub(crate) fn holds_newcomers(&self) -> bool {
        let told = self.rules.load();
        let limited = |limits: muster_domain::topic::Concurrency| limits.max.is_some();
        told.as_ref().is_some_and(|told| {
            told.paused.is_some() || told.settings.rate.is_some() || told.settings.concurrency.is_some_and(limited)
        })
    }

    /// Whether anybody may be released at this moment.
    pub(crate) fn may_release(&self) -> bool {
        !self.is_paused() && !self.resting.load(Ordering::Acquire)
    }

    /// How many more may stand on the bus: with a rate no more than its burst, or a worker that
    /// comes late would start what was saved up for it all at once; and no more than may run at once.
    pub(crate) fn ration(&self, window: &Window) -> u64 {
        let most = [self.rate().map(|rate| rate.burst), self.max()].into_iter().flatten().min();
        most.map_or(u64::MAX, |most| u64::from(most).saturating_sub(window.outstanding()))
    }
}

/// Waits until it is known what topics were told: before that a paused one would look free. False
/// if stopped meanwhile.
pub(crate) async fn are_known(desk: &Desk, stop: &CancellationToken) -> bool {
    loop {
        tokio::select! {
            biased;
            () = desk.flow.settings.known() => return true,
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        // The loop that polls has a longer breath than a scheduler that waits for its store. What
        // went wrong is told by the store.
        let _ = desk.flow.poll_settings().await;
    }
}

/// Hands every lane what its topic was told, now and whenever it changes, until stopped.
pub(crate) async fn obey(desk: &Desk, stop: &CancellationToken) {
    let mut changes = desk.flow.settings.changes();
    loop {
        changes.mark_unchanged();
        for lane in desk.lanes.all() {
            lane.set_shared(desk.flow.settings.is_shared(lane.topic.as_str()));
            let told = desk.flow.settings.topic(lane.tenant.as_str(), lane.topic.as_str());
            let version = |told: Option<&Arc<_>>| told.map(|told: &Arc<muster_store::TopicRecord>| told.version);
            if version(lane.rules.load().as_ref()) == version(told.as_ref()) {
                continue;
            }
            lane.rules.store(told);
            lane.resting.store(false, Ordering::Release);
            if lane.can_release() {
                desk.lanes.poke(&lane);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Takes tokens of the topic's rate for so many places of its window; gives the rest of the
/// places back, and has the lane asked again once there are more. All of them without a rate.
pub(crate) async fn take_tokens(desk: &Arc<Desk>, lane: &Arc<Lane>, wanted: u64, stop: &CancellationToken) -> u64 {
    let Some(limit) = lane.rate() else { return wanted };
    let n = u32::try_from(wanted).unwrap_or(u32::MAX);
    let scope = format!("topic:{}", lane.topic);
    let (granted, rest) = match desk.store().take_tokens(&lane.tenant, &scope, n, Want::Some, limit).await {
        Ok(taken) => (u64::from(taken.granted), taken.retry_after),
        // Without Redis nothing can be released either.
        Err(_) => (0, LONGEST_REST),
    };
    if granted < wanted {
        lane.window().give_back(wanted - granted);
        rest_for(desk, lane, rest.min(LONGEST_REST), stop);
    }
    granted
}

fn rest_for(desk: &Arc<Desk>, lane: &Arc<Lane>, rest: Duration, stop: &CancellationToken) {
    if lane.resting.swap(true, Ordering::AcqRel) {
        return;
    }
    let (desk_then, lane, stop) = (desk.clone(), lane.clone(), stop.clone());
    desk.in_flight.spawn("rest", async move {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(rest) => {}
        }
        lane.resting.store(false, Ordering::Release);
        if lane.can_release() {
            desk_then.lanes.poke(&lane);
        }
    });
}

#[cfg(test)]
mod tests {
    use muster_domain::{
        TopicSettings,
        topic::{Concurrency, Paused, TopicRate},
    };
    use muster_store::TopicRecord;

    use super::*;
    use crate::lanes::Lanes;

    fn told(rate: Option<u32>, paused: bool) -> Option<Arc<TopicRecord>> {
        let rate = rate.map(|burst| TopicRate { per_s: 1.0, burst });
        let paused = paused.then(|| Paused { since: 1, by: "k".into(), reason: String::new() });
        let settings = TopicSettings { rate, ..TopicSettings::default() };
        Some(Arc::new(TopicRecord { settings, paused, ..TopicRecord::default() }))
    }

    #[test]
    fn no_more_offers_stand_than_may_run_at_once() {
        let (lanes, _poked) = Lanes::new(Arc::default());
        let lane = lanes.lane("default", "t").unwrap();
        lane.window().queued(10);
        let limits = Concurrency { max: Some(3), per_key: None };
        let settings = TopicSettings { concurrency: Some(limits), ..TopicSettings::default() };
        lane.rules.store(Some(Arc::new(TopicRecord { settings, ..TopicRecord::default() })));
        assert!(lane.can_release() && lane.holds_newcomers() && lane.max() == Some(3));
        let taken = lane.window().take(3);
        lane.window().published(taken, taken);
        assert!(!lane.can_release());
        lane.rules.store(None);
        assert!(lane.can_release() && !lane.holds_newcomers());
    }

    #[test]
    fn a_lane_is_released_only_as_its_topic_was_told() {
        let (lanes, _poked) = Lanes::new(Arc::default());
        let lane = lanes.lane("default", "t").unwrap();
        lane.window().queued(10);
        assert!(lane.can_release() && !lane.holds_newcomers());
        lane.rules.store(told(None, true));
        assert!(!lane.can_release() && lane.holds_newcomers(), "paused");
        lane.rules.store(told(Some(2), false));
        assert!(lane.can_release() && lane.holds_newcomers(), "only a release asks for tokens");
        lane.resting.store(true, Ordering::Release);
        assert!(!lane.can_release(), "no tokens for a moment");
        lane.resting.store(false, Ordering::Release);
        let taken = lane.window().take(2);
        lane.window().published(taken, taken);
        assert!(!lane.can_release(), "the burst stands on the bus: asking again and again would change nothing");
        lane.window().consumed(1, std::time::Instant::now());
        assert!(lane.can_release());
        lane.rules.store(told(None, false));
        assert_eq!((lane.ration(&lane.window()), lane.holds_newcomers()), (u64::MAX, false));
    }
}
