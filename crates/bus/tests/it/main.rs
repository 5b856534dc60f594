//! The bus against real NATS servers: what it promises, through restarts, wipes and kills.

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
