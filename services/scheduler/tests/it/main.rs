//! The scheduler in-process, with a real Redis, a real NATS and hand-written workers.

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
mod runs;
mod scrub;
mod stack;
mod worker;
