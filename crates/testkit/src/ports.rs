//! Free loopback ports. They lie below the range from which the kernel takes ports for outgoing
//! connections, so that a server can come back on its own port after a kill.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    net::TcpListener,
    sync::{Mutex, PoisonError},
};

const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A port that nobody listens on, given out once per process. Another process may still take it
/// before it is bound: whoever starts a server on it tries again with another.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    for _ in 0..10_000 {
        let candidate = FIRST + (random() % u64::from(COUNT)) as u16;
        if TAKEN.lock().unwrap_or_else(PoisonError::into_inner).insert(candidate)
            && TcpListener::bind(("127.0.0.1", candidate)).is_ok()
        {
            return candidate;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// A random number from the only source of randomness in std.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
