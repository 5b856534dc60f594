//! The scheduler's own settings, besides those that every service has.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use muster_bus::Bus;
use muster_chassis::{Setting, Values, settings::admin_addr};

use crate::counsel::{Counsel, Outside};

/// Bounds: long enough for a lease or a question, short enough for an operator.
const WAIT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(900);

muster_chassis::settings! {
    pub(crate) const OWN = these;

    const ADMIN_ADDR: Setting<SocketAddr> = admin_addr("0.0.0.0:9090");

    pub(crate) const OUTAGE_WAIT: Setting<Duration> = Setting::duration(
        "outage_wait",
        "MUSTER_OUTAGE_WAIT",
        WAIT,
        "How long after an outage, or after its start, this replica ends no lease for silence. One usual lease.",
    )
    .or("30s");

    const DECIDE_TOPICS: Setting<Vec<String>> = Setting::list(
        "decide_topics",
        "MUSTER_DECIDE_TOPICS",
        "Topics whose jobs somebody outside has a say in, asked on the subject sys.job.decide; * stands for any \
         characters. None: nobody is asked.",
    );

    const DECIDE_TIMEOUT: Setting<Duration> = Setting::duration(
        "decide_timeout",
        "MUSTER_DECIDE_TIMEOUT",
        WAIT,
        "How long one such question may take before it is asked again.",
    )
    .or("60s");
}

/// The configured decider; none if no topics are set.
pub(crate) fn counsel(values: &Values, bus: &Bus) -> Option<Box<dyn Counsel>> {
    let topics = values.get(DECIDE_TOPICS).to_vec();
    let outside = Outside::new(bus.clone(), topics, values.get(DECIDE_TIMEOUT));
    outside.map(|outside| Box::new(outside) as Box<dyn Counsel>)
}
