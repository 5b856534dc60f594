//! A Redis that has reached its memory limit: what is new is refused in words that say so, what runs keeps its
//! lease and ends, and when there is room again all goes on. On a server of its own.

use std::time::Duration;

use muster_domain::{Event, Outcome, State};
use muster_store::{Extension, RedisSettings, Store, StoreError};
use muster_testkit::RedisServer;

use crate::{
    bench::{Bench, HOUR, new_job, spec, tenant},
    repeats::rich,
};

#[tokio::test]
async fn a_full_server_refuses_what_is_new_and_lets_what_runs_end() {
    let server = RedisServer::start().await;
    let bench = Bench::at(server.url()).await;
    let (running, poor, offered) =
        (bench.calm(State::Running).await, bench.calm(State::Running).await, bench.calm(State::Dispatched).await);
    let settings = RedisSettings { budget: Duration::from_millis(500), ..RedisSettings::new(server.url()) };
    let hasty = Store::connect(settings).await.unwrap();

    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]).await, "OK");
    let job = new_job(spec(&tenant()));
    let refused = hasty.submit(std::slice::from_ref(&job)).await.remove(0).unwrap_err();
    assert!(refused.is_full() && refused.is_retryable(), "{refused:?}");
    let refused: StoreError = hasty.apply_one(offered.step(Event::Start)).await.unwrap_err();
    assert!(refused.is_full(), "{refused:?}");
    for job in [&running, &poor] {
        let longer = Extension { job: job.id, fence: job.head.fence, lease: 2 * HOUR, progress: None };
        let extended = hasty.extend(vec![longer]).await.remove(0).unwrap();
        assert!(extended.held && extended.remaining > HOUR, "{extended:?}");
    }
    assert_eq!(hasty.apply_one(rich(running.step(Event::Succeed))).await.unwrap().outcome, Outcome::Applied);
    assert_eq!(hasty.apply_one(poor.step(Event::Cancel)).await.unwrap().outcome, Outcome::Applied);
    let record = bench.record(running.id).await;
    assert_eq!((record.head.state(), record.result.is_some()), (State::Succeeded, true));

    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "0"]).await, "OK");
    bench.go(&offered, offered.step(Event::Start)).await;
    hasty.submit(&[job]).await.remove(0).unwrap();
}
