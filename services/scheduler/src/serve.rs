//! Receives the questions of workers: starts and extensions.
//!
//! Promises: requests that arrive while others are being answered are answered together. The number of groups at once
//! is bounded; further requests wait at the subscription. An unfit replica leaves the queue group and drops the
//! requests that have arrived, because their workers ask another scheduler. Leaves to others: the answers.

use std::{future::Future, sync::Arc};

use futures_util::FutureExt;
use muster_bus::{Question, Received, subjects::SCHEDULERS};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Most requests answered together.
const GROUP: usize = 64;
/// Most groups answered at once.
const GROUPS: usize = 16;

/// Where questions arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Address {
    /// One of all schedulers gets each question.
    Group,
    /// This replica alone, asked by its name after another scheduler did not answer.
    Own,
}

/// Why this replica leaves a subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// Requests that had arrived are still answered.
    Stopping,
    /// Requests that had arrived are dropped.
    Unfit,
}

/// Answers requests until stopped, while this replica is fit.
pub(crate) async fn run<F>(
    context: &Arc<Context>,
    name: &'static str,
    question: Question,
    address: Address,
    stop: &CancellationToken,
    answer: impl Fn(Arc<Context>, Vec<Received>) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = context.fitness.fit() => {}
        }
        serve(context, name, question, address, stop, &answer).await?;
    }
    Ok(())
}

/// Answers requests until stopped or unfit.
async fn serve<F>(
    context: &Arc<Context>,
    name: &'static str,
    question: Question,
    address: Address,
    stop: &CancellationToken,
    answer: &impl Fn(Arc<Context>, Vec<Received>) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (subject, queue) = match address {
        Address::Group => (question.group(), Some(SCHEDULERS)),
        Address::Own => (question.named(context.bus().instance()), None),
    };
    let mut requests = context.bus().subscribe(&subject, queue).await?;
    let turns = Arc::new(Semaphore::new(GROUPS));
    let mut leaving = Leaving::No;
    loop {
        let turn = turns.clone().acquire_owned().await?;
        let first = if leaving == Leaving::No {
            tokio::select! {
                biased;
                first = requests.next() => first,
                () = stop.cancelled() => {
                    leaving = Leaving::Stopping;
                    requests.drain().await;
                    continue;
                }
                () = context.fitness.unfit() => {
                    leaving = Leaving::Unfit;
                    requests.drain().await;
                    continue;
                }
            }
        } else {
            requests.next().await
        };
        let Some(first) = first else {
            anyhow::ensure!(leaving != Leaving::No, "the subscription to {subject} ended");
            return Ok(());
        };
        if leaving == Leaving::Unfit {
            continue;
        }
        let mut group = vec![first];
        while group.len() < GROUP {
            match requests.next().now_or_never() {
                Some(Some(next)) => group.push(next),
                _ => break,
            }
        }
        let answered = answer(context.clone(), group);
        context.in_flight.spawn(name, async move {
            answered.await;
            drop(turn);
        });
    }
}
