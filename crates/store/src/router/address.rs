//! Parses `REDIS_URL` in all its forms, and names nodes. Errors never contain a URL, because it may hold a password.

use std::{fmt, sync::Arc};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use crate::error::StoreError;

/// A node's host and port.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddr {
    host: Arc<str>,
    port: u16,
}

impl NodeAddr {
    /// The address with this host and port.
    pub fn new(host: &str, port: u16) -> NodeAddr {
        NodeAddr { host: host.into(), port }
    }

    /// Parses `host:port` as redirects contain it; an empty host means the host that answered.
    pub(super) fn parse(text: &str, answered_by: &NodeAddr) -> Option<NodeAddr> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { &*answered_by.host } else { host };
        Some(NodeAddr::new(host, port.parse().ok()?))
    }

    /// The host, or the path of a Unix socket.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; zero for a Unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn of(info: &ConnectionInfo) -> NodeAddr {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => NodeAddr::new(host, *port),
            other => NodeAddr::new(&other.to_string(), 0),
        }
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The content of `REDIS_URL`.
pub(super) struct Seeds {
    pub(super) cluster: bool,
    pub(super) nodes: Vec<(NodeAddr, ConnectionInfo)>,
}

impl Seeds {
    /// Parses one URL (standalone), several separated by commas, or `redis+cluster://` (cluster). In a list, a part
    /// without a scheme gets the scheme and the credentials of the first.
    pub(super) fn parse(url: &str) -> Result<Seeds, StoreError> {
        let config = |why: &str| StoreError::Config(format!("REDIS_URL {why}"));
        let named_cluster = url.contains("+cluster://");
        let url = url.replace("+cluster://", "://");
        let parts: Vec<&str> = url.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let cluster = named_cluster || parts.len() > 1;
        let (scheme, rest) = parts.first().and_then(|first| first.split_once("://")).unwrap_or(("redis", ""));
        let credentials = rest.rsplit_once('@').map_or(String::new(), |(credentials, _)| format!("{credentials}@"));
        let mut nodes = Vec::with_capacity(parts.len());
        for part in &parts {
            let whole =
                if part.contains("://") { (*part).to_owned() } else { format!("{scheme}://{credentials}{part}") };
            let info = whole.into_connection_info().map_err(|error| config(&format!("cannot be used: {error}")))?;
            if cluster && info.redis_settings().db() != 0 {
                return Err(config("names a database, but a cluster has only database 0"));
            }
            if cluster && matches!(info.addr(), ConnectionAddr::Unix(_)) {
                return Err(config("names a Unix socket, but a cluster needs a host and a port"));
            }
            let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
            nodes.push((NodeAddr::of(&info), info));
        }
        if nodes.is_empty() { Err(config("is empty")) } else { Ok(Seeds { cluster, nodes }) }
    }

    /// How to reach a node that the cluster named: with the settings of the first seed, at the node's address.
    pub(super) fn reach(template: &ConnectionInfo, node: &NodeAddr) -> ConnectionInfo {
        let (host, port) = (node.host().to_owned(), node.port());
        let addr = match template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        template.clone().set_addr(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> (bool, Vec<String>) {
        let seeds = Seeds::parse(url).unwrap();
        (seeds.cluster, seeds.nodes.iter().map(|(addr, _)| addr.to_string()).collect())
    }

    #[test]
    fn one_url_is_standalone_and_several_are_a_cluster() {
        assert_eq!(read("redis://h"), (false, vec!["h:6379".into()]));
        assert_eq!(read("redis://a:1,redis://b:2"), (true, vec!["a:1".into(), "b:2".into()]));
        assert_eq!(read("redis+cluster://a:1, b:2"), (true, vec!["a:1".into(), "b:2".into()]));
        assert_eq!(read("redis+cluster://a:1"), (true, vec!["a:1".into()]));
        assert_eq!(read("redis+cluster://a:1,redis+cluster://b"), (true, vec!["a:1".into(), "b:6379".into()]));
    }

    #[test]
    fn credentials_and_tls_hold_for_all_nodes() {
        let seeds = Seeds::parse("rediss+cluster://me:s%40cret@a:1,b:2").unwrap();
        for (_, info) in &seeds.nodes {
            assert_eq!(info.redis_settings().username(), Some("me"));
            assert_eq!(info.redis_settings().password(), Some("s@cret"));
            assert!(matches!(info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        }
        let found = Seeds::reach(&seeds.nodes[0].1, &NodeAddr::new("c", 3));
        assert_eq!(NodeAddr::of(&found), NodeAddr::new("c", 3));
        assert_eq!(found.redis_settings().password(), Some("s@cret"));
    }

    #[test]
    fn bad_urls_are_refused_without_showing_them() {
        for url in ["", "http://me:hunter2@h", "redis://me:hunter2@a/x", "redis://me:hunter2@a/1,b", "me:hunter2@"] {
            match Seeds::parse(url) {
                Err(StoreError::Config(why)) => assert!(!why.contains("hunter2"), "{why}"),
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("accepted {url}"),
            }
        }
    }

    #[test]
    fn redirects_may_leave_the_host_out() {
        let from = NodeAddr::new("10.0.0.1", 1);
        assert_eq!(NodeAddr::parse(":6381", &from), Some(NodeAddr::new("10.0.0.1", 6381)));
        assert_eq!(NodeAddr::parse("::1:6381", &from), Some(NodeAddr::new("::1", 6381)));
        assert_eq!(NodeAddr::parse("nonsense", &from), None);
    }
}
