//! Access to Redis servers for an operator: addresses from a `REDIS_URL`, and commands through the `redis-cli`
//! program. A password goes into that program's environment, never on a command line that other users can see, and is
//! never printed.

mod address;
mod cli;
pub(crate) mod keys;
mod slots;

pub(crate) use address::{Address, Servers, mask};
pub(crate) use cli::{Cli, Stream};
pub(crate) use slots::slot_of;
