//! The worker over NATS: the SDK does all the work; this file passes it the handler and the stop signals.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use muster_sdk::{Context, StopReason, Worker};

use super::{Settings, task::Task, work::Work};
use crate::{outcome::Failure, signals::StopSignals};

/// A little more than a command gets between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(7);

/// Runs until a signal asks it to stop, then drains; after a second signal, gives everything back at once.
pub(super) async fn run(settings: Settings, url: &str, work: Arc<Work>, mut stop: StopSignals) -> anyhow::Result<()> {
    let mut builder = Worker::builder(url)
        .id(settings.id.as_str())
        .tenant(settings.tenant.as_str())
        .concurrency(settings.concurrency)
        .lease(settings.lease)
        .drain(settings.drain)
        .grace(GRACE)
        .stream_replicas(settings.stream_replicas);
    if settings.all_tenants {
        builder = builder.all_tenants();
    }
    for (name, value) in &settings.provides {
        builder = builder.provides(name, value);
    }
    for topic in &settings.topics {
        let work = Arc::clone(&work);
        builder = builder.handle_raw(topic.as_str(), move |context: Context, payload: Bytes| {
            let work = Arc::clone(&work);
            async move { work.run(task(&context, payload)).await }
        });
    }
    let worker = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
    let handle = worker.handle();
    let mut run = std::pin::pin!(worker.run());
    let summary = tokio::select! {
        done = &mut run => done?,
        () = stop.next() => {
            handle.drain();
            tokio::select! {
                done = &mut run => done?,
                () = stop.next() => {
                    handle.stop();
                    run.await?
                }
            }
        }
    };
    match summary.unsettled {
        0 => Ok(()),
        // The stream holds the results all the same, or the lease ends and another worker runs the jobs.
        n => Err(Failure::new(format!("ended before {n} results were settled")).into()),
    }
}

fn task(context: &Context, payload: Bytes) -> Task {
    let told = context.clone();
    Task {
        job_id: context.job_id().to_string(),
        attempt: context.attempt(),
        fence: context.fence(),
        payload,
        stop: context.cancellation(),
        leaves: Box::new(move || told.stop_reason() == Some(StopReason::Draining)),
    }
}
