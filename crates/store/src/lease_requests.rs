//! Lease requests of HTTP workers: the offers that a request gets are written once, so that a repeated request gets the
//! same offers. Also the mark of a worker that was asked to leave.

use std::time::Duration;

use bytes::{Buf, BufMut};
use muster_domain::{JobId, RequestId, Tenant, WorkerId};

use crate::{Store, StoreError, keys, router::Command, script::number, scripts};

fn write(offers: &[(JobId, u32)]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(offers.len() * 20);
    for (id, version) in offers {
        raw.put_slice(id.as_bytes());
        raw.put_u32(*version);
    }
    raw
}

fn read(raw: &[u8]) -> Result<Vec<(JobId, u32)>, StoreError> {
    let wrong = || StoreError::Decode("a lease note".into());
    raw.chunks(20)
        .map(|item| {
            let (id, mut version) = item.split_at_checked(16).filter(|(_, v)| v.len() == 4).ok_or_else(wrong)?;
            Ok((JobId::from_slice(id).ok_or_else(wrong)?, version.get_u32()))
        })
        .collect()
}

impl Store {
    /// Notes which offers a request will be given, in one step. The first note wins and never changes; returns the
    /// stored one. Repeating is harmless.
    pub async fn note_lease(
        &self,
        tenant: &Tenant,
        worker: &WorkerId,
        request: &RequestId,
        offers: &[(JobId, u32)],
        ttl: Duration,
    ) -> Result<Vec<(JobId, u32)>, StoreError> {
        let reply = self
            .run(scripts::note::Put {
                key: keys::lease_note(tenant, worker, request),
                offers: write(offers),
                ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            })
            .await?;
        read(&reply.offers)
    }

    /// The stored note, if there is one; and whether the worker was asked to leave.
    pub async fn read_lease_note(
        &self,
        tenant: &Tenant,
        worker: &WorkerId,
        request: &RequestId,
    ) -> Result<(Option<Vec<(JobId, u32)>>, bool), StoreError> {
        let get = |verb: &str, key: keys::Key| {
            let mut cmd = redis::cmd(verb);
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let asked = vec![get("GET", keys::lease_note(tenant, worker, request)), get("EXISTS", keys::drain(worker))];
        let mut replies = self.router().many(asked).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::Decode("a reply is missing".into())));
        let note = match next()? {
            redis::Value::Nil => None,
            value => Some(read(&crate::script::bytes(value)?)?),
        };
        Ok((note, number::<u64>(&next()?)? == 1))
    }

    /// Whether the worker was asked to leave, and that still applies.
    pub async fn is_drained(&self, worker: &WorkerId) -> Result<bool, StoreError> {
        let key = keys::drain(worker);
        let mut cmd = redis::cmd("EXISTS");
        cmd.arg(key.as_bytes());
        Ok(number::<u64>(&self.router().call(Command::plain(cmd)).await?)? == 1)
    }

    /// Asks a worker to leave: it learns this whenever it asks for work within `ttl`. Repeating is harmless.
    pub async fn drain_worker(&self, worker: &WorkerId, ttl: Duration) -> Result<(), StoreError> {
        let key = keys::drain(worker);
        let mut cmd = redis::cmd("SET");
        cmd.arg(key.as_bytes()).arg("1").arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }
}
