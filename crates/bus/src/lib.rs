//! The only crate that knows NATS.
//!
//! Knows: every subject, stream and durable consumer; how to publish, pull, ask and tell.
//! Promises: what was acknowledged stands on its stream; streams and consumers that vanish are
//! made again; nothing here grows without bound or waits for ever while NATS is away; bytes
//! that cannot be read become a dead letter and never reach a caller. Leaves to others: what a
//! message means, and whether something must be published again (the records say so, not the
//! bus: a message here is work or a hint, never the truth).

mod answers;
mod appetite;
mod broadcast;
mod bus;
mod checkup;
mod error;
mod events;
mod group;
mod inspect;
mod jetstream;
mod mend;
mod offers;
mod publish;
mod pull;
mod request;
mod streams;
pub mod subjects;
mod sweep;

pub use appetite::{Appetite, MOST_OFFERS};
pub use broadcast::{Answer, Received, Subscription};
pub use bus::{Bus, BusSettings, Clock};
pub use checkup::{BusVitals, StreamVitals};
pub use error::BusError;
pub use events::{Events, Mark, Span};
pub use group::{GroupPublisher, GroupSettings};
pub use inspect::{ConsumerState, ResultsMark, StreamEnd};
pub use publish::PUBLISH_LIMIT;
pub use pull::{Consumer, Delivery, Follower, Receipt, Reread, RereadFrom, Told};
pub use streams::{ConsumerSpec, Stream};
pub use subjects::Subject;
