//! Questions that workers ask and wait for: starts and extensions.
//!
//! Promises: requests that arrive while others are under way are answered together; a bounded
//! number of groups at once, the rest waits at the subscription. Leaves to others: the answers.

use std::{future::Future, sync::Arc};

use futures_util::FutureExt;
use muster_bus::{Received, Subject, subjects::SCHEDULERS};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::desk::Desk;

/// Requests answered together at most.
const GROUP: usize = 64;
/// Groups under way at once.
const GROUPS: usize = 16;

/// Answers requests on `subject` until stopped, as one of all schedulers.
pub(crate) async fn run<F>(
    desk: &Arc<Desk>,
    name: &'static str,
    subject: Subject,
    stop: &CancellationToken,
    answer: impl Fn(Arc<Desk>, Vec<Received>) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut requests = desk.bus().subscribe(&subject, Some(SCHEDULERS)).await?;
    let turns = Arc::new(Semaphore::new(GROUPS));
    let mut stopping = false;
    loop {
        let turn = turns.clone().acquire_owned().await?;
        let first = if stopping {
            // What had arrived before the subscription ended is still answered.
            requests.next().await
        } else {
            tokio::select! {
                biased;
                first = requests.next() => first,
                () = stop.cancelled() => {
                    stopping = true;
                    requests.drain().await;
                    continue;
                }
            }
        };
        let Some(first) = first else {
            if stopping {
                return Ok(());
            }
            anyhow::bail!("the subscription to {subject} ended");
        };
        let mut group = vec![first];
        while group.len() < GROUP {
            match requests.next().now_or_never() {
                Some(Some(next)) => group.push(next),
                _ => break,
            }
        }
        let answered = answer(desk.clone(), group);
        desk.in_flight.spawn(name, async move {
            answered.await;
            drop(turn);
        });
    }
}
