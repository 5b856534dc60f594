//! apalis on Redis. By its defaults it locks each task, keeps results and emits events; with
//! `APALIS_BARE=1` locks and events are off, which is faster and loses or doubles a job in a crash.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Result;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use muster_bench_peers::{self as driver, Mode, Ticks, setting};
use serde_json::Value;

/// Jobs of one bulk.
const BULK: u64 = 500;
/// How often the worker asks for more.
const POLL: Duration = Duration::from_millis(1);

/// Asks again and again. The stock strategy re-arms its timer without polling it, so that a tick
/// during a fetch is lost and the worker sleeps until its next heartbeat.
struct Every(Pin<Box<tokio::time::Sleep>>);

impl PollStrategy for Every {
    fn poll_drive(&mut self, context: &mut Context<'_>, _: &PollSnapshot) -> Poll<Option<()>> {
        let mut fired = false;
        while self.0.as_mut().poll(context).is_ready() {
            fired = true;
            self.0 = Box::pin(tokio::time::sleep(POLL));
        }
        if fired { Poll::Ready(Some(())) } else { Poll::Pending }
    }
}

async fn storage() -> Result<RedisStorage<Value>> {
    let safe = std::env::var("APALIS_BARE").is_err();
    let config = Config::default()
        .queue("bench")
        .batch_size(driver::number("CONCURRENCY", 300))
        .lock_tasks(safe)
        .emit_events(safe)
        .persist_results(true);
    Ok(RedisStorage::new(apalis_redis::connect(setting("REDIS_URL")?).await?).with_config(config))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mode = driver::mode("apalis-redis")?;
    let payload: Value = serde_json::from_str(&setting("PAYLOAD")?)?;
    let mut storage = storage().await?;
    match mode {
        Mode::Worker => {
            let ticks = Ticks::open()?;
            let backend = storage.poll_with_strategy(Every(Box::pin(tokio::time::sleep(POLL))));
            // A name of its own: one that was seen a moment ago is refused.
            let name = format!("bench-{}", std::process::id());
            let worker = WorkerBuilder::new(name).backend(backend).parallelize(tokio::spawn).build(move |_: Value| {
                let ticks = ticks.clone();
                async move {
                    ticks.tick();
                    Ok::<u32, BoxDynError>(1)
                }
            });
            worker.run().await?;
            Ok(())
        }
        Mode::Submit { jobs } => {
            driver::submit_all(jobs, (storage, payload), |(mut storage, payload)| async move {
                storage.push(payload).await?;
                Ok(())
            })
            .await
        }
        Mode::Fill { jobs } => {
            for from in (0..jobs).step_by(BULK as usize) {
                let count = BULK.min(jobs - from) as usize;
                storage.push_bulk(vec![payload.clone(); count]).await?;
            }
            Ok(())
        }
        Mode::Latency { .. } => anyhow::bail!("nothing tells when a task of apalis-redis is done"),
    }
}
