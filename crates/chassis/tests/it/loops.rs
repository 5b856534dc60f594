//! When loops tick, what is recorded, and which replica may tick.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::bail;
use muster_chassis::{Budget, Counts, Everyone, Health, Holder, Leadership, Loop, Registry, Safety, Tasks};
use muster_telemetry::Exporter;
use serde_json::Value;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};

use crate::metric;

const INTERVAL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

/// What the next pass should do; without an order it does nothing.
enum Order {
    Count(u64),
    Fail,
    Panic,
    Take(Duration),
    DueIn(Duration),
    WaitFor(Arc<Semaphore>),
}

/// Passes of a test loop, as they begin.
type Passes = mpsc::UnboundedReceiver<Instant>;

#[derive(Clone, Default)]
struct Orders(Arc<Mutex<Vec<Order>>>);

impl Orders {
    fn give(&self, order: Order) {
        self.0.lock().unwrap().push(order);
    }
}

struct Body {
    orders: Orders,
    begun: mpsc::UnboundedSender<Instant>,
    inside: Arc<AtomicU32>,
    stood_down: Arc<AtomicU32>,
}

impl Body {
    fn new() -> (Body, Orders, Passes) {
        let (begun, passes) = mpsc::unbounded_channel();
        let orders = Orders::default();
        (Body { orders: orders.clone(), begun, inside: Arc::default(), stood_down: Arc::default() }, orders, passes)
    }

    async fn pass(&mut self) -> anyhow::Result<Counts> {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two ticks at once");
        let inside = self.inside.clone();
        let _leave = Leave(inside);
        self.begun.send(Instant::now()).unwrap();
        let order = self.orders.0.lock().unwrap().pop();
        let mut counts = Counts::none();
        match order {
            None => {}
            Some(Order::Count(n)) => counts.add("things", n),
            Some(Order::Fail) => bail!("no luck"),
            Some(Order::Panic) => panic!("no sense"),
            Some(Order::Take(span)) => sleep(span).await,
            Some(Order::DueIn(span)) => counts.due_in(span),
            Some(Order::WaitFor(gate)) => gate.acquire().await?.forget(),
        }
        Ok(counts)
    }
}

