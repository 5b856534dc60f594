//! BullMQ's official port to Rust, driven as its users would: jobs are removed when they are done,
//! as `removeOnComplete` does, and the end is heard by its events.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use bullmq::{
    BulkJob, Job, Queue, QueueEvent, QueueEvents, QueueEventsOptions, Worker,
    options::{JobOptions, QueueOptions, RedisConnectionOptions, WorkerOptions},
    types::RemoveOnFinish,
};
use muster_bench_peers::{self as driver, Mode, Ticks, setting};
use serde_json::{Value, json};

const QUEUE: &str = "bench";
/// Jobs of one bulk.
const BULK: u64 = 1000;

fn connection() -> Result<RedisConnectionOptions> {
    Ok(RedisConnectionOptions::new().url(setting("REDIS_URL")?))
}

fn job(remove: RemoveOnFinish) -> JobOptions {
    JobOptions { remove_on_complete: Some(remove), ..JobOptions::default() }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mode = driver::mode("bullmq-official")?;
    let payload: Value = serde_json::from_str(&setting("PAYLOAD")?)?;
    if let Mode::Worker = mode {
        return work().await;
    }
    let queue = Queue::with_options(QUEUE, QueueOptions { connection: connection()?, ..QueueOptions::default() });
    let queue = std::sync::Arc::new(queue.await?);
    match mode {
        Mode::Worker => Ok(()),
        Mode::Submit { jobs } => {
            driver::submit_all(jobs, (queue, payload), |(queue, payload)| async move {
                queue.add("job", payload).options(job(RemoveOnFinish::Bool(true))).await?;
                Ok(())
            })
            .await
        }
        Mode::Fill { jobs } => {
            for from in (0..jobs).step_by(BULK as usize) {
                let count = BULK.min(jobs - from);
                let one = |_| BulkJob::with_options("job", &payload, job(RemoveOnFinish::Bool(true)));
                queue.add_bulk((0..count).map(one).collect()).await?;
            }
            Ok(())
        }
        Mode::Latency { rate, seconds } => latency(queue, payload, rate, seconds).await,
    }
}

async fn work() -> Result<()> {
    let ticks = Ticks::open()?;
    let concurrency = driver::number("CONCURRENCY", 50);
    let options = WorkerOptions { connection: connection()?, concurrency, ..WorkerOptions::default() };
    let handler = move |_: Job, _| {
        let ticks = ticks.clone();
        async move {
            ticks.tick();
            Ok(json!(1))
        }
    };
    let worker = Worker::with_options(QUEUE, handler, options).await?;
    // Events that nobody reads would fill their buffer.
    while worker.next_event().await.is_some() {}
    std::future::pending().await
}

/// Events are heard from some moment after their reader was made: adds jobs until the end of one is. Tells their ids.
async fn heard(queue: &Queue, payload: &Value, events: &QueueEvents) -> Result<HashSet<String>> {
    let mut knocks = HashSet::new();
    for _ in 0..40 {
        let knock = queue.add("knock", payload.clone()).options(job(RemoveOnFinish::Count(1000))).await?;
        knocks.insert(knock.id().to_string());
        let ended = async {
            while let Some(event) = events.next_event().await {
                if matches!(&event.event, QueueEvent::Completed { job_id, .. } if knocks.contains(job_id)) {
                    return true;
                }
            }
            false
        };
        if tokio::time::timeout(Duration::from_millis(250), ended).await.unwrap_or(false) {
            return Ok(knocks);
        }
    }
    anyhow::bail!("nothing is heard of any job's end")
}

/// From the moment an add was due to the event that says completed.
async fn latency(queue: std::sync::Arc<Queue>, payload: Value, rate: u64, seconds: u64) -> Result<()> {
    let options = QueueEventsOptions { connection: connection()?, ..QueueEventsOptions::default() };
    let events = QueueEvents::with_options(QUEUE, options).await?;
    let knocks = heard(&queue, &payload, &events).await?;
    let (jobs, mut due) = (rate * seconds, driver::schedule(rate, seconds));
    let ends = async {
        let mut ends = HashMap::new();
        while (ends.len() as u64) < jobs {
            let heard = tokio::time::timeout(Duration::from_secs(30), events.next_event()).await;
            let event = heard.context("no more jobs were completed")?.context("the events ended")?;
            if let QueueEvent::Completed { job_id, .. } = event.event
                && !knocks.contains(&job_id)
            {
                ends.insert(job_id, Instant::now());
            }
        }
        anyhow::Ok(ends)
    };
    let adds = async {
        let mut adding = tokio::task::JoinSet::new();
        while let Some(moment) = due.recv().await {
            let (queue, payload) = (queue.clone(), payload.clone());
            adding.spawn(async move {
                let job = queue.add("job", payload).options(job(RemoveOnFinish::Count(1000))).await?;
                anyhow::Ok((job.id().to_string(), moment))
            });
        }
        let mut adds = HashMap::new();
        while let Some(added) = adding.join_next().await {
            let (id, moment) = added??;
            adds.insert(id, moment);
        }
        anyhow::Ok(adds)
    };
    let (ends, adds) = tokio::try_join!(ends, adds)?;
    driver::tell(adds.iter().filter_map(|(id, moment)| Some(ends.get(id)?.saturating_duration_since(*moment))))
}
