//! Parses text into a value of the declared kind, or returns a sentence that says what is wrong.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    Kind,
    faults::{Fault, nearest},
};

/// A setting's value after reading.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Int(i64),
    Number(f64),
    Bool(bool),
    Duration(Duration),
    Addr(SocketAddr),
    List(Vec<String>),
}

/// Parses `text` as `kind`; the fault names `place`.
pub(super) fn parse(kind: Kind, text: &str, place: &str) -> Result<Value, Fault> {
    let wrong = |problem: String| Fault::new(place, problem);
    match kind {
        Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::Name => match is_name(text) {
            true => Ok(Value::Text(text.to_owned())),
            false => Err(wrong(format!("`{text}` is not a name; use letters, digits, `.`, `_`, `-`, at most 128"))),
        },
        Kind::Url(schemes) => match check_urls(text, schemes) {
            Ok(()) => Ok(Value::Text(text.to_owned())),
            Err(problem) => Err(wrong(problem)),
        },
        Kind::HttpUrl => match check_http_url(text) {
            Ok(()) => Ok(Value::Text(text.to_owned())),
            Err(problem) => Err(wrong(problem)),
        },
        Kind::Int { min, max } => match text.replace('_', "").parse::<i64>() {
            Ok(n) if (min..=max).contains(&n) => Ok(Value::Int(n)),
            Ok(n) => Err(wrong(format!("{n} is outside {min} to {max}"))),
            Err(_) => Err(wrong(format!("`{text}` is not a whole number"))),
        },
        Kind::Number { min, max } => match text.replace('_', "").parse::<f64>() {
            Ok(n) if (min..=max).contains(&n) => Ok(Value::Number(n)),
            Ok(n) if n.is_finite() => Err(wrong(format!("{n} is outside {min} to {max}"))),
            _ => Err(wrong(format!("`{text}` is not a number; write 500 or 0.5"))),
        },
        Kind::Keys { min } => check_keys(text, min).map_err(wrong),
        Kind::Bool => match parse_bool(text) {
            Some(answer) => Ok(Value::Bool(answer)),
            None => Err(wrong(format!("`{text}` is neither true nor false"))),
        },
        Kind::OnlyTrue { why } => match parse_bool(text) {
            Some(true) => Ok(Value::Bool(true)),
            Some(false) => Err(wrong(format!("false is refused: {why}"))),
            None => Err(wrong(format!("`{text}` is neither true nor false"))),
        },
        Kind::Duration { min, max } => match parse_duration(text) {
            Some(span) if (min..=max).contains(&span) => Ok(Value::Duration(span)),
            Some(_) => Err(wrong(format!("{text} is outside {} to {}", duration_text(min), duration_text(max)))),
            None => Err(wrong(format!("`{text}` is not a duration; write 250ms, 30s, 5m or 1h"))),
        },
        Kind::Addr => match parse_addr(text) {
            Some(addr) => Ok(Value::Addr(addr)),
            None => Err(wrong(format!("`{text}` is not an address; write 127.0.0.1:8081 or :8081"))),
        },
        Kind::HostPort => match is_host_port(text) {
            true => Ok(Value::Text(text.to_owned())),
            false => Err(wrong(format!("`{text}` is not a host; write replica-1.example, 10.0.0.7 or 10.0.0.7:9090"))),
        },
        Kind::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Ok(Value::List(items.map(str::to_owned).collect()))
        }
        Kind::Choice(words) => match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
            Some(word) => Ok(Value::Text((*word).to_owned())),
            None => Err(Fault {
                suggestion: nearest(text, words.iter().copied()).map(str::to_owned),
                ..wrong(format!("`{text}` is not one of {}", words.join(", ")))
            }),
        },
        Kind::LogFilter => match muster_telemetry::trace::check_filter(text) {
            Ok(()) => Ok(Value::Text(text.to_owned())),
            Err(fault) => Err(wrong(format!("`{text}` is not a log filter: {fault}"))),
        },
    }
}

