//! The bus against real NATS servers: what it promises, through restarts, wipes and kills.

mod cluster;
mod credentials;
mod fixture;
mod groups;
mod inspection;
mod publishing;
mod pulling;
mod recovery;
mod streams;
mod talking;
