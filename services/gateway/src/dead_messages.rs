//! Keeps messages that nobody could read, as they came.
//!
//! Promises: an undecodable message that any service put on `sys.job.dlq` is stored before it is
//! acked; the same message is stored once. Leaves to others: finding them, and showing them.

use std::time::Duration;

use muster_bus::{Bus, ConsumerSpec, Delivery, subjects};
use muster_domain::Time;
use muster_flow::failpoint;
use muster_store::{DeadMessage, Store};
use muster_wire::Body;
use tokio_util::sync::CancellationToken;

const AT_ONCE: usize = 64;
const EXPIRES: Duration = Duration::from_secs(30);
/// When Redis is away.
const AGAIN: Duration = Duration::from_secs(5);

/// Stores what arrives until the stop.
pub(crate) async fn keep(bus: &Bus, store: &Store, stop: &CancellationToken) -> anyhow::Result<()> {
    let consumer = bus.consumer(ConsumerSpec::gateway(subjects::dlq())).await?;
    loop {
        let deliveries = tokio::select! {
            () = stop.cancelled() => break,
            deliveries = consumer.fetch(AT_ONCE, EXPIRES) => deliveries.unwrap_or_default(),
        };
        for delivery in deliveries {
            handle(delivery, store).await;
        }
    }
    consumer.close().await;
    Ok(())
}

/// The dead letter's name: when its stream took it and where it stands there. A redelivery has the same; a stream
/// that was made anew counts from one again, and is told apart by the time.
fn name(stored_at: u64, sequence: u64) -> String {
    format!("{stored_at}-{sequence}")
}

async fn handle(delivery: Delivery, store: &Store) {
    let Body::DeadLetter(letter) = delivery.body else {
        // Rejecting it would put it right back here.
        delivery.receipt.ack().await;
        return;
    };
    let message = DeadMessage {
        id: name(delivery.stored_at, delivery.sequence),
        subject: letter.subject,
        reason: letter.reason,
        original: letter.original,
        at: Time(delivery.envelope.sent_at).some().unwrap_or_else(|| store.now()),
    };
    match store.add_dead_message(&message).await {
        Ok(()) => {
            failpoint!("dead_message.after_store");
            delivery.receipt.ack().await;
        }
        Err(_) => delivery.receipt.nak(AGAIN).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_name_and_no_other_has_it_though_the_stream_was_made_anew() {
        let (at, later) = (1_800_000_000_000_000_000, 1_800_000_000_000_000_001);
        assert_eq!(name(at, 1), name(at, 1), "delivered again");
        assert_ne!(name(at, 1), name(later, 1));
        assert_ne!(name(at, 1), name(at, 2));
    }
}
