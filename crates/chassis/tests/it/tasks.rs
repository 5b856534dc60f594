//! Panics, restarts, drains.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use muster_chassis::Tasks;
use muster_telemetry::Exporter;
use tokio::{sync::mpsc, time::Instant};

use crate::metric;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn a_supervised_task_is_restarted_after_panic_and_failure_with_growing_pauses() {
    Exporter::install("test", "0");
    let tasks = Tasks::new();
    let (told, mut runs) = mpsc::unbounded_channel();
    let n = Arc::new(AtomicU32::new(0));
    let began = Instant::now();
    tasks.supervise("restarted", move || {
        let (told, n) = (told.clone(), n.fetch_add(1, Ordering::Relaxed));
        async move {
            told.send(began.elapsed()).unwrap();
            match n {
                0 => panic!("first run"),
                1 => anyhow::bail!("second run"),
                _ => Ok(()),
            }
        }
    });
    let mut starts = Vec::new();
    while let Some(at) = runs.recv().await {
        starts.push(at.as_millis());
    }
    assert_eq!(starts.len(), 3, "it ends with the run that succeeds");
    assert!((100..150).contains(&starts[1]) && (300..350).contains(&starts[2]), "{starts:?}");
    assert_eq!(metric("muster_task_panics_total", &[("task", "restarted")]), 1.0);
    assert_eq!(tasks.drain(SOON).await, Vec::<&str>::new());
}

#[tokio::test]
async fn a_panic_costs_one_task_and_is_counted() {
    Exporter::install("test", "0");
    let tasks = Tasks::new();
    let lost = tasks.spawn("one_shot", async { panic!("boom") as u32 });
    let kept = tasks.spawn("neighbour", async { 7 });
    assert_eq!(lost.await.unwrap(), None);
    assert_eq!(kept.await.unwrap(), Some(7));
    assert_eq!(metric("muster_task_panics_total", &[("task", "one_shot")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_those_who_end_and_names_those_who_do_not() {
    let tasks = Tasks::new();
    let (stop, ended) = (tasks.stopping(), Arc::new(AtomicU32::new(0)));
    let counted = ended.clone();
    tasks.spawn("polite", async move {
        stop.cancelled().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let deaf = tasks.spawn("deaf", std::future::pending::<()>());
    tasks.spawn("deaf", std::future::pending::<()>());
    assert_eq!(tasks.running(), ["deaf", "polite"]);

    assert_eq!(tasks.drain(Duration::from_millis(200)).await, ["deaf"], "each name once");
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert!(tokio::time::timeout(SOON, deaf).await.unwrap().unwrap_err().is_cancelled(), "cut off after the limit");
    assert_eq!(tasks.drain(SOON).await, Vec::<&str>::new());
}

#[tokio::test]
async fn a_group_is_drained_alone_and_with_the_whole() {
    let tasks = Tasks::new();
    let (first, second) = (tasks.group(), tasks.group());
    for group in [&first, &second] {
        let stop = group.stopping();
        group.spawn("member", async move { stop.cancelled().await });
    }
    assert_eq!(first.drain(SOON).await, Vec::<&str>::new());
    assert!(!second.stopping().is_cancelled() && !tasks.stopping().is_cancelled());
    assert_eq!(tasks.running(), ["member"], "the other group still runs, and the whole knows it");
    assert_eq!(tasks.drain(SOON).await, Vec::<&str>::new());
    assert!(second.stopping().is_cancelled() && second.running().is_empty());
}
