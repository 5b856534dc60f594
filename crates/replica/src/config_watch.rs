//! Polls the settings that change at run time, in case the broadcast of a change was missed.
//!
//! Every replica reads Redis for itself, so any number of replicas may do it. A replica that receives the broadcast of
//! a change reads it at once; this loop finds the change after a broadcast was lost.

use std::time::Duration;

use muster_chassis::{Budget, Counts, Loop, Safety, Tasks};
use muster_flow::Flow;

use crate::{LoopOf, Member};

/// The loop that reads changed settings.
pub struct ConfigWatch {
    flow: Flow,
}

impl<C> LoopOf<C> for ConfigWatch {
    fn make(member: &Member, _: &C) -> Option<ConfigWatch> {
        Some(ConfigWatch { flow: member.flow.clone() })
    }
}

impl Loop for ConfigWatch {
    const NAME: &'static str = "config watch";
    const SETTING: &'static str = "config";
    const EVERY: &'static str = "30s";
    const SAFE: Safety = Safety::Idempotent {
        why: "it only reads: each replica keeps its own copy of the settings in Redis",
        duplicate_costs: "nothing: every replica needs the settings",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), _budget: Budget) -> anyhow::Result<Counts> {
        let polled = self.flow.poll_settings().await?;
        let mut counts = Counts::none();
        counts.add("read", polled.read);
        counts.add("changed", polled.changed);
        counts.add("topics", polled.topics);
        if polled.unreadable > 0 {
            counts.add("unreadable", polled.unreadable);
        }
        Ok(counts)
    }
}

impl Member {
    /// Follows settings that change at run time, by broadcast, until `tasks` stop. If a broadcast change cannot be
    /// read, it wakes [`ConfigWatch`], which reads it.
    pub fn follow_settings(&self, tasks: &Tasks) {
        let (flow, loops, stop) = (self.flow.clone(), self.chassis.loops.clone(), tasks.stopping());
        tasks.supervise("settings", move || {
            let (flow, loops, stop) = (flow.clone(), loops.clone(), stop.clone());
            async move { flow.follow_settings(&stop, || _ = loops.wake(ConfigWatch::NAME, Duration::ZERO)).await }
        });
    }
}
