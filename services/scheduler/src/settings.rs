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
        "After a store was away, and after its own start, this replica expires no lease for this long. Use the usual \
         length of a lease.",
    )
    .or("30s");

    const DECIDE_TOPICS: Setting<Vec<String>> = Setting::list(
        "decide_topics",
        "MUSTER_DECIDE_TOPICS",
        "Topics whose jobs a decider allows or denies, asked on the subject sys.job.decide; * matches any characters. \
         None: no decider is asked.",
    );

    const DECIDE_TIMEOUT: Setting<Duration> = Setting::duration(
        "decide_timeout",
        "MUSTER_DECIDE_TIMEOUT",
        WAIT,
        "How long the decider may take for an answer before the scheduler asks again.",
    )
    .or("60s");
}

/// The configured decider; none if no topics are set.
pub(crate) fn counsel(values: &Values, bus: &Bus) -> Option<Box<dyn Counsel>> {
    let topics = values.get(DECIDE_TOPICS).to_vec();
    let outside = Outside::new(bus.clone(), topics, values.get(DECIDE_TIMEOUT));
    outside.map(|outside| Box::new(outside) as Box<dyn Counsel>)
}
