//! Restores lost entries of listings.
//!
//! A record holds its place in the listing. If another job or nothing is at that place, the list was lost or cut short.
//! The job then gets its place back if it is free, so that the order and the cursors stay valid. Otherwise the job is
//! added at the end of its ten minutes, and the new place is written to its record by compare-and-set.

use std::collections::BTreeMap;

use muster_domain::{JobId, Tenant};

use crate::{
    Store, StoreError, keys,
    place::{Bucket, Listing, Place},
    record::Record,
    router::Command,
    scripts,
};

/// The most positions that one call fills with blanks, so that it takes Redis at most some 20 ms. The entries of a list
/// that lacks more are restored out of order.
const BLANKS: u64 = 100_000;

/// A job and the place that its record names.
type Placed<'r> = (JobId, &'r Tenant, Place);

impl Store {
    /// Notes the listings of these jobs, and restores the entries that are not at the places in the records. Returns
    /// for each part of the work how many were restored.
    pub(super) async fn relist(&self, records: &[Record]) -> Vec<Result<u64, StoreError>> {
        let placed: Vec<Placed<'_>> =
            records.iter().filter_map(|r| r.place.map(|place| (r.id, &r.spec.tenant, place))).collect();
        let mut outcomes = self.note_all(&placed).await;
        let (mut missing, faults) = self.missing(&placed).await;
        outcomes.extend(faults.into_iter().map(Err));
        if missing.is_empty() {
            return outcomes;
        }
        // In the order of their places, so that jobs that are added at the end stay in that order.
        missing.sort_by_key(|(_, _, place)| (place.bucket(), place.position()));
        outcomes.extend(self.put_in_listings(&missing).await);
        // Retention may have dropped an empty listing since it was noted.
        outcomes.extend(self.note_all(&missing).await.into_iter().map(|noted| noted.map(|_| 0)));
        outcomes
    }

    async fn note_all(&self, placed: &[Placed<'_>]) -> Vec<Result<u64, StoreError>> {
        let mut buckets: BTreeMap<&Tenant, Vec<Bucket>> = BTreeMap::new();
        for (_, tenant, place) in placed {
            buckets.entry(tenant).or_default().push(place.bucket());
        }
        let note = |(tenant, mut buckets): (_, Vec<Bucket>)| async move {
            buckets.sort_unstable();
            buckets.dedup();
            self.note_buckets(Listing::Jobs, tenant, &buckets).await
        };
        futures_util::future::join_all(buckets.into_iter().map(note)).await
    }

    /// The jobs that are not at their places.
    async fn missing<'r>(&self, placed: &[Placed<'r>]) -> (Vec<Placed<'r>>, Vec<StoreError>) {
        let ask = |(_, tenant, place): &Placed<'_>| {
            let key = keys::listing(Listing::Jobs, tenant, place.bucket());
            let mut cmd = redis::cmd("LINDEX");
            cmd.arg(key.as_bytes()).arg(place.position());
            Command::plain(cmd)
        };
        let replies = self.router().many(placed.iter().map(ask).collect()).await;
        let (mut missing, mut faults) = (Vec::new(), Vec::new());
        for (item, reply) in placed.iter().zip(replies) {
            match reply {
                Ok(redis::Value::BulkString(id)) if id == item.0.as_bytes() => {}
                Ok(_) => missing.push(*item),
                Err(fault) => faults.push(fault),
            }
        }
        (missing, faults)
    }

    async fn put_in_listings(&self, missing: &[Placed<'_>]) -> Vec<Result<u64, StoreError>> {
        let call = |(id, tenant, place): &Placed<'_>| scripts::listing::PutBack {
            key: keys::listing(Listing::Jobs, tenant, place.bucket()),
            position: place.position(),
            most: BLANKS,
            job: id.as_bytes().to_vec(),
        };
        let replies = self.run_many(missing.iter().map(call).collect()).await;
        let (mut outcomes, mut moved) = (Vec::with_capacity(missing.len()), Vec::new());
        for ((id, _, place), reply) in missing.iter().zip(replies) {
            match reply {
                Ok(reply) if reply.position == place.position() => outcomes.push(Ok(1)),
                Ok(reply) => moved.push(scripts::job::Relist {
                    key: keys::job(*id),
                    read: place.to_bytes().to_vec(),
                    place: Place::new(place.bucket(), reply.position).to_bytes().to_vec(),
                }),
                Err(fault) => outcomes.push(Err(fault)),
            }
        }
        outcomes.extend(self.run_many(moved).await.into_iter().map(|reply| reply.map(|reply| reply.changed)));
        outcomes
    }
}
