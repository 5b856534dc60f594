//! The scheduler in-process, against a real Redis and a real NATS, with workers made by hand.

mod backlog;
mod clock;
mod consult;
mod damage;
mod load;
mod outages;
mod path;
mod recovery;
mod replicas;
mod reread;
mod scrub;
mod stack;
mod worker;
