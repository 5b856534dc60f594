//! Identities, one type for each kind. The last hex digit of an id names one of the 16 home shards, so the id alone is
//! enough to find the home.

use std::{fmt, hash::Hash, str::FromStr};

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid, fmt::Hyphenated};

use crate::topic::{NameFault, Tenant};

/// How many home shards there are.
pub const SHARDS: u8 = 16;

/// An id whose last hex digit names its home shard.
pub trait ShardedId: Copy + Eq + Ord + Hash + fmt::Display + FromStr<Err = NameFault> + Send + Sync + 'static {
    /// The home shard of the id.
    fn shard(self) -> u8;

    /// The text of the id between a prefix and a suffix.
    fn text_within(&self, prefix: &str, end: &str) -> Vec<u8>;

    /// The raw sixteen bytes.
    fn as_bytes(&self) -> &[u8; 16];

    /// Reads the raw form; `None` unless it is exactly sixteen bytes.
    fn from_slice(bytes: &[u8]) -> Option<Self>;
}

/// Ids of several kinds: a UUIDv7 when minted, a UUIDv8 when derived from a name that a client chose.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $one:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh, time-ordered id in the given home shard.
            pub fn mint(shard: u8) -> $name {
                $name(mint(shard))
            }

            /// The id that (kind, tenant, key) always gives, so that a repeated request gets the same id.
            pub fn derive(kind: &str, tenant: &Tenant, key: &str) -> $name {
                $name(derive(kind, tenant, key))
            }

            /// The home shard of the id.
            pub fn shard(self) -> u8 {
                self.0.as_bytes()[15] & 0x0f
            }

            /// The raw sixteen bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Reads the raw form; `None` unless it is exactly sixteen bytes.
            pub fn from_slice(bytes: &[u8]) -> Option<$name> {
                Uuid::from_slice(bytes).ok().map($name)
            }

            /// The text of the id between a prefix and a suffix. It avoids the formatter, because keys and members are
            /// built thousands of times a second.
            pub fn text_within(&self, prefix: &str, end: &str) -> Vec<u8> {
                text_within(self.0, prefix, end)
            }
        }

        impl ShardedId for $name {
            fn shard(self) -> u8 {
                $name::shard(self)
            }

            fn text_within(&self, prefix: &str, end: &str) -> Vec<u8> {
                $name::text_within(self, prefix, end)
            }

            fn as_bytes(&self) -> &[u8; 16] {
                $name::as_bytes(self)
            }

            fn from_slice(bytes: &[u8]) -> Option<$name> {
                $name::from_slice(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = NameFault;

            fn from_str(text: &str) -> Result<$name, NameFault> {
                // Accept only the hyphenated form, so that an id has one spelling in URLs, keys and logs.
                let read = if text.len() == 36 { Uuid::try_parse(text).ok() } else { None };
                let wrong = concat!($one, " id is a UUID like 0198c0de-0000-7000-8000-000000000000");
                read.map($name).ok_or_else(|| NameFault::new(wrong))
            }
        }
    )+};
}

ids! {
    /// A job's id.
    JobId, "a job";
    /// The id of a run of a workflow.
    RunId, "a run";
    /// A schedule's id.
    ScheduleId, "a schedule";
    /// A bulk operation's id.
    OperationId, "an operation";
}

fn mint(shard: u8) -> Uuid {
    let mut bytes = *Uuid::now_v7().as_bytes();
    bytes[15] = (bytes[15] & 0xf0) | (shard % SHARDS);
    Uuid::from_bytes(bytes)
}

fn derive(kind: &str, tenant: &Tenant, key: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(kind.as_bytes());
    hash.update([0]);
    hash.update(tenant.as_str().as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut head = [0; 16];
    head.copy_from_slice(&digest[..16]);
    Builder::from_custom_bytes(head).into_uuid()
}

fn text_within(id: Uuid, prefix: &str, end: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(prefix.len() + Hyphenated::LENGTH + end.len());
    text.extend_from_slice(prefix.as_bytes());
    text.extend_from_slice(id.hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH]).as_bytes());
    text.extend_from_slice(end.as_bytes());
    text
}

/// A worker's name on the bus: `[A-Za-z0-9_-]{1,64}`, or `h~<tenant>~<id>` for a worker that uses HTTP.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(String);

