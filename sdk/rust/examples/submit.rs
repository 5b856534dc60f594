//! Submits a job and waits for its end.
//!
//! `cargo run -p muster-sdk --example submit -- http://127.0.0.1:8081 KEY echo '{"hello": "world"}'`

use std::{io::Write, time::Duration};

use muster_sdk::{Client, JobRequest};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, topic, payload] = args.as_slice() else {
        anyhow::bail!("usage: submit URL KEY TOPIC JSON");
    };
    let client = Client::new([url], key)?;
    let submitted = client.submit(JobRequest::new(topic).payload_json(payload)).await?;
    let job = client.wait(submitted.job.id, Duration::from_secs(60)).await?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&job)?)?;
    Ok(())
}