struct Leave(Arc<AtomicU32>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Declares loops of different names over the same body, so that tests do not share metrics.
macro_rules! loops {
    ($($kind:ident = $name:literal, $safe:expr, $lease:ty;)+) => {$(
        struct $kind(Body);
        impl Loop for $kind {
            const NAME: &'static str = $name;
            const SAFE: Safety = $safe;
            const BUDGET: Duration = Duration::from_secs(2);
            type Lease = $lease;
            async fn run_once(&mut self, _: &$lease, _: Budget) -> anyhow::Result<Counts> {
                self.0.pass().await
            }
            fn stands_down(&mut self) {
                self.0.stood_down.fetch_add(1, Ordering::SeqCst);
            }
        }
    )+};
}

const HARMLESS: Safety = Safety::Idempotent { why: "a test", duplicate_costs: "nothing" };
const LED: Safety = Safety::Leader { lock: "muster:test", why: "a test", duplicate_costs: "nothing" };

loops! {
    Timed = "timed", HARMLESS, ();
    Due = "due", HARMLESS, ();
    Woken = "woken", HARMLESS, ();
    Hinted = "hinted", HARMLESS, ();
    Faulty = "faulty", HARMLESS, ();
    Slow = "slow", HARMLESS, ();
    Drained = "drained", HARMLESS, ();
    Idle = "idle", HARMLESS, ();
    Led = "led", LED, u64;
    Cut = "cut", LED, u64;
    Released = "released", LED, u64;
}

fn registry() -> (Registry, Tasks, Health) {
    Exporter::install("test", "0");
    let (tasks, health) = (Tasks::new(), Health::new());
    (Registry::new(&tasks, health.required("loops")), tasks, health)
}

async fn next(passes: &mut Passes) -> Instant {
    timeout(2 * INTERVAL, passes.recv()).await.expect("a tick").unwrap()
}

async fn no_tick_within(passes: &mut Passes, span: Duration) {
    assert!(timeout(span, passes.recv()).await.is_err(), "an unexpected tick");
}

fn shown(registry: &Registry, name: &str) -> Value {
    registry.show().as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone()
}

fn ticks(name: &str, outcome: &str) -> f64 {
    metric("muster_loop_ticks_total", &[("loop", name), ("outcome", outcome)])
}

#[tokio::test(start_paused = true)]
async fn a_loop_ticks_at_start_and_then_by_its_interval_give_or_take_a_tenth() {
    let (registry, tasks, _) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::Count(3));
    let began = Instant::now();
    registry.register::<Timed>(INTERVAL).start(Timed(body), Everyone);
    let first = next(&mut passes).await;
    assert_eq!(first - began, Duration::ZERO);
    tokio::task::yield_now().await;
    let entry = shown(&registry, "timed");
    assert_eq!((&entry["state"], &entry["class"]), (&"active".into(), &"idempotent".into()));
    assert_eq!((&entry["why_safe"], &entry["interval_ms"]), (&"a test".into(), &60_000.into()));
    assert_eq!((&entry["last"]["outcome"], &entry["last"]["counts"]["things"]), (&"ok".into(), &3.into()));
    assert!((54_000..=66_000).contains(&entry["next_in_ms"].as_u64().unwrap()), "{entry}");

    let second = next(&mut passes).await;
    assert!((54..=66).contains(&(second - first).as_secs()), "{:?}", second - first);
    tasks.drain(SOON).await;
    assert_eq!(ticks("timed", "ok"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_loop_sleeps_until_its_next_work_is_due() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::DueIn(Duration::from_millis(700)));
    orders.give(Order::DueIn(Duration::ZERO));
    registry.register::<Due>(INTERVAL).start(Due(body), Everyone);
    let first = next(&mut passes).await;
    let second = next(&mut passes).await;
    let third = next(&mut passes).await;
    assert!(second - first <= Duration::from_millis(2), "at once: {:?}", second - first);
    assert!((700..=702).contains(&(third - second).as_millis()), "{:?}", third - second);
}

#[tokio::test(start_paused = true)]
async fn hints_during_a_tick_are_merged_into_one_more_tick() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    let gate = Arc::new(Semaphore::new(0));
    orders.give(Order::WaitFor(gate.clone()));
    let slot = registry.register::<Woken>(INTERVAL);
    let waker = slot.waker();
    slot.start(Woken(body), Everyone);
    next(&mut passes).await;
    (0..5).for_each(|_| waker.wake());
    no_tick_within(&mut passes, Duration::from_millis(500)).await;
    gate.add_permits(1);
    next(&mut passes).await;
    no_tick_within(&mut passes, INTERVAL / 2).await;
    assert_eq!(shown(&registry, "woken")["merged_hints"], 4);
    assert_eq!(shown(&registry, "woken")["ticks"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_hint_may_name_a_later_time_and_the_soonest_counts() {
    let (registry, ..) = registry();
    let (body, _, mut passes) = Body::new();
    registry.register::<Hinted>(INTERVAL).start(Hinted(body), Everyone);
    let first = next(&mut passes).await;
    for seconds in [9, 4, 7] {
        assert!(registry.wake("hinted", Duration::from_secs(seconds)));
    }
    assert!(!registry.wake("unheard of", Duration::ZERO));
    let second = next(&mut passes).await;
    assert_eq!((second - first).as_secs(), 4);
    no_tick_within(&mut passes, Duration::from_secs(20)).await;
    assert!(registry.wake("hinted", Duration::ZERO));
    next(&mut passes).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_fails_or_panics_is_recorded_and_the_loop_lives_on() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::Panic);
    orders.give(Order::Fail);
    let slot = registry.register::<Faulty>(INTERVAL);
    let waker = slot.waker();
    slot.start(Faulty(body), Everyone);
    let first = next(&mut passes).await;
    waker.wake();
    let second = next(&mut passes).await;
    assert!(second - first >= Duration::from_millis(100), "a failing loop does not spin: {:?}", second - first);
    tokio::task::yield_now().await;
    let last = &shown(&registry, "faulty")["last"];
    assert_eq!(last["outcome"], "panic", "{last}");
    assert_eq!(metric("muster_task_panics_total", &[("task", "faulty")]), 1.0);
    waker.wake();
    next(&mut passes).await;
    tokio::task::yield_now().await;
    assert_eq!(shown(&registry, "faulty")["last"]["outcome"], "ok");
    assert_eq!((ticks("faulty", "error"), ticks("faulty", "panic"), ticks("faulty", "ok")), (1.0, 1.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_pass_over_its_budget_is_recorded_and_one_at_twice_that_is_cut_off() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::Take(Duration::from_secs(3600)));
    orders.give(Order::Take(Duration::from_secs(3)));
    let slot = registry.register::<Slow>(INTERVAL);
    let waker = slot.waker();
    slot.start(Slow(body), Everyone);
    let first = next(&mut passes).await;
    waker.wake();
    let second = next(&mut passes).await;
    assert_eq!((second - first).as_secs(), 3, "an overrun may end");
    assert_eq!(shown(&registry, "slow")["last"]["outcome"], "overrun");
    waker.wake();
    let third = next(&mut passes).await;
    assert_eq!((third - second).as_secs(), 4, "twice the budget may not");
    assert_eq!(ticks("slow", "overrun"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_running_tick_end_and_begins_no_other() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::Take(Duration::from_secs(1)));
    let slot = registry.register::<Drained>(INTERVAL);
    let waker = slot.waker();
    slot.start(Drained(body), Everyone);
    next(&mut passes).await;
    waker.wake();
    assert_eq!(registry.stop(SOON).await, Vec::<&str>::new());
    assert_eq!(shown(&registry, "drained")["ticks"], 1);
    assert!(passes.recv().await.is_none(), "no further tick, and the body is gone");
}

#[tokio::test]
async fn a_loop_that_is_registered_and_not_started_fails_readiness() {
    let (registry, _, health) = registry();
    let slot = registry.register::<Idle>(INTERVAL);
    registry.freeze();
    let (status, body) = health.show();
    assert_eq!((status.as_u16(), &body["parts"]["loops"]["detail"]), (503, &"not started: idle".into()));
    assert_eq!(shown(&registry, "idle")["state"], "not_started");
    slot.start(Idle(Body::new().0), Everyone);
    assert_eq!(health.show().0, 200);
}

#[tokio::test]
#[should_panic(expected = "registered after the start")]
async fn nothing_is_registered_after_the_start() {
    let (registry, ..) = registry();
    registry.freeze();
    let _ = registry.register::<Idle>(INTERVAL);
}

/// Leadership by a switch that the test controls.
struct Switch {
    held: watch::Receiver<Option<u64>>,
    released: Arc<AtomicBool>,
}

impl Leadership for Switch {
    type Lease = u64;

    async fn lease(&self) -> Option<u64> {
        *self.held.borrow()
    }

    async fn changed(&self) {
        let mut held = self.held.clone();
        held.mark_unchanged();
        if held.changed().await.is_err() {
            std::future::pending().await
        }
    }

    fn holder(&self) -> Option<Holder> {
        let (instance, fence) = (self.held.borrow().map_or("another", |_| "this one"), self.held.borrow().unwrap_or(7));
        Some(Holder { instance: instance.into(), fence, since: "2026-01-02T03:04:05Z".into() })
    }

    async fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

fn switch(held: Option<u64>) -> (watch::Sender<Option<u64>>, Arc<AtomicBool>, Switch) {
    let (turn, held) = watch::channel(held);
    let released = Arc::new(AtomicBool::new(false));
    (turn, released.clone(), Switch { held, released })
}

#[tokio::test(start_paused = true)]
async fn a_leader_ticks_only_while_it_leads_and_resumes_when_it_leads_again() {
    let (registry, ..) = registry();
    let (body, _, mut passes) = Body::new();
    let (turn, _, leadership) = switch(None);
    let stood_down = body.stood_down.clone();
    let slot = registry.register::<Led>(INTERVAL);
    let waker = slot.waker();
    slot.start(Led(body), leadership);
    waker.wake();
    no_tick_within(&mut passes, 2 * INTERVAL).await;
    let led = shown(&registry, "led");
    assert_eq!((&led["state"], &led["holder"], &led["fence"]), (&"standby".into(), &"another".into(), &7.into()));
    assert_eq!(metric("muster_leader", &[("loop", "led")]), 0.0);

    let won = Instant::now();
    turn.send_replace(Some(1));
    assert!(next(&mut passes).await - won <= Duration::from_secs(1), "at once");
    let led = shown(&registry, "led");
    assert_eq!((&led["state"], &led["lock"]), (&"leading".into(), &"muster:test".into()));
    assert_eq!((&led["holder"], &led["fence"]), (&"this one".into(), &1.into()));
    assert_eq!(led["since"], "2026-01-02T03:04:05Z", "as the store says, not as this process noticed");
    assert_eq!(metric("muster_leader", &[("loop", "led")]), 1.0);
    assert_eq!(stood_down.load(Ordering::SeqCst), 0, "who never led has nothing to take back");

    tokio::task::yield_now().await;
    turn.send_replace(None);
    no_tick_within(&mut passes, 2 * INTERVAL).await;
    assert_eq!(metric("muster_leader", &[("loop", "led")]), 0.0);
    assert_eq!(stood_down.load(Ordering::SeqCst), 1, "once for each time it led");
    turn.send_replace(Some(2));
    next(&mut passes).await;
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_cut_off_when_its_lease_is_lost() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::WaitFor(Arc::new(Semaphore::new(0))));
    let (turn, _, leadership) = switch(Some(1));
    let stood_down = body.stood_down.clone();
    registry.register::<Cut>(INTERVAL).start(Cut(body), leadership);
    next(&mut passes).await;
    turn.send_replace(None);
    timeout(Duration::from_secs(1), async {
        while shown(&registry, "cut")["last"]["outcome"] != "lease_lost" {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("long before its budget");
    assert_eq!(ticks("cut", "lease_lost"), 1.0);
    // The loop has stopped leading at once, and does not rest as a leader until its next tick is due.
    tokio::task::yield_now().await;
    assert_eq!(shown(&registry, "cut")["state"], "standby");
    assert_eq!(metric("muster_leader", &[("loop", "cut")]), 0.0);
    assert_eq!(stood_down.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_the_lease_up_after_the_tick() {
    let (registry, ..) = registry();
    let (body, orders, mut passes) = Body::new();
    orders.give(Order::Take(Duration::from_secs(1)));
    let (_turn, released, leadership) = switch(Some(1));
    let stood_down = body.stood_down.clone();
    registry.register::<Released>(INTERVAL).start(Released(body), leadership);
    next(&mut passes).await;
    assert_eq!(registry.stop(SOON).await, Vec::<&str>::new());
    assert!(released.load(Ordering::SeqCst));
    assert_eq!(stood_down.load(Ordering::SeqCst), 1);
    assert_eq!(metric("muster_leader", &[("loop", "released")]), 0.0);
    assert_eq!(ticks("released", "ok"), 1.0);
}
