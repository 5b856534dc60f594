//! Everything that the worker's loop sends and waits for, as futures that end in a [`Done`]. Each errand may fail or
//! get no answer; the loop decides what that means.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture, future::join_all};
use muster_bus::{Bus, Consumer, ConsumerSpec, Delivery, GroupPublisher, Question, Receipt};
use muster_wire::{Body, v1};
use tokio::time::Instant;

use super::{
    Attempt,
    leases::{Standing, standing},
    pulls::Source,
    starts::{Handback, Offered, Verdict},
};

/// How long one pull waits for a message.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// How long to pause after a failed pull.
const PULL_REST: Duration = Duration::from_millis(500);

/// An errand in progress.
pub(super) type Errand = BoxFuture<'static, Done>;

/// A finished errand.
pub(super) enum Done {
    /// The result of a pull on a line.
    Pulled { source: Source, deliveries: Vec<Delivery> },
    /// A line from a scheduler's notice is open, or could not be opened.
    Opened { source: Source, consumer: Option<Arc<Consumer>> },
    /// The answers to a start request that was sent at `sent`.
    Started { sent: Instant, answers: Vec<(Offered, Verdict, v1::StartAnswer)> },
    /// The answers to an extension that was sent at `sent`; each ask comes back with its answer.
    Extended { sent: Instant, answers: Vec<(Attempt, v1::ExtendAsk, Standing)> },
    /// Whether the stream took each result.
    Published { acked: Vec<(Attempt, bool)> },
    /// A message that needs no answer.
    Sent,
}

/// Pulls up to `most` messages.
pub(super) fn pull(consumer: Arc<Consumer>, source: Source, most: usize) -> Errand {
    async move {
        let deliveries = match consumer.fetch(most, PULL_WAIT).await {
            Ok(deliveries) => deliveries,
            Err(error) => {
                tracing::warn!(%error, "could not pull; trying again");
                tokio::time::sleep(PULL_REST).await;
                Vec::new()
            }
        };
        Done::Pulled { source, deliveries }
    }
    .boxed()
}

/// Opens a line that a scheduler's notice named.
pub(super) fn open(bus: Bus, source: Source) -> Errand {
    async move {
        let consumer = bus.consumer(ConsumerSpec::offers(&source.tenant, &source.line)).await;
        if let Err(error) = &consumer {
            tracing::warn!(tenant = %source.tenant, line = %source.line, %error, "could not open a line of offers; trying when it is announced again");
        }
        Done::Opened { source, consumer: consumer.ok().map(Arc::new) }
    }
    .boxed()
}

/// Closes lines that have no jobs for this worker any more.
pub(super) fn close(consumers: Vec<Arc<Consumer>>) -> Errand {
    async move {
        join_all(consumers.iter().map(|consumer| consumer.close())).await;
        Done::Sent
    }
    .boxed()
}

/// Sends a start request, and waits up to `wait` for the answer.
pub(super) fn start(bus: Bus, worker: String, asks: Vec<(Offered, v1::StartAsk)>, wait: Duration) -> Errand {
    async move {
        let sent = Instant::now();
        let (offered, items): (Vec<Offered>, Vec<v1::StartAsk>) = asks.into_iter().unzip();
        let request = Body::Start(v1::StartRequest { worker, items });
        let answered = bus.ask_schedulers(Question::Start, request, wait).await;
        let items = match answered {
            Ok(Body::Started(reply)) => reply.items,
            Ok(_) => {
                tracing::warn!("a start request was answered with something else");
                Vec::new()
            }
            Err(error) => {
                tracing::debug!(%error, "a start request got no answer; asking again");
                Vec::new()
            }
        };
        Done::Started { sent, answers: match_answers(offered, items) }
    }
    .boxed()
}

/// Finds the answer to each ask: usually at the same place, else by its job. An ask without an answer is sent again.
fn match_answers(offered: Vec<Offered>, mut items: Vec<v1::StartAnswer>) -> Vec<(Offered, Verdict, v1::StartAnswer)> {
    let in_order = items.len() == offered.len()
        && items.iter().zip(&offered).all(|(answer, offered)| answer.job_id[..] == offered.job.as_bytes()[..]);
    let with_verdict = |offered, answer: v1::StartAnswer| (offered, verdict(&answer), answer);
    if in_order {
        return offered.into_iter().zip(items).map(|(offered, answer)| with_verdict(offered, answer)).collect();
    }
    offered
        .into_iter()
        .map(|offered| {
            let found = items.iter().position(|answer| answer.job_id[..] == offered.job.as_bytes()[..]);
            with_verdict(offered, found.map(|at| items.swap_remove(at)).unwrap_or_default())
        })
        .collect()
}

