//! The SDK against real NATS with a scheduler of our own making, and against a gateway of our own making.

mod it {
    mod client;
    mod gateway;
    mod scheduler;
    mod unreadable;
    mod worker;
}
