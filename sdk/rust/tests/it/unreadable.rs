//! Offers that a worker cannot read: their jobs are ended, no attempt is used, and the other offers of the same message
//! run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use muster_bus::{ConsumerSpec, subjects};
use muster_domain::JobId;
use muster_testkit::until;
use muster_wire::{Body, v1};

use super::scheduler::{SOON, Scheduler, beside, job_of, left};

#[tokio::test]
async fn an_offer_that_makes_no_sense_is_rejected_through_start_and_its_neighbour_runs() {
    let scheduler = Scheduler::start().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let worker = scheduler.worker("w1").concurrency(1).handle("t", move |_, (): ()| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let (handle, running) = beside(worker.build().unwrap());
    let [good, astray, nobodys] = [JobId::mint(0), JobId::mint(0), JobId::mint(0)];
    let offer = |job| scheduler.offer_of("t", job, "null");
    let nameless = v1::Offer { job_id: b"none".to_vec().into(), ..offer(good) };
    let items = vec![
        v1::Offer { topic: "other".into(), ..offer(astray) },
        nameless,
        v1::Offer { tenant: "A B".into(), ..offer(nobodys) },
        offer(good),
    ];
    scheduler.publish("t", items).await;
    assert_eq!(job_of(&scheduler.results(1).await[0]), good);
    scheduler.all_taken("t").await;
    {
        let starts = scheduler.heard.starts.lock().unwrap();
        let asks: Vec<&v1::StartAsk> = starts.iter().flat_map(|request| &request.items).collect();
        let rejected: Vec<JobId> =
            asks.iter().filter(|ask| ask.undecodable).map(|ask| JobId::from_slice(&ask.job_id).unwrap()).collect();
        assert_eq!(rejected, [astray, nobodys]);
        assert!(asks.iter().all(|ask| ask.topic == "t" && ask.tenant == "default"), "as they stood: {asks:?}");
        assert!(asks.iter().filter(|ask| !ask.undecodable).all(|ask| ask.job_id[..] == good.as_bytes()[..]));
    }
    // A message that names no job becomes a dead letter.
    let letters = scheduler.bus.consumer(ConsumerSpec::gateway(subjects::dlq())).await.unwrap();
    let letter = until(SOON, "the dead letter", async || {
        letters.fetch(1, Duration::from_secs(1)).await.unwrap_or_default().pop()
    })
    .await;
    let Body::DeadLetter(letter) = letter.body else { panic!("not a dead letter") };
    assert_eq!(letter.reason, "offer 2 of 4: field job_id: 4 bytes instead of 16");
    assert_eq!(letter.subject, "job.default.t");
    // The offer took no slot of the worker, and left none taken.
    let [next] = scheduler.offer("t", ["null"]).await;
    assert_eq!(job_of(&scheduler.results(2).await[1]), next);
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.failed, runs.load(Ordering::SeqCst)), (2, 0, 2));
}