fn verdict(answer: &v1::StartAnswer) -> Verdict {
    match answer.verdict() {
        v1::start_answer::Verdict::Go => Verdict::Go,
        v1::start_answer::Verdict::Gone => Verdict::Gone,
        v1::start_answer::Verdict::Unknown => Verdict::Unknown,
        v1::start_answer::Verdict::Retry | v1::start_answer::Verdict::Unspecified => Verdict::Repeat,
    }
}

/// Extends leases, in as few requests as the bus allows.
pub(super) fn extend(
    bus: Bus,
    worker: String,
    requests: Vec<Vec<(Attempt, v1::ExtendAsk)>>,
    patience: Duration,
) -> Errand {
    async move {
        let sent = Instant::now();
        let asked = requests.into_iter().map(|asks| {
            let (bus, worker) = (&bus, worker.clone());
            async move {
                let items = asks.iter().map(|(_, ask)| ask.clone()).collect();
                let request = Body::Extend(v1::ExtendRequest { worker, items });
                let items = match bus.ask_schedulers(Question::Extend, request, patience).await {
                    Ok(Body::Extended(reply)) => reply.items,
                    Ok(_) => Vec::new(),
                    Err(error) => {
                        tracing::debug!(%error, "an extension got no answer; asking again");
                        Vec::new()
                    }
                };
                // Match only by order: an answer names its job but not the fence, and one worker may hold two attempts
                // of a job.
                let fits = items.len() == asks.len()
                    && items.iter().zip(&asks).all(|(answer, (_, ask))| answer.job_id == ask.job_id);
                let mut standings = items.iter().filter(|_| fits).map(standing);
                asks.into_iter()
                    .map(|(attempt, ask)| (attempt, ask, standings.next().unwrap_or(Standing::Unknown)))
                    .collect::<Vec<_>>()
            }
        });
        let answers = join_all(asked).await.into_iter().flatten().collect();
        Done::Extended { sent, answers }
    }
    .boxed()
}

/// Publishes results, grouped with others that are being published.
pub(super) fn publish(publisher: Arc<GroupPublisher<v1::Result>>, results: Vec<(Attempt, v1::Result)>) -> Errand {
    async move {
        let (attempts, results): (Vec<Attempt>, Vec<v1::Result>) = results.into_iter().unzip();
        let outcomes = publisher.publish_all(results).await;
        let failed = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).next();
        if let Some(error) = failed {
            tracing::warn!(%error, "results were not taken by the stream; publishing them again");
        }
        let acked = attempts.into_iter().zip(outcomes.iter().map(Result::is_ok)).collect();
        Done::Published { acked }
    }
    .boxed()
}

/// Acks some deliveries and gives others back. If an ack is lost, the delivery comes again, and a scheduler answers
/// that the offer is gone.
pub(super) fn hand_back(deliveries: Vec<(Arc<Receipt>, Handback)>) -> Errand {
    async move {
        for (delivery, handback) in deliveries {
            match handback {
                Handback::Ack => delivery.ack().await,
                Handback::Nak(wait) => delivery.nak(wait).await,
            }
        }
        Done::Sent
    }
    .boxed()
}

/// Turns a delivery that is not an offer into a dead letter.
pub(super) fn reject(delivery: Receipt) -> Errand {
    async move {
        delivery.reject("not an offer").await;
        Done::Sent
    }
    .boxed()
}

/// Keeps deliveries from being redelivered while their start is being requested.
pub(super) fn keep(deliveries: Vec<Arc<Receipt>>) -> Errand {
    async move {
        for delivery in deliveries {
            delivery.in_progress().await;
        }
        Done::Sent
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use muster_domain::JobId;

    use super::*;

    fn answer(job: JobId, verdict: v1::start_answer::Verdict) -> v1::StartAnswer {
        v1::StartAnswer {
            job_id: Bytes::copy_from_slice(job.as_bytes()),
            verdict: verdict.into(),
            ..v1::StartAnswer::default()
        }
    }

    #[test]
    fn answers_find_their_asks_and_what_has_none_is_asked_again() {
        use v1::start_answer::Verdict::{Go, Gone};
        let jobs = [JobId::mint(0), JobId::mint(1), JobId::mint(2)];
        let asks = jobs.map(|job| Offered { job, version: 1 }).to_vec();
        let verdicts = |items| match_answers(asks.clone(), items).into_iter().map(|(_, v, _)| v).collect::<Vec<_>>();
        assert_eq!(
            verdicts(vec![answer(jobs[0], Go), answer(jobs[1], Gone), answer(jobs[2], Go)]),
            [Verdict::Go, Verdict::Gone, Verdict::Go]
        );
        assert_eq!(
            verdicts(vec![answer(jobs[2], Gone), answer(jobs[0], Go)]),
            [Verdict::Go, Verdict::Repeat, Verdict::Gone]
        );
        assert_eq!(verdicts(Vec::new()), [Verdict::Repeat; 3]);
    }
}
