//! Loopback ports for a stack. Free ports are taken from below the range that the kernel uses for outgoing
//! connections: a port that its process lost for a moment is then still free when the process comes back. Redis and
//! NATS nodes keep their ports from run to run, because the nodes of a Redis cluster find each other by them. A port
//! is assigned some time before its process listens on it, so each port is also locked against other stacks for as
//! long as this one runs.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    ops::RangeInclusive,
    path::PathBuf,
};

use anyhow::Context;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::{outcome::Failure, stack::replace_private};

/// The range that is searched for free ports.
const RANGE: RangeInclusive<u16> = 10_000..=31_999;

/// A Redis cluster node talks to the others on its port plus this offset.
pub(crate) const REDIS_BUS_OFFSET: u16 = 10_000;

/// The ports assigned so far, and those of earlier runs by name.
pub(crate) struct Ports {
    given: HashSet<u16>,
    /// Open as long as the ports are in use; the kernel unlocks them when this process ends.
    locks: Vec<Flock<File>>,
    kept: BTreeMap<String, u16>,
    file: PathBuf,
}

impl Ports {
    /// Reads the ports of earlier runs; a file that cannot be read counts as empty.
    pub(crate) fn load(file: PathBuf) -> Ports {
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ports { given: HashSet::new(), locks: Vec::new(), kept, file }
    }

    /// Saves the kept ports for the next run.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(&self.kept)?;
        replace_private(&self.file, &text).with_context(|| format!("cannot write {}", self.file.display()))
    }

    /// Any free port.
    pub(crate) fn free(&mut self) -> anyhow::Result<u16> {
        self.search(RANGE, |_| Vec::new())
    }

    /// The port that this name had before if it is free, otherwise a new one, which is kept from now on.
    pub(crate) fn keep(&mut self, name: &str) -> anyhow::Result<u16> {
        self.keep_with(name, RANGE, |_| Vec::new())
    }

    /// The same for a Redis cluster node, whose second port must be free too.
    pub(crate) fn keep_redis_node(&mut self, name: &str) -> anyhow::Result<u16> {
        let range = *RANGE.start()..=*RANGE.end() - REDIS_BUS_OFFSET;
        self.keep_with(name, range, |port| vec![port + REDIS_BUS_OFFSET])
    }

    /// The port of gateway number `n` (from 1) when the first has `base`; 0 means any.
    pub(crate) fn gateway(&mut self, base: u16, n: u16) -> anyhow::Result<u16> {
        if base == 0 {
            return self.free();
        }
        let Some(port) = n.checked_sub(1).and_then(|k| k.checked_mul(2)).and_then(|k| base.checked_add(k)) else {
            return Err(Failure::usage(format!("gateway-{n} has no port left above {base}")).into());
        };
        if !self.give(port) {
            let failure = Failure::new(format!("port {port} for gateway-{n} is in use"));
            return Err(failure.hint("`--port 0` picks free ports, `--port P` starts from another one").into());
        }
        Ok(port)
    }

    fn keep_with(
        &mut self,
        name: &str,
        range: RangeInclusive<u16>,
        also: impl Fn(u16) -> Vec<u16>,
    ) -> anyhow::Result<u16> {
        let before = self.kept.get(name).copied().filter(|port| range.contains(port));
        let port = match before.filter(|&port| self.give_all(port, &also(port))) {
            Some(port) => port,
            None => self.search(range, also)?,
        };
        self.kept.insert(name.to_owned(), port);
        Ok(port)
    }

    fn search(&mut self, range: RangeInclusive<u16>, also: impl Fn(u16) -> Vec<u16>) -> anyhow::Result<u16> {
        let reserved: HashSet<u16> = self.kept.values().copied().collect();
        (0..1_000)
            .map(|_| fastrand::u16(range.clone()))
            .filter(|port| !reserved.contains(port))
            .find(|&port| self.give_all(port, &also(port)))
            .context("no free port found on 127.0.0.1")
    }

    fn give_all(&mut self, port: u16, also: &[u16]) -> bool {
        also.iter().all(|&other| self.give(other)) && self.give(port)
    }

    fn give(&mut self, port: u16) -> bool {
        // Lock first: the check whether a port is free takes the port for a moment.
        !self.given.contains(&port) && self.lock(port) && is_free(port) && self.given.insert(port)
    }

    /// False if another stack has locked this port. True if no lock file can be created.
    fn lock(&mut self, port: u16) -> bool {
        let folder = std::env::temp_dir().join("muster-ports");
        let opened = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join(port.to_string())));
        let Ok(file) = opened else { return true };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => self.locks.push(lock),
            Err((_, fault)) => return fault != Errno::EWOULDBLOCK,
        }
        true
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(dir: &tempfile::TempDir) -> Ports {
        Ports::load(dir.path().join("ports.json"))
    }

    #[test]
    fn names_keep_their_ports_from_run_to_run() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = ports(&dir);
        let (redis, nats) = (first.keep_redis_node("redis-1").unwrap(), first.keep("nats-1").unwrap());
        first.save().unwrap();
        drop(first);
        let mut second = ports(&dir);
        assert_eq!((second.keep_redis_node("redis-1").unwrap(), second.keep("nats-1").unwrap()), (redis, nats));
        assert_ne!(redis, nats);
    }

    #[test]
    fn a_kept_port_that_somebody_else_took_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = ports(&dir);
        let port = first.keep("redis-1").unwrap();
        first.save().unwrap();
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert_ne!(ports(&dir).keep("redis-1").unwrap(), port);
    }

    #[test]
    fn stacks_that_start_at_once_get_different_ports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (ports(&dir), ports(&dir));
        let port = one.free().unwrap();
        assert!(is_free(port), "nobody listens yet");
        assert!(!other.give(port) && !one.give(port));
        drop(one);
        assert!(other.give(port), "free again when its stack has ended");
    }

    #[test]
    fn gateways_stand_two_apart_and_a_port_in_use_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut ports = ports(&dir);
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = ports.gateway(port, 1).unwrap_err();
        assert_eq!(error.to_string(), format!("port {port} for gateway-1 is in use"));
        let error = ports.gateway(port - 2, 2).unwrap_err();
        assert_eq!(error.to_string(), format!("port {port} for gateway-2 is in use"));
        assert!(ports.gateway(u16::MAX, 2).is_err());
        assert_ne!(ports.gateway(0, 1).unwrap(), ports.gateway(0, 2).unwrap());
    }
}
