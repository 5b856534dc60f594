//! The address at which other processes reach this replica's admin port.
//!
//! A replica that listens on all addresses must still announce one. The announced address is `MUSTER_ADVERTISE_ADDR` if
//! it is set, else the admin address if that is a specific one, and otherwise the local address that this process uses
//! to reach its stores. The kernel gives that address when a UDP socket is connected, which sends nothing. The address
//! is looked up again every [`AGAIN`], because a container may join another network. `store` announces it.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{net::lookup_host, time::timeout};

use crate::{
    settings::{
        Values,
        baseline::{ADVERTISE_ADDR, NATS_URL, REDIS_URL},
    },
    tasks::Tasks,
};

/// How often the address is looked up again.
const AGAIN: Duration = Duration::from_secs(30);
/// How often the address is looked up again while no store's name can be resolved.
const SOON: Duration = Duration::from_secs(1);
/// How long a name may take to be resolved.
const RESOLVE: Duration = Duration::from_secs(2);

/// The address to announce, kept up to date. Clones share the same address.
#[derive(Clone)]
pub struct Reach {
    now: Arc<RwLock<String>>,
}

impl Reach {
    /// The address of the admin port `admin`; a task of `tasks` keeps it up to date if it may change.
    pub(crate) fn follow(tasks: &Tasks, values: &Values, admin: SocketAddr) -> Reach {
        let reach = Reach { now: Arc::new(RwLock::new(admin.to_string())) };
        if let Some(given) = values.get(ADVERTISE_ADDR) {
            reach.set(with_port(given, admin.port()));
            return reach;
        }
        if !admin.ip().is_unspecified() {
            return reach;
        }
        let stores: Vec<String> = [REDIS_URL, NATS_URL].into_iter().flat_map(|url| hosts(values.get(url))).collect();
        let (kept, stop) = (reach.clone(), tasks.stopping());
        tasks.supervise("reach", move || {
            let (reach, stores, stop) = (kept.clone(), stores.clone(), stop.clone());
            async move {
                loop {
                    let found = local_towards(&stores).await;
                    let pause = if found.is_some() { AGAIN } else { SOON };
                    if let Some(ip) = found {
                        reach.set(SocketAddr::new(ip, admin.port()).to_string());
                    }
                    if timeout(pause, stop.cancelled()).await.is_ok() {
                        return Ok(());
                    }
                }
            }
        });
        reach
    }

    /// The address to announce now.
    pub fn now(&self) -> String {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, addr: String) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = addr;
    }
}

/// `host` or `host:port`; without a port, adds the admin port.
fn with_port(given: &str, port: u16) -> String {
    match given.rsplit_once(':') {
        Some((host, own)) if own.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')) => {
            given.to_owned()
        }
        _ if given.contains(':') && !given.starts_with('[') => format!("[{given}]:{port}"),
        _ => format!("{given}:{port}"),
    }
}

/// The `host:port` of each of these comma-separated URLs.
fn hosts(urls: &str) -> Vec<String> {
    let host = |url: &str| {
        let rest = url.trim().split_once("://").map_or(url.trim(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        // Any port will do: nothing is sent.
        (!place.is_empty()).then(|| with_port(place, 9))
    };
    urls.split(',').filter_map(host).collect()
}

/// The local address that leads to the first of `stores` on another machine; loopback if all stores are on this
/// machine.
async fn local_towards(stores: &[String]) -> Option<IpAddr> {
    let mut loopback = None;
    for store in stores {
        let Ok(Ok(found)) = timeout(RESOLVE, lookup_host(store.as_str())).await else { continue };
        for target in found {
            match local_to(target) {
                Ok(ip) if ip.is_loopback() => loopback = loopback.or(Some(ip)),
                Ok(ip) if !ip.is_unspecified() => return Some(ip),
                _ => {}
            }
        }
    }
    loopback
}

fn local_to(target: SocketAddr) -> std::io::Result<IpAddr> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_are_found_in_their_urls() {
        let urls =
            "rediss://me:p%40ss@a.example:6390/2, redis+cluster://b,redis://[fd00::1]:7000,nats://token@c:4222?x=1";
        assert_eq!(hosts(urls), ["a.example:6390", "b:9", "[fd00::1]:7000", "c:4222"]);
    }

    #[test]
    fn an_advertised_host_gets_the_admin_port_unless_it_has_one() {
        for (given, announced) in [
            ("pod-1.example", "pod-1.example:9090"),
            ("pod-1.example:80", "pod-1.example:80"),
            ("10.0.0.7", "10.0.0.7:9090"),
            ("fd00::7", "[fd00::7]:9090"),
            ("[fd00::7]", "[fd00::7]:9090"),
            ("[fd00::7]:80", "[fd00::7]:80"),
        ] {
            assert_eq!(with_port(given, 9090), announced);
        }
    }

    #[tokio::test]
    async fn the_way_to_a_store_on_this_machine_is_loopback() {
        let local = async |store: &str| local_towards(&[store.to_owned()]).await;
        assert_eq!(local("127.0.0.1:6379").await, Some("127.0.0.1".parse().unwrap()));
        assert_eq!(local("no-such-host.invalid:1").await, None);
    }

    #[tokio::test]
    async fn a_store_on_another_machine_counts_more_than_one_on_this() {
        // An address of another network. The test needs a route there, which a machine without any network lacks.
        let Ok(expected) = local_to("192.0.2.1:9".parse().unwrap()) else { return };
        let stores = ["127.0.0.1:6379".to_owned(), "192.0.2.1:4222".to_owned()];
        assert_eq!(local_towards(&stores).await, Some(expected));
        assert!(!expected.is_loopback() && !expected.is_unspecified());
    }
}
