//! Tests of the bus against real NATS servers: its guarantees, through restarts, wipes and kills.

mod cluster;
mod credentials;
mod fixture;
mod following;
mod groups;
mod inspection;
mod offers;
mod publishing;
mod pulling;
mod recovery;
mod reread;
mod streams;
mod talking;
mod vitals;
