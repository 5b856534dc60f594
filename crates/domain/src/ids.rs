//! Identities. A job's id says in its last hex digit which of the 16 home shards it lives in,
//! so everyone who has the id knows where its home is.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid, fmt::Hyphenated};

use crate::topic::{NameFault, Tenant};

/// How many home shards there are.
pub const SHARDS: u8 = 16;

/// A job's id: a UUIDv7 when minted, a UUIDv8 when derived from something a client named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Uuid);

impl JobId {
    /// A fresh, time-ordered id in the given home shard.
    pub fn mint(shard: u8) -> JobId {
        let mut bytes = *Uuid::now_v7().as_bytes();
        bytes[15] = (bytes[15] & 0xf0) | (shard % SHARDS);
        JobId(Uuid::from_bytes(bytes))
    }

    /// The id that (kind, tenant, key) always gives: the same request, the same job.
    pub fn derive(kind: &str, tenant: &Tenant, key: &str) -> JobId {
        let mut hash = Sha256::new();
        hash.update(kind.as_bytes());
        hash.update([0]);
        hash.update(tenant.as_str().as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let mut head = [0; 16];
        head.copy_from_slice(&digest[..16]);
        JobId(Builder::from_custom_bytes(head).into_uuid())
    }

    /// The home shard this job lives in.
    pub fn shard(self) -> u8 {
        self.0.as_bytes()[15] & 0x0f
    }

    /// The raw sixteen bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Reads the raw form; `None` unless it is exactly sixteen bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<JobId> {
        Uuid::from_slice(bytes).ok().map(JobId)
    }
}

impl JobId {
    /// Its text behind a prefix and before an end, without the detour by a formatter: keys and members are made by
    /// the thousands a second.
    pub fn text_within(&self, prefix: &str, end: &str) -> Vec<u8> {
        let mut text = Vec::with_capacity(prefix.len() + Hyphenated::LENGTH + end.len());
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(self.0.hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH]).as_bytes());
        text.extend_from_slice(end.as_bytes());
        text
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = NameFault;
    fn from_str(text: &str) -> Result<JobId, NameFault> {
        // Only the hyphenated form: one spelling per job, in URLs, keys and logs.
        if text.len() != 36 {
            return Err(NameFault::new("a job id is a UUID like 0198c0de-0000-7000-8000-000000000000"));
        }
        Uuid::try_parse(text)
            .map(JobId)
            .map_err(|_| NameFault::new("a job id is a UUID like 0198c0de-0000-7000-8000-000000000000"))
    }
}

/// A worker's name on the bus: `[A-Za-z0-9_-]{1,64}`, or `h~<tenant>~<id>` for one that speaks HTTP.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(String);

impl WorkerId {
    /// Reads a worker's own name as it gives it.
    pub fn parse(text: &str) -> Result<WorkerId, NameFault> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if text.is_empty() || text.len() > 64 || !text.bytes().all(fine) {
            return Err(NameFault::new("a worker id is 1 to 64 letters, digits, '_' or '-'"));
        }
        Ok(WorkerId(text.to_owned()))
    }

    /// The name on the bus of a worker that speaks HTTP, apart from every other tenant's.
    pub fn http(tenant: &Tenant, id: &WorkerId) -> WorkerId {
        WorkerId(format!("h~{tenant}~{}", id.0))
    }

    /// Reads a name from a record or a message that we wrote ourselves.
    pub fn trusted(text: impl Into<String>) -> WorkerId {
        WorkerId(text.into())
    }

    /// A random name for a worker that was given none.
    pub fn random(prefix: &str) -> WorkerId {
        WorkerId(format!("{prefix}-{:08x}", fastrand::u32(..)))
    }

    /// The name as the worker itself knows it.
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

/// Names one ask for a start. Only the same one hears `go` again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StartId(pub [u8; 8]);

impl StartId {
    /// A fresh one, for a delivery from the bus.
    pub fn random() -> StartId {
        StartId(fastrand::u64(..).to_be_bytes())
    }

    /// The one that a repeated HTTP lease request finds again.
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

/// A client's name for one lease request, so that a lost answer can be asked for again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(String);

impl RequestId {
    /// 1 to 128 visible ASCII characters.
    pub fn parse(text: &str) -> Result<RequestId, NameFault> {
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(NameFault::new("a request id is 1 to 128 visible ASCII characters"));
        }
        Ok(RequestId(text.to_owned()))
    }

    /// As given.
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
