//! A worker with threads of its own that logs to standard error, as programs do. If the reader leaves that pipe
//! unread, the worker's loop hangs in the middle of a line, while its heartbeats continue on another thread.
//!
//! A job with the payload `loud` fails with a long error, which the loop logs. Any other job runs until it has to
//! stop.

use std::time::Duration;

use muster_sdk::{Context, HandlerError, Worker};
use serde_json::Value;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, id, topic] = args.as_slice() else { anyhow::bail!("usage: loud_worker NATS_URL ID TOPIC") };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let worker =
        Worker::builder(url).id(id).concurrency(8).lease(Duration::from_secs(6)).handle(topic, work).build()?;
    worker.run().await?;
    Ok(())
}

async fn work(ctx: Context, payload: Value) -> Result<Value, HandlerError> {
    if payload == "loud" {
        return Err(HandlerError::permanent("x".repeat(3_000)));
    }
    ctx.cancelled().await;
    Err(HandlerError::retryable("told to stop"))
}
