//! The scheduler: decides, dispatches, starts, settles, reconciles.
//!
//! Knows: what becomes of a job between its submit and its end, and in which order both stores
//! are written for it. Promises: every step may be repeated and may stop between any two writes;
//! what one replica leaves undone another finishes, by the message that comes again or by the
//! job's home. Holds no state that a restart would miss. Leaves to others: accepting jobs
//! (gateway), running them (workers), the rules themselves (`domain`).
//!
//! A way in for readers: [`run`] wires it; `dispatch` → `start` → `settle` is a job's plain way;
//! `loops/reconciler` is what happens when that way is broken.

mod backlog;
mod cancels;
mod consult;
mod decide;
mod desk;
mod dispatch;
mod events;
mod extend;
mod fleet;
mod hints;
mod intake;
mod kept;
mod lanes;
mod leaders;
mod lines;
mod loops;
mod offers;
mod pools;
mod recall;
mod rules;
mod serve;
mod settings;
mod settle;
mod silence;
mod slots;
mod start;
mod survey;
mod window;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_bus::{Bus, subjects};
use muster_chassis::{Chassis, Tasks};
use muster_flow::Flow;
use muster_store::{Replica, Store};
use tokio::sync::Mutex;

use crate::{
    cancels::Cancels,
    consult::Consults,
    decide::ByWindow,
    desk::Desk,
    dispatch::Dispatch,
    fleet::Fleet,
    hints::Hints,
    intake::{Consumers, Work},
    kept::Memory,
    lanes::Lanes,
    settle::Settle,
    silence::Silence,
};

pub use loops::LOOPS;
pub use settings::SETTINGS;

/// The service's name.
pub const SERVICE: &str = "muster-scheduler";

/// How long those who take work may take to stop taking it.
const STOP_TAKING: Duration = Duration::from_secs(4);
/// How long what was taken may take to be done.
const STOP_DOING: Duration = Duration::from_secs(6);
/// How long the loops may take to end their tick and give up their leases.
const STOP_LOOPS: Duration = Duration::from_secs(3);

/// Runs a scheduler until it is asked to stop.
pub async fn run(chassis: Chassis) -> anyhow::Result<()> {
    let values = &chassis.values;
    let store = Store::connect(settings::redis(values)).await?;
    let bus = Bus::connect(settings::nats(values, &chassis.instance)).await?;
    let clock = store.clone();
    bus.set_clock(Arc::new(move || clock.now()));
    let (taking, in_flight) = (chassis.tasks.group(), chassis.tasks.group());
    let (consults, asked) = settings::counsel(values, &bus).map(|c| Consults::new(c, &chassis.instance)).unzip();
    let flow = Flow::new(store, bus);
    let (lanes, pokes) = Lanes::new(flow.settings.clone());
    let desk = Arc::new(Desk {
        flow,
        decider: Box::new(ByWindow),
        consults,
        judged: slots::Judged::default(),
        lanes,
        memory: Memory::default(),
        fleet: Fleet::default(),
        hints: Hints::default(),
        silence: Silence::new(settings::outage_wait(values), Instant::now()),
        loops: chassis.loops.clone(),
        in_flight: in_flight.clone(),
    });

    let locks = loops::start(&chassis, &desk, settings::intervals(values));
    consume(&chassis, &taking, &desk);
    answer(&taking, &desk);
    {
        let (desk, loops, stop) = (desk.clone(), chassis.loops.clone(), taking.stopping());
        let locks = Arc::new(locks);
        taking.supervise("hints", move || {
            let (desk, loops, locks, stop) = (desk.clone(), loops.clone(), locks.clone(), stop.clone());
            async move { hints::listen(desk.bus(), &loops, &locks, &stop).await }
        });
    }
    watch(&chassis, &taking, &desk, pokes);
    if let Some(asked) = asked {
        consult(&taking, &desk, asked);
    }
    follow(&chassis, &taking, &desk);
    announce(&chassis, &desk);
    stages(&chassis, &taking, &in_flight, &desk);
    chassis.run_until_stopped().await;
    Ok(())
}

/// Those who pull work from the streams.
fn consume(chassis: &Chassis, taking: &Tasks, desk: &Arc<Desk>) {
    let names = [Dispatch::NAME, Settle::NAME, Cancels::NAME];
    let ready = Arc::new(Consumers::new(chassis.health.part("consumers"), &names));
    pull::<Dispatch>(taking, desk, &ready);
    pull::<Settle>(taking, desk, &ready);
    pull::<Cancels>(taking, desk, &ready);
}

fn pull<W: Work>(taking: &Tasks, desk: &Arc<Desk>, ready: &Arc<Consumers>) {
    let (desk, ready, stop) = (desk.clone(), ready.clone(), taking.stopping());
    taking.supervise(W::NAME, move || {
        let (desk, ready, stop) = (desk.clone(), ready.clone(), stop.clone());
        async move {
            if !rules::are_known(&desk, &stop).await {
                return Ok(());
            }
            intake::run::<W>(&desk, &ready, &stop).await
        }
    });
}

/// Those who answer workers.
fn answer(taking: &Tasks, desk: &Arc<Desk>) {
    let (starts, stop) = (desk.clone(), taking.stopping());
    taking.supervise("starts", move || {
        let (desk, stop) = (starts.clone(), stop.clone());
        async move {
            if !rules::are_known(&desk, &stop).await {
                return Ok(());
            }
            serve::run(&desk, "start", subjects::start(), &stop, start::answer).await
        }
    });
    let (extensions, stop) = (desk.clone(), taking.stopping());
    taking.supervise("extensions", move || {
        let (desk, stop) = (extensions.clone(), stop.clone());
        async move { serve::run(&desk, "extend", subjects::extend(), &stop, extend::answer).await }
    });
}

