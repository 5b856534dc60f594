//! Stores messages that a service could not decode, unchanged.
//!
//! Promises: an undecodable message that any service put on `sys.job.dlq` is stored before it is acked, and stored
//! once. Leaves to others: finding and showing these messages.

use std::time::Duration;

use muster_bus::{Bus, ConsumerSpec, Delivery, subjects};
use muster_domain::Time;
use muster_flow::failpoint;
use muster_store::{DeadMessage, Store};
use muster_wire::Body;
use tokio_util::sync::CancellationToken;

const AT_ONCE: usize = 64;
const EXPIRES: Duration = Duration::from_secs(30);
/// The pause before a redelivery when Redis does not answer.
const AGAIN: Duration = Duration::from_secs(5);

/// Stores the arriving messages until the gateway stops.
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

/// The id of the dead letter: the time at which its stream stored it, and its sequence number there. A redelivery has
/// the same id. A stream that was deleted and created again counts from one, and the time tells its messages apart.
fn name(stored_at: u64, sequence: u64) -> String {
    format!("{stored_at}-{sequence}")
}

async fn handle(delivery: Delivery, store: &Store) {
    let Body::DeadLetter(letter) = delivery.body else {
        // Rejecting the message would put it on this subject again.
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