/// Parses the keys; a fault never shows any of them.
fn check_keys(text: &str, min: usize) -> Result<Value, String> {
    let keys: Vec<&str> = text.split(',').map(str::trim).collect();
    let made = "create one with `openssl rand -hex 24`";
    for (n, key) in keys.iter().enumerate() {
        let which = if keys.len() == 1 { "the key".to_owned() } else { format!("key {} of {}", n + 1, keys.len()) };
        if key.is_empty() {
            return Err(match keys.len() {
                1 => format!("contains no key; {made}, or remove the setting"),
                _ => format!("{which} is empty; remove the comma, or {made}"),
            });
        }
        if !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("{which} contains characters that are not allowed in a header; {made}"));
        }
        if key.len() < min {
            return Err(format!("{which} has fewer than {min} characters; {made}"));
        }
    }
    Ok(Value::List(keys.into_iter().map(str::to_owned).collect()))
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&text.len()) && text.chars().all(fits)
}

fn is_host_port(text: &str) -> bool {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return !addr.ip().is_unspecified() && addr.port() > 0;
    }
    let bare = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return !ip.is_unspecified();
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    // Digits and dots alone are a broken IP address, not a name.
    let is_name = host.trim_end_matches('.').split('.').all(part) && host.bytes().any(|b| b.is_ascii_alphabetic());
    is_name && host.len() <= 253 && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Some(true),
        "false" | "0" | "no" => Some(false),
        _ => None,
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms: u64 = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(unit_ms)?))
}

/// A duration as settings write it, in the largest unit that needs no fraction.
pub fn duration_text(span: Duration) -> String {
    let ms = span.as_millis();
    for (unit_ms, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
        if ms > 0 && ms.is_multiple_of(unit_ms) {
            return format!("{}{unit}", ms / unit_ms);
        }
    }
    format!("{ms}ms")
}

fn parse_addr(text: &str) -> Option<SocketAddr> {
    if let Some(port) = text.strip_prefix(':') {
        return Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.parse().ok()?)));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?)));
    }
    text.parse().ok()
}

/// Checks a list of URLs. If a cluster is one of the schemes, each node after the first may be just `host:port`: it
/// takes the scheme and login of the first, as the store reads it.
fn check_urls(list: &str, schemes: &[&str]) -> Result<(), String> {
    let first = list.split_once("://").map(|(scheme, _)| scheme.trim());
    let inherited = first.filter(|_| schemes.iter().any(|scheme| scheme.ends_with("+cluster")));
    list.split(',').map(str::trim).enumerate().try_for_each(|(n, url)| match inherited {
        Some(scheme) if n > 0 && !url.contains("://") => check_url(&format!("{scheme}://{url}"), schemes),
        _ => check_url(url, schemes),
    })
}

fn check_url(url: &str, schemes: &[&str]) -> Result<(), String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("`{}` is not a URL that begins with {}://", mask_url(url), schemes.join(":// or ")));
    };
    if !schemes.contains(&scheme) {
        return Err(format!("scheme `{scheme}` is not one of {}", schemes.join(", ")));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') {
        return Err(format!("`{}` has no host", mask_url(url)));
    }
    Ok(())
}

fn check_http_url(url: &str) -> Result<(), String> {
    check_url(url, &["http", "https"])?;
    match url.parse::<axum::http::Uri>() {
        Err(fault) => Err(format!("`{}` is not a URL: {fault}", mask_url(url))),
        Ok(uri) if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) => {
            Err(format!("`{}` contains a login; put it into a header", mask_url(url)))
        }
        Ok(uri) if uri.query().is_some() || url.contains([',', '#']) => {
            Err(format!("`{url}` must be a single URL with only a scheme, a host and a path"))
        }
        Ok(_) => Ok(()),
    }
}

