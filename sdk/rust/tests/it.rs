//! Tests of the SDK against real NATS with a fake scheduler, and against a fake gateway.

mod it {
    mod client;
    mod gateway;
    mod runs;
    mod scheduler;
    mod unreadable;
    mod worker;
}
