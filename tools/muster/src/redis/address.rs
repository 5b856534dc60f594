//! Parses a `REDIS_URL`: one server, or some nodes of a cluster. The syntax is the same as for the services.

use reqwest::Url;

use crate::outcome::Failure;

/// One server and its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) tls: bool,
    pub(crate) database: u32,
}

/// Without the password, because it ends up in messages.
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// Another node of the same cluster.
    pub(crate) fn sibling(&self, host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port, ..self.clone() }
    }
}

/// The servers that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    /// True for a list, and for `redis+cluster://`.
    pub(crate) cluster: bool,
    pub(crate) nodes: Vec<Address>,
}

impl Servers {
    /// Parses one URL, several separated by commas, or `redis+cluster://`. In a list, a part without a scheme takes
    /// the scheme and credentials of the first.
    pub(crate) fn parse(url: &str) -> Result<Servers, Failure> {
        let named_cluster = url.contains("+cluster://");
        let url = url.replace("+cluster://", "://");
        let parts: Vec<&str> = url.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let (scheme, rest) = parts.first().and_then(|first| first.split_once("://")).unwrap_or(("redis", ""));
        let credentials = rest.rsplit_once('@').map_or(String::new(), |(credentials, _)| format!("{credentials}@"));
        let whole = |part: &&str| match part.contains("://") {
            true => (*part).to_owned(),
            false => format!("{scheme}://{credentials}{part}"),
        };
        let nodes = parts.iter().map(|part| address(&whole(part))).collect::<Result<Vec<_>, _>>()?;
        let cluster = named_cluster || nodes.len() > 1;
        if nodes.is_empty() || (cluster && nodes.iter().any(|node| node.database != 0)) {
            return Err(bad(&url));
        }
        Ok(Servers { cluster, nodes })
    }
}

fn address(text: &str) -> Result<Address, Failure> {
    let url = Url::parse(text).map_err(|_| bad(text))?;
    let tls = match url.scheme() {
        "redis" => false,
        "rediss" => true,
        _ => return Err(bad(text)),
    };
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| bad(text))?;
    let database = match url.path().trim_start_matches('/') {
        "" => 0,
        n => n.parse().map_err(|_| bad(text))?,
    };
    let said = |text: &str| (!text.is_empty()).then(|| decode(text));
    Ok(Address {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(6379),
        user: said(url.username()),
        password: url.password().and_then(said),
        tls,
        database,
    })
}

fn bad(url: &str) -> Failure {
    Failure::usage(format!("{:?} is not an address of Redis", mask(url))).hint(
        "like redis://:password@127.0.0.1:6379; several nodes of a cluster separated by commas, or redis+cluster://",
    )
}

/// Decodes percent-encoding: `%40` is `@`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A URL, or a list of them, without its passwords.
pub(crate) fn mask(urls: &str) -> String {
    let one = |url: &str| {
        let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
        let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
        match rest.rsplit_once('@') {
            None => url.to_owned(),
            Some((user, place)) => {
                let user = user.split_once(':').map_or("", |(user, _)| user);
                format!("{scheme}{user}:***@{place}")
            }
        }
    };
    urls.split(',').map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_the_services_read_them() {
        let one = Servers::parse("redis://:s%40cret@h").unwrap();
        assert!(!one.cluster);
        assert_eq!((one.nodes[0].to_string().as_str(), one.nodes[0].password.as_deref()), ("h:6379", Some("s@cret")));
        let many = Servers::parse("rediss+cluster://me:pw@a:1, b:2").unwrap();
        assert!(many.cluster && many.nodes.iter().all(|node| node.tls));
        assert_eq!(many.nodes[1].user.as_deref(), Some("me"));
        assert_eq!(many.nodes[1].password.as_deref(), Some("pw"));
        assert!(Servers::parse("redis://a:1,redis://b:2").unwrap().cluster);
        assert!(Servers::parse("redis+cluster://a:1").unwrap().cluster);
        assert_eq!(Servers::parse("redis+cluster://a:1,redis+cluster://b").unwrap().nodes.len(), 2);
        assert_eq!(Servers::parse("redis://h:1/3").unwrap().nodes[0].database, 3);
    }

    #[test]
    fn bad_urls_are_refused_without_showing_their_passwords() {
        for url in ["", "http://a", "redis://:hush@h:x", "redis+cluster://:hush@a:1/2", "redis://:hush@"] {
            let error = Servers::parse(url).unwrap_err().to_string();
            assert!(error.contains("not an address of Redis") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn passwords_are_masked_in_lists_too() {
        assert_eq!(mask("redis://:a@h:1,redis://me:b@i:2"), "redis://:***@h:1,redis://me:***@i:2");
        assert_eq!(mask("nats://h:1"), "nats://h:1");
        assert_eq!(mask("token@h:1"), ":***@h:1");
        assert!(!format!("{:?}", Servers::parse("redis://me:hush@h").unwrap()).contains("hush"));
    }
}
