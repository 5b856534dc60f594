//! `--probe livez|readyz`: a health check without a shell or an HTTP client in the image.
//!
//! The probe asks a replica's own admin port and answers within [`LIMIT`]. It prints in one line
//! which part is not ready. An unspecified address such as `0.0.0.0` is asked on loopback.
//! `health.rs` defines readiness; a gateway that is `degraded` answers 200, so its probe succeeds.

use std::{
    fmt,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;

/// How long a probe may take.
const LIMIT: Duration = Duration::from_secs(2);
/// More bytes than any answer of the admin port has.
const LARGEST: u64 = 256 * 1024;

/// The question that the probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Does the process answer?
    Livez,
    /// May the process be given work?
    Readyz,
}

/// The words that `--probe` takes.
pub(crate) const WORDS: &[&str] = &["livez", "readyz"];

impl Probe {
    /// The probe with this name.
    pub(crate) fn parse(word: &str) -> Option<Probe> {
        match word {
            "livez" => Some(Probe::Livez),
            "readyz" => Some(Probe::Readyz),
            _ => None,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Probe::Livez => "livez",
            Probe::Readyz => "readyz",
        }
    }

    /// Asks the admin port. `Ok` holds the replica's answer, `Err` the reason why the probe fails.
    pub(crate) fn ask(self, admin: SocketAddr) -> Result<String, String> {
        if admin.port() == 0 {
            return Err("the system picks the admin port at start (port 0), so a probe cannot know it".to_owned());
        }
        let addr = reachable(admin);
        let url = format!("http://{addr}/{}", self.word());
        let answer = get(addr, self.word()).map_err(|fault| format!("no answer from {url}: {fault}"))?;
        let (status, body) = split(&answer).ok_or_else(|| format!("{url} did not answer HTTP"))?;
        let said: Value = serde_json::from_slice(body).unwrap_or_default();
        let word = said["status"].as_str().unwrap_or("answered");
        let line = match unready(&said) {
            parts if parts.is_empty() => word.to_owned(),
            parts => format!("{word}: {parts}"),
        };
        match status {
            200 => Ok(line),
            code => Err(format!("{line} ({url} answered {code})")),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The address at which this process reaches a listener on `admin`.
fn reachable(admin: SocketAddr) -> SocketAddr {
    let ip = match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, admin.port())
}

/// The parts that are not ready, each with its detail.
fn unready(said: &Value) -> String {
    let parts = said["parts"].as_object().into_iter().flatten().filter(|(_, part)| part["ready"] == false);
    let named = parts.map(|(name, part)| match part["detail"].as_str() {
        None | Some("") => name.clone(),
        Some(detail) => format!("{name} ({})", detail.replace('\n', " ")),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// The bytes of the answer. Uses HTTP/1.0, so that the server closes the connection after the
/// answer and does not chunk it.
fn get(addr: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + LIMIT;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer within 2 s")),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&addr, LIMIT)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nhost: {addr}\r\n\r\n")?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    while (answer.len() as u64) < LARGEST {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
            Err(fault) if fault.kind() == std::io::ErrorKind::Interrupted => {}
            // A socket that times out returns `WouldBlock`; `left` returns a readable error
            // instead.
            Err(fault) if fault.kind() == std::io::ErrorKind::WouldBlock => drop(left()?),
            Err(fault) => return Err(fault),
        }
    }
    Ok(answer)
}

/// Status code and body of an HTTP answer.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let code = head.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
    Some((code, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_asked_on_loopback() {
        for (given, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.1.2.3:9090", "10.1.2.3:9090"),
            ("[::1]:9090", "[::1]:9090"),
        ] {
            assert_eq!(reachable(given.parse().unwrap()), asked.parse().unwrap());
        }
    }

    #[test]
    fn only_parts_that_are_not_ready_are_named() {
        let said = serde_json::json!({"status": "unready", "parts": {
            "nats": {"ready": false, "detail": "connection\nrefused"},
            "loops": {"ready": false, "detail": ""},
            "redis": {"ready": true, "detail": ""},
        }});
        assert_eq!(unready(&said), "loops, nats (connection refused)");
        assert_eq!(unready(&Value::Null), "");
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        assert_eq!(split(b"HTTP/1.0 503 Service Unavailable\r\na: b\r\n\r\n{}"), Some((503, b"{}".as_slice())));
        assert_eq!(split(b"-ERR unknown command 'GET'\r\n\r\n"), None);
        assert_eq!(split(b""), None);
    }
}
