//! Free loopback ports. They lie below the range from which the kernel takes ports for outgoing
//! connections, so that a server can come back on its own port after a kill.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    fs::{self, File},
    hash::{BuildHasher, Hasher},
    net::TcpListener,
    sync::{Mutex, PoisonError},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A port that nobody listens on, given out once per process, and locked against other processes until this one
/// ends: a server that was stopped finds its port free, whatever a test program beside this one starts meanwhile.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeMap<u16, Option<Flock<File>>>> = Mutex::new(BTreeMap::new());
    for _ in 0..10_000 {
        let candidate = FIRST + (random() % u64::from(COUNT)) as u16;
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.contains_key(&candidate) || TcpListener::bind(("127.0.0.1", candidate)).is_err() {
            continue;
        }
        if let Ok(lock) = lock(candidate) {
            taken.insert(candidate, lock);
            return candidate;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// The lock that the stacks of `muster dev` take too. None where nothing can be locked, an error where another
/// process has it.
fn lock(port: u16) -> Result<Option<Flock<File>>, Errno> {
    let folder = std::env::temp_dir().join("muster-ports");
    let opened = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join(port.to_string())));
    let Ok(file) = opened else { return Ok(None) };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Err(Errno::EWOULDBLOCK),
        Err(_) => Ok(None),
    }
}

/// A random number from the only source of randomness in std.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
