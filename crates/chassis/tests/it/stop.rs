//! The stages of a stop.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_chassis::Stop;
use tokio::time::Instant;

fn noted(notes: &Arc<Mutex<Vec<&'static str>>>, what: &'static str) -> impl Future<Output = ()> + use<> {
    let notes = notes.clone();
    async move { notes.lock().unwrap().push(what) }
}

#[tokio::test(start_paused = true)]
async fn stages_run_in_order_and_nothing_begins_before_its_turn() {
    let (stop, notes) = (Stop::new(), Arc::default());
    let later = noted(&notes, "consumers");
    stop.stage("consumers", async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        later.await;
    });
    stop.stage("in-flight", noted(&notes, "in-flight"));
    stop.stage("leases", noted(&notes, "leases"));
    assert!(notes.lock().unwrap().is_empty() && !stop.requested().is_cancelled());
    assert_eq!(stop.run(Duration::from_secs(15)).await, Vec::<&str>::new());
    assert_eq!(*notes.lock().unwrap(), ["consumers", "in-flight", "leases"]);
    assert!(stop.requested().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_late_stage_is_named_and_those_after_it_still_get_their_turn() {
    let (stop, notes) = (Stop::new(), Arc::default());
    stop.stage("consumers", std::future::pending());
    stop.stage("broken", async { panic!("stage") });
    let slow = noted(&notes, "leases");
    stop.stage("leases", async move {
        tokio::time::sleep(Duration::from_millis(900)).await;
        slow.await;
    });
    let began = Instant::now();
    assert_eq!(stop.run(Duration::from_secs(15)).await, ["consumers"]);
    assert_eq!(*notes.lock().unwrap(), ["leases"]);
    assert!(began.elapsed() <= Duration::from_secs(15), "{:?}", began.elapsed());
}
