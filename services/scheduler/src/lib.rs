//! The scheduler: decides, dispatches, starts, settles, reconciles.
//!
//! Knows: the steps of a job between its submit and its end, and the order of their writes to both stores. Promises:
//! every step may be repeated and may stop between any two writes; another replica finishes what one leaves undone,
//! because the message is redelivered or the job's home becomes due. Holds no state that a restart would miss. Leaves
//! to others: accepting jobs (gateway), running them (workers), the rules themselves (`domain`).
//!
//! To read the code: [`run`] starts everything; `dispatch` → `start` → `settle` is the normal way of a job;
//! `loops/reconciler` repairs what went wrong on it.

mod backlog;
mod cancels;
mod consult;
mod context;
mod counsel;
mod crew;
mod decide;
mod dispatch;
mod events;
mod extend;
mod fitness;
mod fleet;
mod heartbeats;
mod hints;
mod intake;
mod judged_slots;
mod lease_guard;
mod local_claims;
mod loop_names;
mod loops;
mod offers;
mod probe;
mod pulse;
mod questions;
mod release;
mod route_notices;
mod route_registry;
mod route_state;
mod rules;
mod serve;
mod settings;
mod settle;
mod slots;
mod start;
mod survey;
mod window;
mod zeros;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_bus::Question;
use muster_chassis::{Chassis, Tasks, loops::with_loops, settings::Declaration};
use muster_replica::{Member, name_late};
use tokio::sync::Mutex;

use crate::{
    cancels::Cancels,
    context::Context,
    decide::ByWindow,
    dispatch::Dispatch,
    fitness::Fitness,
    fleet::Fleet,
    hints::Hints,
    intake::{Consumers, Work},
    judged_slots::JudgedSlots,
    lease_guard::LeaseGuard,
    local_claims::Memory,
    questions::Questions,
    route_state::RouteStates,
    serve::Address,
    settle::Settle,
};

pub use loops::LOOPS;

/// All settings of the scheduler, apart from the shared ones.
pub const SETTINGS: &[Declaration] = &with_loops::<{ settings::OWN.len() + LOOPS.len() }>(settings::OWN, LOOPS);

/// The service's name.
pub const SERVICE: &str = "muster-scheduler";

/// How long the tasks that take work may take to stop.
const STOP_TAKING: Duration = Duration::from_secs(4);
/// How long the work in flight may take to finish.
const STOP_DOING: Duration = Duration::from_secs(6);

/// Runs a scheduler until it is asked to stop.
pub async fn run(chassis: Chassis) -> anyhow::Result<()> {
    let values = &chassis.values;
    zeros::show();
    let member = Member::connect(&chassis).await?;
    let flow = member.flow.clone();
    let (taking, in_flight) = (chassis.tasks.group(), chassis.tasks.group());
    let (questions, asked) = settings::counsel(values, &flow.bus).map(|c| Questions::new(c, &chassis.instance)).unzip();
    let (routes, pokes) = RouteStates::new(flow.settings.clone());
    let context = Arc::new(Context {
        flow,
        decider: Box::new(ByWindow),
        questions,
        judged_slots: JudgedSlots::default(),
        routes,
        memory: Memory::default(),
        fleet: Fleet::default(),
        hints: Hints::default(),
        lease_guard: LeaseGuard::new(values.get(settings::OUTAGE_WAIT), Instant::now()),
        fitness: Fitness::default(),
        loops: chassis.loops.clone(),
        in_flight: in_flight.clone(),
    });

    loops::start(&member, &context);
    consume(&chassis, &taking, &context);
    answer(&taking, &context);
    member.hear_hints(&taking);
    judge_fitness(&member, &taking, &context);
    watch(&chassis, &taking, &context, pokes);
    if let Some(asked) = asked {
        consult(&taking, &context, asked);
    }
    follow(&member, &taking, &context);
    let values = values.clone();
    member.announce(move || values.told());
    stages(&member, &taking, &in_flight, &context);
    chassis.run_until_stopped().await;
    Ok(())
}

/// Starts the consumers, which pull work from the streams.
fn consume(chassis: &Chassis, taking: &Tasks, context: &Arc<Context>) {
    let names = [Dispatch::NAME, Settle::NAME, Cancels::NAME];
    let ready = Arc::new(Consumers::new(chassis.health.part("consumers"), &names));
    pull::<Dispatch>(taking, context, &ready);
    pull::<Settle>(taking, context, &ready);
    pull::<Cancels>(taking, context, &ready);
}

fn pull<W: Work>(taking: &Tasks, context: &Arc<Context>, ready: &Arc<Consumers>) {
    let (context, ready, stop) = (context.clone(), ready.clone(), taking.stopping());
    taking.supervise(W::NAME, move || {
        let (context, ready, stop) = (context.clone(), ready.clone(), stop.clone());
        async move {
            if !rules::are_known(&context, &stop).await {
                return Ok(());
            }
            intake::run::<W>(&context, &ready, &stop).await
        }
    });
}

