//! Whether this replica may take work, and whether NATS answers it.
//!
//! Leaves to others: the judgement (`pulse`), what unfit replicas do (`intake`, `serve`, `backlog`), and what a leader
//! does without NATS (`loops::reconciler`).

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// The verdict, for the tasks that take work.
#[derive(Debug)]
pub(crate) struct Fitness {
    verdict: watch::Sender<Option<Unfit>>,
    nats_silent: AtomicBool,
}

impl Default for Fitness {
    fn default() -> Fitness {
        Fitness { verdict: watch::Sender::new(None), nats_silent: AtomicBool::new(false) }
    }
}

impl Fitness {
    /// Whether this replica may take work now.
    pub(crate) fn is_fit(&self) -> bool {
        self.verdict.borrow().is_none()
    }

    /// Returns when this replica may take work.
    pub(crate) async fn fit(&self) {
        let _ = self.verdict.subscribe().wait_for(Option::is_none).await;
    }

    /// Sets the verdict; none means that this replica is fit.
    pub(crate) fn set(&self, verdict: Option<Unfit>) {
        self.verdict.send_replace(verdict);
    }

    /// Returns when this replica may not take work.
    pub(crate) async fn unfit(&self) {
        let _ = self.verdict.subscribe().wait_for(Option::is_some).await;
    }

    /// Whether this replica has not heard its own pulses for a while. NATS may be silent to it alone or to all, so this
    /// does not make it unfit.
    pub(crate) fn is_nats_silent(&self) -> bool {
        self.nats_silent.load(Ordering::Relaxed)
    }

    /// Sets or clears the silence of NATS.
    pub(crate) fn set_nats_silent(&self, silent: bool) {
        self.nats_silent.store(silent, Ordering::Relaxed);
    }
}

/// Why a replica takes no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// No Redis node answers. This replica can do nothing, even if others can.
    RedisSilent,
    /// A Redis node answers another scheduler and not this one.
    NodeSilent,
    /// Redis answers another scheduler much faster.
    RedisSlow,
    /// NATS answers another scheduler much faster.
    NatsSlow,
}

impl Unfit {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Unfit::RedisSilent => "redis_silent",
            Unfit::NodeSilent => "node_silent",
            Unfit::RedisSlow => "redis_slow",
            Unfit::NatsSlow => "nats_slow",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Unfit::RedisSilent => "Redis does not answer; this replica takes no work",
            Unfit::NodeSilent => "a Redis node answers another scheduler but not this one; this replica takes no work",
            Unfit::RedisSlow => "Redis answers another scheduler much faster; this replica takes no work",
            Unfit::NatsSlow => "NATS answers another scheduler much faster; this replica takes no work",
        }
    }
}
