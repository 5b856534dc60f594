//! Which key may call which route.
//!
//! Knows: the scopes, and the access that every route requires, in one table. Promises: no key can call a route that
//! is missing from the table; only the routes that the contract names as open are open. Leaves to others: identifying
//! the caller (`auth`), and hiding the jobs of other tenants (the routes answer that they are not found).

use http::Method;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Submit,
    Read,
    Payloads,
    Control,
    Worker,
    Approve,
    Policy,
    Admin,
}

impl Scope {
    pub(crate) const ALL: [Scope; 8] = [
        Scope::Submit,
        Scope::Read,
        Scope::Payloads,
        Scope::Control,
        Scope::Worker,
        Scope::Approve,
        Scope::Policy,
        Scope::Admin,
    ];

    /// The name of the scope in the API and in settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Scope::Submit => "submit",
            Scope::Read => "read",
            Scope::Payloads => "payloads",
            Scope::Control => "control",
            Scope::Worker => "worker",
            Scope::Approve => "approve",
            Scope::Policy => "policy",
            Scope::Admin => "admin",
        }
    }

    /// The bit of the scope in a set.
    fn bit(self) -> u16 {
        1 << self as u16
    }

    /// Parses the name of a scope.
    pub(crate) fn parse(text: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scopes(u16);

impl Scopes {
    /// The set of all scopes.
    pub(crate) fn all() -> Scopes {
        Scope::ALL.into_iter().collect()
    }

    /// Whether the set contains this scope.
    pub(crate) fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// The names of the scopes in the set.
    pub(crate) fn words(self) -> Vec<&'static str> {
        Scope::ALL.into_iter().filter(|scope| self.has(*scope)).map(Scope::as_str).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// What a caller needs to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key is needed.
    Open,
    /// Any key.
    Key,
    /// A key with this scope.
    Scope(Scope),
    /// A key for all tenants with the scope `admin`: the route concerns the whole fleet.
    Fleet,
}

/// Every route and the access that it requires. The busiest routes come first.
pub(crate) const TABLE: &[(Method, &str, Access)] = &[
    (Method::POST, "/api/v1/jobs", Access::Scope(Scope::Submit)),
    (Method::GET, "/api/v1/jobs/{id}", Access::Scope(Scope::Read)),
    (Method::POST, "/api/v1/jobs/batch", Access::Scope(Scope::Submit)),
    (Method::GET, "/api/v1/jobs", Access::Scope(Scope::Read)),
    (Method::POST, "/api/v1/worker/lease", Access::Scope(Scope::Worker)),
    (Method::POST, "/api/v1/worker/extend", Access::Scope(Scope::Worker)),
    (Method::POST, "/api/v1/worker/complete", Access::Scope(Scope::Worker)),
    (Method::POST, "/api/v1/worker/fail", Access::Scope(Scope::Worker)),
    (Method::POST, "/api/v1/worker/release", Access::Scope(Scope::Worker)),
    (Method::GET, "/api/v1/jobs/{id}/history", Access::Scope(Scope::Read)),
    (Method::GET, "/api/v1/jobs/{id}/explain", Access::Scope(Scope::Read)),
    (Method::POST, "/api/v1/jobs/{id}/cancel", Access::Scope(Scope::Control)),
    (Method::POST, "/api/v1/jobs/{id}/retry", Access::Scope(Scope::Control)),
    (Method::DELETE, "/api/v1/jobs/{id}", Access::Scope(Scope::Control)),
    (Method::GET, "/api/v1/events", Access::Scope(Scope::Read)),
    (Method::GET, "/api/v1/dlq", Access::Scope(Scope::Read)),
    (Method::GET, "/api/v1/dlq/summary", Access::Scope(Scope::Read)),
    (Method::DELETE, "/api/v1/dlq/messages/{id}", Access::Fleet),
    (Method::POST, "/api/v1/jobs/bulk", Access::Scope(Scope::Control)),
    (Method::GET, "/api/v1/operations", Access::Scope(Scope::Read)),
    (Method::GET, "/api/v1/operations/{id}", Access::Scope(Scope::Read)),
    (Method::POST, "/api/v1/operations/{id}/cancel", Access::Scope(Scope::Control)),
    (Method::GET, "/api/v1/topics", Access::Scope(Scope::Read)),
    (Method::GET, "/api/v1/topics/{topic}", Access::Scope(Scope::Read)),
    (Method::PUT, "/api/v1/topics/{topic}", Access::Scope(Scope::Admin)),
    (Method::POST, "/api/v1/topics/{topic}/pause", Access::Scope(Scope::Control)),
    (Method::POST, "/api/v1/topics/{topic}/resume", Access::Scope(Scope::Control)),
    (Method::GET, "/api/v1/workers", Access::Scope(Scope::Read)),
    (Method::POST, "/api/v1/workers/{id}/drain", Access::Scope(Scope::Control)),
    (Method::GET, "/api/v1/replicas", Access::Fleet),
    (Method::GET, "/api/v1/loops", Access::Fleet),
    (Method::GET, "/api/v1/locks", Access::Fleet),
    (Method::GET, "/api/v1/doctor", Access::Fleet),
    (Method::GET, "/api/v1/audit", Access::Scope(Scope::Admin)),
    (Method::GET, "/api/v1/audit/verify", Access::Fleet),
    (Method::GET, "/api/v1/config", Access::Scope(Scope::Admin)),
    (Method::PUT, "/api/v1/config", Access::Scope(Scope::Admin)),
    (Method::GET, "/api/v1/config/effective", Access::Scope(Scope::Admin)),
    (Method::POST, "/api/v1/keys", Access::Scope(Scope::Admin)),
    (Method::GET, "/api/v1/keys", Access::Scope(Scope::Admin)),
    (Method::DELETE, "/api/v1/keys/{id}", Access::Scope(Scope::Admin)),
    (Method::POST, "/api/v1/keys/{id}/rotate", Access::Scope(Scope::Admin)),
    (Method::GET, "/api/v1/whoami", Access::Key),
    (Method::GET, "/api/v1/status", Access::Open),
    (Method::GET, "/", Access::Open),
    (Method::GET, "/livez", Access::Open),
    (Method::GET, "/readyz", Access::Open),
    (Method::GET, "/openapi.json", Access::Open),
    (Method::GET, "/docs", Access::Open),
    (Method::GET, "/assets/{file}", Access::Open),
];

/// The access that a request requires. An unknown path or method still requires a key, so that a caller without a key
/// cannot learn the shape of the API.
pub(crate) fn needed(method: &Method, pattern: Option<&str>) -> Access {
    let Some(pattern) = pattern else { return Access::Key };
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let row = TABLE.iter().find(|(m, p, _)| *p == pattern && m == method);
    row.map_or(Access::Key, |(_, _, access)| *access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_contract_names_is_open() {
        let open: Vec<&str> = TABLE.iter().filter(|(_, _, a)| *a == Access::Open).map(|(_, p, _)| *p).collect();
        assert_eq!(open, ["/api/v1/status", "/", "/livez", "/readyz", "/openapi.json", "/docs", "/assets/{file}"]);
        assert_eq!(needed(&Method::GET, None), Access::Key);
        assert_eq!(needed(&Method::POST, Some("/livez")), Access::Key);
        assert_eq!(needed(&Method::HEAD, Some("/livez")), Access::Open);
        assert_eq!(needed(&Method::PUT, Some("/api/v1/jobs")), Access::Key);
    }

    #[test]
    fn scopes_are_told_apart() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(scope));
            let one: Scopes = [scope].into_iter().collect();
            assert_eq!(one.words(), [scope.as_str()]);
            assert!(Scopes::all().has(scope));
        }
        assert_eq!(Scope::parse("root"), None);
    }
}