/// The same URLs without credentials: masks the password in `user:password@host`, and the token in `token@host`.
pub fn mask_url(urls: &str) -> String {
    let mask = |url: &str| {
        let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
        let Some((login, host)) = rest.rsplit_once('@') else { return url.to_owned() };
        let login = match login.split_once(':') {
            Some((user, _)) => format!("{user}:***"),
            None => "***".to_owned(),
        };
        let divider = if scheme.is_empty() { "" } else { "://" };
        format!("{scheme}{divider}{login}@{host}")
    };
    urls.split(',').map(mask).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        let good = [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("2d", 172_800_000), ("0", 0)];
        for (text, ms) in good {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "30", "s", "1.5s", "-1s", "30 s", "30sec", "99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!(duration_text(Duration::from_millis(90_000)), "90s");
        assert_eq!(duration_text(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(duration_text(Duration::from_secs(3600)), "1h");
    }

    #[test]
    fn keys_are_long_enough_visible_and_never_shown() {
        let read = |text: &str| parse(Kind::Keys { min: 8 }, text, "K");
        let both = Value::List(vec!["first-key".into(), "second-key".into()]);
        assert_eq!(read("first-key, second-key"), Ok(both));
        for (bad, says) in [
            ("", "contains no key"),
            (" ", "contains no key"),
            ("first-key,", "key 2 of 2 is empty"),
            (",first-key", "key 1 of 2 is empty"),
            ("first-key,hunter2", "key 2 of 2 has fewer than 8"),
            ("with a space", "not allowed in a header"),
        ] {
            let fault = read(bad).unwrap_err().to_string();
            assert!(fault.contains(says) && !fault.contains("hunter2"), "{bad:?}: {fault}");
        }
    }

    #[test]
    fn an_http_url_is_one_address_without_a_login() {
        let read = |text: &str| parse(Kind::HttpUrl, text, "U").map_err(|fault| fault.to_string());
        for good in ["http://127.0.0.1:4318", "https://otel.example/in/", "http://[::1]:4318"] {
            assert_eq!(read(good), Ok(Value::Text(good.into())));
        }
        for (bad, says) in [
            ("127.0.0.1:4318", "begins with http://"),
            ("grpc://h:4317", "scheme `grpc`"),
            ("http://", "has no host"),
            ("http://a:4318,http://b:4318", "is"),
            ("http://h/?key=1", "a single URL"),
            ("http://me:hunter2@h", "contains a login"),
            ("http://h :1", "is not a URL"),
        ] {
            let fault = read(bad).unwrap_err();
            assert!(fault.contains(says) && !fault.contains("hunter2"), "{bad:?}: {fault}");
        }
    }

    #[test]
    fn a_host_may_have_a_port_and_is_never_all_addresses() {
        for good in ["replica-1.example", "pod_1", "10.0.0.7", "10.0.0.7:9090", "fd00::7", "[fd00::7]:9090", "h:1"] {
            assert!(is_host_port(good), "{good}");
        }
        for bad in
            ["", "0.0.0.0", "0.0.0.0:9090", "[::]:1", "::", "10.0.0:1", "h:0", "h:70000", ":9090", "a b", "http://h"]
        {
            assert!(!is_host_port(bad), "{bad}");
        }
    }

    #[test]
    fn numbers_may_be_fractions_within_their_bounds() {
        let read = |text: &str| parse(Kind::Number { min: 0.0, max: 1e9 }, text, "N");
        assert_eq!(read("0.5"), Ok(Value::Number(0.5)));
        assert_eq!(read("2_000"), Ok(Value::Number(2000.0)));
        for bad in ["fast", "-5", "NaN", "inf", "1e10", ""] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_may_leave_the_host_out() {
        assert_eq!(parse_addr(":8081"), Some("0.0.0.0:8081".parse().unwrap()));
        assert_eq!(parse_addr("localhost:1"), Some("127.0.0.1:1".parse().unwrap()));
        assert_eq!(parse_addr("[::1]:1"), Some("[::1]:1".parse().unwrap()));
        assert_eq!(parse_addr("8081"), None);
        assert_eq!(parse_addr(":99999"), None);
    }

    #[test]
    fn passwords_in_urls_are_masked() {
        assert_eq!(mask_url("redis://me:p@ss@h:1/0,redis://:x@h:2"), "redis://me:***@h:1/0,redis://:***@h:2");
        assert_eq!(mask_url("nats://token@h:1"), "nats://***@h:1");
        assert_eq!(mask_url("redis://127.0.0.1:6379"), "redis://127.0.0.1:6379");
    }
}
