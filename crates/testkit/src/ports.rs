//! Free loopback ports. They are below the range from which the kernel takes ports for outgoing connections, so that
//! a server can come back on its own port after a kill. Each port is locked for as long as this process runs, against
//! other test processes and against the stacks of `muster dev`: otherwise they could take it while its server is
//! down.

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

/// A port on which no process listens. It is given out once, and only to this process.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeMap<u16, Option<Flock<File>>>> = Mutex::new(BTreeMap::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..10_000 {
        let candidate = FIRST + (random() % u64::from(COUNT)) as u16;
        if taken.contains_key(&candidate) {
            continue;
        }
        // Lock first: the check whether a port is free takes the port for a moment.
        if let Ok(lock) = lock(candidate)
            && TcpListener::bind(("127.0.0.1", candidate)).is_ok()
        {
            taken.insert(candidate, lock);
            return candidate;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// Fails if another process has locked the port. Returns `None` if no lock file can be created.
fn lock(port: u16) -> Result<Option<Flock<File>>, Errno> {
    // The folder in which `muster dev` locks its ports.
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
