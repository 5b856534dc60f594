//! A worker that returns its payload, and reports progress.
//!
//! `cargo run -p muster-sdk --example echo_worker -- nats://127.0.0.1:4222`

use std::time::Duration;

use muster_sdk::{Context, HandlerError, Worker};
use serde_json::{Value, json};

async fn echo(ctx: Context, payload: Value) -> Result<Value, HandlerError> {
    for step in 1..=4u8 {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(250)) => {}
            () = ctx.cancelled() => return Err(HandlerError::retryable("told to stop")),
        }
        ctx.progress(f64::from(step) * 25.0, "echoing", None);
    }
    Ok(json!({ "echo": payload, "attempt": ctx.attempt() }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned());
    let worker = Worker::builder(url).concurrency(64).handle("echo", echo).build()?;
    // On SIGTERM or Ctrl-C: finish the running jobs, give the rest back.
    worker.run_until_signal().await?;
    Ok(())
}