/// Starts the tasks that answer workers: as one of all schedulers, and under this replica's own name.
fn answer(taking: &Tasks, context: &Arc<Context>) {
    for address in [Address::Group, Address::Own] {
        let (starts, stop) = (context.clone(), taking.stopping());
        taking.supervise("starts", move || {
            let (context, stop) = (starts.clone(), stop.clone());
            async move {
                if !rules::are_known(&context, &stop).await {
                    return Ok(());
                }
                serve::run(&context, "start", Question::Start, address, &stop, start::answer).await
            }
        });
        let (extensions, stop) = (context.clone(), taking.stopping());
        taking.supervise("extensions", move || {
            let (context, stop) = (extensions.clone(), stop.clone());
            async move { serve::run(&context, "extend", Question::Extend, address, &stop, extend::answer).await }
        });
    }
}

/// Starts the task that judges whether this replica may take work.
fn judge_fitness(member: &Member, taking: &Tasks, context: &Arc<Context>) {
    let part = member.chassis.health.part("fitness");
    let (context, stop, member) = (context.clone(), taking.stopping(), member.clone());
    taking.supervise("fitness", move || {
        let (context, stop, part, member) = (context.clone(), stop.clone(), part.clone(), member.clone());
        async move { pulse::watch(&context, &member, &part, &stop).await }
    });
}

/// Starts the tasks that follow run-time settings.
fn follow(member: &Member, taking: &Tasks, context: &Arc<Context>) {
    member.follow_settings(taking);
    let (told, stop) = (context.clone(), taking.stopping());
    taking.supervise("rules", move || {
        let (context, stop) = (told.clone(), stop.clone());
        async move {
            rules::obey(&context, &stop).await;
            Ok(())
        }
    });
}

/// Starts the tasks that watch the workers, the routes and the stores, and the one that releases waiting jobs.
fn watch(
    chassis: &Chassis,
    taking: &Tasks,
    context: &Arc<Context>,
    pokes: tokio::sync::mpsc::UnboundedReceiver<Arc<route_state::RouteState>>,
) {
    let (workers, stop) = (context.clone(), taking.stopping());
    taking.supervise("fleet", move || {
        let (context, stop) = (workers.clone(), stop.clone());
        async move { heartbeats::listen(&context, &stop).await }
    });
    let (surveyed, stop) = (context.clone(), taking.stopping());
    taking.supervise("survey", move || {
        let (context, stop) = (surveyed.clone(), stop.clone());
        async move {
            survey::run(&context, &stop).await;
            Ok(())
        }
    });
    let (redis, nats) = (chassis.health.part("redis"), chassis.health.part("nats"));
    let (probed, stop) = (context.clone(), taking.stopping());
    taking.supervise("probe", move || {
        let (context, redis, nats, stop) = (probed.clone(), redis.clone(), nats.clone(), stop.clone());
        async move {
            probe::run(&context, &redis, &nats, &stop).await;
            Ok(())
        }
    });
    // The receiver outlives a panic of the task that uses it.
    let pokes = Arc::new(Mutex::new(pokes));
    let (released, stop) = (context.clone(), taking.stopping());
    taking.supervise("releases", move || {
        let (context, pokes, stop) = (released.clone(), pokes.clone(), stop.clone());
        async move {
            if rules::are_known(&context, &stop).await {
                backlog::run(&context, &mut *pokes.lock().await, &stop).await;
            }
            Ok(())
        }
    });
}

/// Starts the task that asks deciders.
fn consult(taking: &Tasks, context: &Arc<Context>, asked: questions::Asked) {
    // The receiver outlives a panic of the task that uses it.
    let asked = Arc::new(Mutex::new(asked));
    let (context, stop) = (context.clone(), taking.stopping());
    taking.supervise("consult", move || {
        let (context, asked, stop) = (context.clone(), asked.clone(), stop.clone());
        async move {
            consult::run(&context, &mut *asked.lock().await, &stop).await;
            Ok(())
        }
    });
}

/// Stops the consumers first, then the work in flight, then gives up the leader locks.
fn stages(member: &Member, taking: &Tasks, in_flight: &Tasks, context: &Arc<Context>) {
    member.drain_stage("consumers", taking, STOP_TAKING);
    let (in_flight, context) = (in_flight.clone(), context.clone());
    member.chassis.stop.stage("in flight", async move {
        name_late("in flight", &in_flight.drain(STOP_DOING).await);
        backlog::give_up(&context).await;
        context.bus().flush(Duration::from_secs(1)).await;
    });
    member.leases_stage();
}
