//! Probes both stores every second, and reports the answers to the lease guard and to readiness.
//!
//! Promises: each node's answer counts with the time it arrived, however long the other nodes take; a probe ends so
//! soon that no answering node seems late because of it. Leaves to others: the conclusions (`lease_guard`).

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use muster_bus::{BusError, ConsumerSpec, subjects};
use muster_chassis::Part;
use muster_replica::probe::show_connections;
use muster_store::{NodeAddr, Said, StoreError};
use muster_telemetry::{Gauge, set};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// How often the stores are probed.
const PROBE: Duration = Duration::from_secs(1);
/// A node that does not answer within this time counts as down: the probe does not wait longer for it.
const ANSWER: Duration = Duration::from_secs(2);

/// Probes both stores until stopped, on every replica, leader or not.
pub(crate) async fn run(context: &Context, redis: &Part, nats: &Part, stop: &CancellationToken) {
    let mut clock = tokio::time::interval(PROBE);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let consumers = [subjects::submit(), subjects::result(), subjects::cancel()].map(ConsumerSpec::scheduler);
    // Ask about all consumers at first and while one of them has a fault; otherwise about one in turn, which shows as
    // much.
    let (mut turns, mut faults) = (0_usize.., consumers.each_ref().map(|_| None::<BusError>));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        let turn = turns.next().unwrap_or_default();
        let all = turn == 0 || faults.iter().any(Option::is_some);
        let asked: Vec<usize> = (0..consumers.len()).filter(|n| all || *n == turn % consumers.len()).collect();
        let states = join_all(asked.iter().map(|n| context.bus().consumer_state(&consumers[*n])));
        let format = async {
            let late = || StoreError::Unavailable {
                detail: format!("Redis did not return the data's format within {ANSWER:?}"),
            };
            tokio::time::timeout(ANSWER, context.store().check_format()).await.unwrap_or_else(|_| Err(late()))
        };
        let (times, states, format) = tokio::join!(context.store().times(ANSWER), states, format);
        for (n, state) in asked.into_iter().zip(states) {
            if let Ok(state) = &state {
                set(Gauge::BusConsumerPending, &[("consumer", &consumers[n].name)], state.pending as f64);
            }
            faults[n] = state.err();
        }
        let away = faults.iter().flatten().last();
        show_connections(context.store());
        tell(nats, away);
        let silent = |times: &Vec<(NodeAddr, Said)>| times.iter().find_map(|(_, said)| said.as_ref().err().cloned());
        tell(redis, times.as_ref().map_or_else(|fault| Some(fault.clone()), silent).or(format.err()).as_ref());
        let now = Instant::now();
        context.lease_guard.bus(away.is_none(), now);
        // Without any known node, the lease guard soon treats all nodes as overdue.
        if let Ok(times) = times {
            let said: Vec<_> = times.into_iter().map(|(addr, said)| (addr, said.ok())).collect();
            context.lease_guard.nodes(&said, now);
        }
    }
}

fn tell(part: &Part, fault: Option<&impl ToString>) {
    match fault {
        None => part.ready(),
        Some(fault) => part.not_ready(fault.to_string()),
    }
}