impl WorkerId {
    /// Reads the name that a worker gives itself.
    pub fn parse(text: &str) -> Result<WorkerId, NameFault> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if text.is_empty() || text.len() > 64 || !text.bytes().all(fine) {
            return Err(NameFault::new("a worker id is 1 to 64 letters, digits, '_' or '-'"));
        }
        Ok(WorkerId(text.to_owned()))
    }

    /// The name on the bus of a worker that uses HTTP, distinct from the names of other tenants' workers.
    pub fn http(tenant: &Tenant, id: &WorkerId) -> WorkerId {
        WorkerId(format!("h~{tenant}~{}", id.0))
    }

    /// Takes a name from a record or a message that Muster wrote, without validating it.
    pub fn trusted(text: impl Into<String>) -> WorkerId {
        WorkerId(text.into())
    }

    /// A random name for a worker that has none.
    pub fn random(prefix: &str) -> WorkerId {
        WorkerId(format!("{prefix}-{:08x}", fastrand::u32(..)))
    }

    /// The name that the worker gave itself.
    pub fn own_name(&self) -> &str {
        self.0.rsplit('~').next().unwrap_or(&self.0)
    }

    /// The name on the bus and in records.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one start request. Only a repetition with the same id is answered `go` again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StartId(pub [u8; 8]);

impl StartId {
    /// A fresh id, for a delivery from the bus.
    pub fn random() -> StartId {
        StartId(fastrand::u64(..).to_be_bytes())
    }

    /// The id for an HTTP lease request. A repetition of the request derives the same id.
    pub fn derive(worker: &WorkerId, request: &RequestId, job: JobId, version: u32) -> StartId {
        let mut hash = Sha256::new();
        for part in [worker.as_str().as_bytes(), request.0.as_bytes(), job.as_bytes(), &version.to_be_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        StartId(id)
    }
}

/// A client's name for one lease request, with which the client can ask again after a lost answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(String);

impl RequestId {
    /// Reads a request id: 1 to 128 visible ASCII characters.
    pub fn parse(text: &str) -> Result<RequestId, NameFault> {
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(NameFault::new("a request id is 1 to 128 visible ASCII characters"));
        }
        Ok(RequestId(text.to_owned()))
    }

    /// The text as the client gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_ids_live_in_the_shard_they_were_minted_for() {
        for shard in 0..SHARDS {
            let id = JobId::mint(shard);
            assert_eq!(id.shard(), shard);
            assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
            assert!(id.to_string().ends_with(&format!("{shard:x}")));
        }
    }

    #[test]
    fn derived_ids_depend_on_every_part_and_nothing_else() {
        let (a, b) = (Tenant::parse("a").unwrap(), Tenant::parse("b").unwrap());
        let id = JobId::derive("job", &a, "k");
        assert_eq!(id, JobId::derive("job", &a, "k"));
        assert_ne!(id, JobId::derive("job", &b, "k"));
        assert_ne!(id, JobId::derive("retry", &a, "k"));
        assert_ne!(id, JobId::derive("job", &a, "l"));
        assert_eq!(id.to_string().as_bytes()[14], b'8', "derived ids are UUIDv8");
    }

    #[test]
    fn ids_of_different_kinds_are_alike_in_text_and_apart_in_type() {
        let job = JobId::mint(3);
        assert_eq!(job.to_string().parse::<RunId>().unwrap().to_string(), job.to_string());
        let faults = ["x".parse::<JobId>().unwrap_err(), "x".parse::<OperationId>().unwrap_err()];
        let kinds = faults.map(|fault| fault.to_string().split(" is ").next().unwrap().to_owned());
        assert_eq!(kinds, ["a job id", "an operation id"]);
    }

    #[test]
    fn other_spellings_of_an_id_are_refused() {
        let id = JobId::mint(3).to_string();
        assert!(id.replace('-', "").parse::<JobId>().is_err());
        assert!(format!("{{{id}}}").parse::<JobId>().is_err());
        assert!("not-an-id".parse::<JobId>().is_err());
    }

    #[test]
    fn http_workers_keep_their_name_and_gain_their_tenant() {
        let own = WorkerId::parse("w_1").unwrap();
        let on_bus = WorkerId::http(&Tenant::parse("acme").unwrap(), &own);
        assert_eq!(on_bus.as_str(), "h~acme~w_1");
        assert_eq!(on_bus.own_name(), "w_1");
        assert!(WorkerId::parse("h~acme~w_1").is_err(), "nobody can claim a proxied name directly");
    }
}
