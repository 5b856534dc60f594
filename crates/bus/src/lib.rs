//! The only crate that knows NATS.
//!
//! This crate knows every subject, stream and durable consumer, and how to publish, pull, ask and broadcast. An
//! acknowledged message is on its stream. Streams and consumers that vanish are recreated. Nothing here grows without
//! bound or waits forever while NATS is away. Bytes that cannot be read become a dead letter and never reach a caller.
//! Other crates decide what a message means, and whether something must be published again (the records decide that,
//! not the bus: a message here is work or a hint, never the source of truth).

mod answers;
mod broadcast;
mod bus;
mod drift;
mod error;
mod events;
mod group;
mod inspect;
mod jetstream;
mod offers;
mod publish;
mod pull;
mod pull_size;
mod request;
mod schedulers;
mod stream_repair;
mod streams;
pub mod subjects;
mod sweep;
mod vitals;

pub use broadcast::{Answer, Received, Subscription};
pub use bus::{Bus, BusSettings, Clock};
pub use drift::Drift;
pub use error::BusError;
pub use events::{Events, Items, Mark, Span};
pub use group::{GroupPublisher, GroupSettings};
pub use inspect::{ConsumerState, ResultsMark, StreamEnd};
pub use publish::PUBLISH_LIMIT;
pub use pull::{Consumer, Delivery, Followed, Follower, Receipt, Reread, RereadFrom};
pub use pull_size::{MOST_OFFERS, PullSize};
pub use schedulers::Question;
pub use streams::{ConsumerSpec, PROGRESS, Stream};
pub use subjects::Subject;
pub use vitals::{BusVitals, StorageVitals, StreamVitals};
