//! The workflow service: moves runs of workflows along their definitions.
//!
//! Knows: when a run needs something, and how to carry out what it asks for. Promises: every run that has not ended is
//! looked at when its home is due; what a save asked for is carried out, by this replica or by the next owner of the
//! run's shard; everything may be repeated and may stop between any two writes. Holds no state that a restart would
//! miss. Leaves to others: what an event does (`engine`), how a run is kept (`runs`), the API (gateway), running jobs
//! (scheduler and workers).
//!
//! A stop begins no new turn, lets those in flight end and saves what only memory knows, and then gives up the shards:
//! while a shard belongs to nobody, nobody saves its runs.
//!
//! To read the code: [`run`] starts everything; `news` and `loops/reconciler` find runs that need something, `turn`
//! handles one run, `carry` carries out its commands.

mod calm;
mod carry;
mod context;
mod hot;
mod loops;
mod news;
mod owned;
mod settings;
mod turn;

use std::{sync::Arc, time::Duration};

use muster_chassis::{Chassis, loops::with_loops, settings::Declaration};
use muster_domain::ids::SHARDS;
use muster_flow::admission::{Admission, Rules};
use muster_replica::{Member, name_late, supervise};
use muster_runs::{RECONCILER, Runs};
use tokio::{sync::Mutex, time::timeout};

use crate::{context::Context, hot::Hot, owned::Owned};

pub use loops::LOOPS;

/// All settings of the workflow service, apart from the shared ones.
pub const SETTINGS: &[Declaration] = &with_loops::<{ settings::OWN.len() + LOOPS.len() }>(settings::OWN, LOOPS);

/// The service's name.
pub const SERVICE: &str = "muster-workflow";

/// How long a pass of the reconciler may take to stop.
const STOP_LOOPS: Duration = Duration::from_secs(3);
/// How long the tasks that take work may take to stop.
const STOP_TAKING: Duration = Duration::from_secs(4);
/// How long the runs in flight may take to finish their turn.
const STOP_DOING: Duration = Duration::from_secs(6);
/// How long the last commits may take.
const STOP_WRITES: Duration = Duration::from_secs(2);

/// Runs the workflow service until it is asked to stop.
pub async fn run(chassis: Chassis) -> anyhow::Result<()> {
    let values = &chassis.values;
    let member = Member::connect(&chassis).await?;
    let flow = member.flow.clone();
    let (taking, in_flight, writes) = (chassis.tasks.group(), chassis.tasks.group(), chassis.tasks.group());
    let rules = Rules {
        declared: settings::topics_are_declared(values),
        per_second: settings::rate(values),
        burst: settings::burst(values),
        shared: values.get(settings::RATE_LIMIT_SHARED),
        sharers: &["muster-gateway", SERVICE],
        max_lag: values.get(settings::MAX_SUBMIT_LAG),
    };
    let (admission, work) = Admission::new(&flow, &rules);
    supervise(&taking, work.watch);
    supervise(&writes, work.commit);
    let context = Arc::new(Context {
        runs: Runs::new(flow),
        admission,
        hot: Hot::default(),
        calm: calm::Calm::default(),
        owned: Owned::default(),
        in_flight: in_flight.clone(),
        pass: Mutex::new(()),
        stop: chassis.stop.requested(),
    });
    member.probe(&taking);
    member.hear_hints(&taking);
    member.follow_settings(&taking);
    loops::start(&member, &context);
    let ready = news::Consumers::new(chassis.health.part("consumers"));
    for shard in 0..SHARDS {
        let (context, ready, stop) = (context.clone(), ready.clone(), taking.stopping());
        taking.supervise("ends of jobs", move || {
            let (context, ready, stop) = (context.clone(), ready.clone(), stop.clone());
            async move { news::take(&context, shard, &ready, &stop).await }
        });
    }
    let values = values.clone();
    member.announce(move || values.told());
    let ending = context.clone();
    chassis.stop.stage("loops", async move {
        if timeout(STOP_LOOPS, ending.pass.lock()).await.is_err() {
            name_late("loops", &[RECONCILER]);
        }
    });
    member.drain_stage("consumers", &taking, STOP_TAKING);
    chassis.stop.stage("runs in flight", async move {
        name_late("runs in flight", &in_flight.drain(STOP_DOING).await);
        context.save_all().await;
        name_late("stores", &writes.drain(STOP_WRITES).await);
        context.runs.flow.bus.flush(Duration::from_secs(1)).await;
    });
    member.leases_last_stage();
    chassis.run_until_stopped().await;
    Ok(())
}