/// Those who follow settings that change at run time.
fn follow(chassis: &Chassis, taking: &Tasks, desk: &Arc<Desk>) {
    let (news, loops, stop) = (desk.clone(), chassis.loops.clone(), taking.stopping());
    taking.supervise("settings", move || {
        let (desk, loops, stop) = (news.clone(), loops.clone(), stop.clone());
        async move { desk.flow.follow_settings(&stop, || _ = loops.wake(loops::CONFIG_WATCH, Duration::ZERO)).await }
    });
    let (told, stop) = (desk.clone(), taking.stopping());
    taking.supervise("rules", move || {
        let (desk, stop) = (told.clone(), stop.clone());
        async move {
            rules::obey(&desk, &stop).await;
            Ok(())
        }
    });
}

/// Those who watch: workers, lanes, the stores; and who releases what waits.
fn watch(
    chassis: &Chassis,
    taking: &Tasks,
    desk: &Arc<Desk>,
    pokes: tokio::sync::mpsc::UnboundedReceiver<Arc<lanes::Lane>>,
) {
    let (workers, stop) = (desk.clone(), taking.stopping());
    taking.supervise("fleet", move || {
        let (desk, stop) = (workers.clone(), stop.clone());
        async move { fleet::listen(&desk, &stop).await }
    });
    let (surveyed, stop) = (desk.clone(), taking.stopping());
    taking.supervise("survey", move || {
        let (desk, stop) = (surveyed.clone(), stop.clone());
        async move {
            survey::run(&desk, &stop).await;
            Ok(())
        }
    });
    let (redis, nats) = (chassis.health.part("redis"), chassis.health.part("nats"));
    let (probed, stop) = (desk.clone(), taking.stopping());
    taking.supervise("probe", move || {
        let (desk, redis, nats, stop) = (probed.clone(), redis.clone(), nats.clone(), stop.clone());
        async move {
            silence::probe(&desk, &redis, &nats, &stop).await;
            Ok(())
        }
    });
    // The receiver outlives a panic of the task that uses it.
    let pokes = Arc::new(Mutex::new(pokes));
    let (released, stop) = (desk.clone(), taking.stopping());
    taking.supervise("releases", move || {
        let (desk, pokes, stop) = (released.clone(), pokes.clone(), stop.clone());
        async move {
            if rules::are_known(&desk, &stop).await {
                backlog::run(&desk, &mut *pokes.lock().await, &stop).await;
            }
            Ok(())
        }
    });
}

/// Who asks those outside that have a say.
fn consult(taking: &Tasks, desk: &Arc<Desk>, asked: consult::Asked) {
    // The receiver outlives a panic of the task that uses it.
    let asked = Arc::new(Mutex::new(asked));
    let (desk, stop) = (desk.clone(), taking.stopping());
    taking.supervise("consult", move || {
        let (desk, asked, stop) = (desk.clone(), asked.clone(), stop.clone());
        async move {
            consult::run(&desk, &mut *asked.lock().await, &stop).await;
            Ok(())
        }
    });
}

/// Tells the cluster that this replica lives and what its loops do, until the last of them ended.
fn announce(chassis: &Chassis, desk: &Arc<Desk>) {
    let about = Replica {
        service: chassis.service.to_owned(),
        instance: chassis.instance.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        admin: chassis.values.addr("admin_addr").to_string(),
        started_at: desk.store().now(),
        seen_at: desk.store().now(),
        loops: Vec::new(),
        deciding: Vec::new(),
        settings: chassis.values.told(),
    };
    let (store, loops, stop) = (desk.store().clone(), chassis.loops.clone(), chassis.tasks.stopping());
    chassis.tasks.supervise("announce", move || {
        let (store, about, loops, stop) = (store.clone(), about.clone(), loops.clone(), stop.clone());
        async move {
            store.announce(about, |about| about.loops = loops.show_each(), stop.cancelled()).await;
            Ok(())
        }
    });
}

/// Consumers, then what is in flight, then the leases. The loops begin to let go with the first of
/// them: nothing in flight needs a lock, and a successor leads within a second however long the
/// rest takes.
fn stages(chassis: &Chassis, taking: &Tasks, in_flight: &Tasks, desk: &Arc<Desk>) {
    let (loops, requested) = (chassis.loops.clone(), chassis.stop.requested());
    let letting_go = chassis.tasks.spawn("leases", async move {
        requested.cancelled().await;
        loops.stop(STOP_LOOPS).await
    });
    let taking = taking.clone();
    chassis.stop.stage("consumers", async move { late("consumers", &taking.drain(STOP_TAKING).await) });
    let (in_flight, desk_of_last, bus) = (in_flight.clone(), desk.clone(), desk.bus().clone());
    chassis.stop.stage("in flight", async move {
        late("in flight", &in_flight.drain(STOP_DOING).await);
        backlog::give_up(&desk_of_last).await;
        bus.flush(Duration::from_secs(1)).await;
    });
    let bus = desk.bus().clone();
    chassis.stop.stage("leases", async move {
        late("leases", &letting_go.await.ok().flatten().unwrap_or_default());
        bus.flush(Duration::from_secs(1)).await;
    });
}

fn late(stage: &'static str, names: &[&'static str]) {
    for task in names {
        tracing::warn!(event = "task_late", stage, task, "cut off");
    }
}
