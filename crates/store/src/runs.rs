//! Runs of workflows: one hash each, created by one script and saved by one script.
//!
//! The fields are opaque here: the engine decides which there are and what they hold. Two fields are the store's own:
//! the version and the place in the listing. A save compares the version, writes only what changed, and is one atomic
//! call. A version is a counter and the random nonce of the save that wrote it: after a failover, an old counter can come
//! back, and another replica can reach the same number. Every call may be sent twice.
//!
//! The order of a start is that of a submit: home, then list entry, then hash. The callers forward homes, carry out what
//! a run asks for, and decide when a run is over.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use bytes::Bytes;
use muster_domain::{JobId, RunId, Tenant, Time};

use crate::{
    Store, StoreError, keys,
    place::{Bucket, Place},
    router::Command,
    script::number,
    scripts,
};

/// When a new run is looked at first, unless it is forwarded.
const FIRST_LOOK: Duration = Duration::from_secs(30);
/// The names of the store's own fields: version and place.
const OWN: [&[u8]; 2] = [b"v", b"l"];

/// Which save a run was last written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunVersion {
    /// Grows by one with each save; 1 after the creation.
    pub counter: u64,
    /// The random number of the save.
    pub nonce: u64,
}

impl RunVersion {
    /// The version after a save with this nonce.
    pub fn next(self, nonce: u64) -> RunVersion {
        RunVersion { counter: self.counter.saturating_add(1), nonce }
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.counter.to_be_bytes(), self.nonce.to_be_bytes()].concat()
    }

    /// Reads the version; none if there is no run.
    fn from_bytes(raw: &[u8]) -> Result<Option<RunVersion>, StoreError> {
        if raw.is_empty() {
            return Ok(None);
        }
        let both = <[u8; 16]>::try_from(raw).map_err(|_| StoreError::Decode("the version of a run".into()))?;
        let both = u128::from_be_bytes(both);
        Ok(Some(RunVersion { counter: (both >> 64) as u64, nonce: both as u64 }))
    }
}

/// The result of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreatedRun {
    /// The run exists now, with this version.
    Created {
        /// The first version.
        version: RunVersion,
        /// Redis time of the creation.
        now: Time,
    },
    /// A run with this id existed before, whatever it is. Its home is due now.
    Exists,
}

/// The result of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRun {
    /// Everything was written.
    Saved {
        /// The version now.
        version: RunVersion,
        /// Redis time of the save.
        now: Time,
    },
    /// The run has another version, and nothing was written.
    Conflict {
        /// The version now; none if there is no such run.
        now: Option<RunVersion>,
    },
}

/// A run as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The version.
    pub version: RunVersion,
    /// The fields that were read.
    pub fields: HashMap<Bytes, Bytes>,
    /// Redis time of the answer, by the clock of the run's node.
    pub now: Time,
    /// The run's place in the listing. An entry at any other place is left over from a repeated start.
    pub(crate) place: Option<Place>,
}

fn raw<'a>(fields: impl IntoIterator<Item = &'a Bytes>) -> Vec<Vec<u8>> {
    fields.into_iter().map(|bytes| bytes.to_vec()).collect()
}

/// Refuses the store's own names.
fn check<'a>(names: impl IntoIterator<Item = &'a Bytes>) -> Result<(), StoreError> {
    match names.into_iter().find(|name| OWN.contains(&name.as_ref())) {
        None => Ok(()),
        Some(name) => Err(StoreError::Decode(format!("the field {name:?} of a run belongs to the store"))),
    }
}

impl Store {
    /// Creates a run of a tenant with these fields, in the order home, list entry, hash. Repeating a call with the same
    /// nonce is harmless. If the id is taken, whatever the content, nothing of that run is changed, and its home is
    /// forwarded to now, because it was set as for a new run. After an error the run may or may not exist; a home
    /// without a run is dropped when it is due, and a list entry without a run is not shown.
    pub async fn create_run(
        &self,
        id: RunId,
        tenant: &Tenant,
        fields: &[(Bytes, Bytes)],
        nonce: u64,
    ) -> Result<CreatedRun, StoreError> {
        check(fields.iter().map(|(name, _)| name))?;
        self.set_homes(&[id], FIRST_LOOK).await?;
        let places = self.place(tenant, Bucket::at(self.now()), &[id]).await?;
        let place = places.first().ok_or_else(|| StoreError::Decode("no place".into()))?;
        let version = RunVersion { counter: 1, nonce };
        let call = scripts::run::Create {
            key: keys::run(id),
            version: version.to_bytes(),
            place: place.to_bytes().to_vec(),
            fields: raw(fields.iter().flat_map(|(name, value)| [name, value])),
        };
        let reply = self.run(call).await?;
        let now = Time(reply.now);
        self.note_time(now);
        if reply.created == 1 {
            return Ok(CreatedRun::Created { version, now });
        }
        self.forward_homes(&[(id, Duration::ZERO)]).await?;
        Ok(CreatedRun::Exists)
    }

    /// Reads a run with all its fields; none if there is no such run.
    pub async fn read_run(&self, id: RunId) -> Result<Option<StoredRun>, StoreError> {
        self.read_runs(&[id], &[]).await.pop().unwrap_or(Ok(None))
    }

    /// Reads some fields of a run, those that exist.
    pub async fn read_run_fields(&self, id: RunId, names: &[&[u8]]) -> Result<Option<StoredRun>, StoreError> {
        // No names would mean all fields.
        let names = if names.is_empty() { &[b"".as_slice()][..] } else { names };
        self.read_runs(&[id], names).await.pop().unwrap_or(Ok(None))
    }

    /// Reads runs, each with an answer of its own. No names: all fields.
    pub async fn read_runs(&self, ids: &[RunId], names: &[&[u8]]) -> Vec<Result<Option<StoredRun>, StoreError>> {
        let call = |id: &RunId| scripts::run::Read {
            key: keys::run(*id),
            names: names.iter().map(|name| name.to_vec()).collect(),
        };
        let replies = self.run_many(ids.iter().map(call).collect()).await;
        let read = |reply: Result<scripts::run::ReadReply, StoreError>| {
            let reply = reply?;
            let now = Time(reply.now);
            self.note_time(now);
            let Some(version) = RunVersion::from_bytes(&reply.version)? else { return Ok(None) };
            let mut fields = HashMap::with_capacity(reply.fields.len() / 2);
            let mut both = reply.fields.into_iter().map(Bytes::from);
            while let (Some(name), Some(value)) = (both.next(), both.next()) {
                fields.insert(name, value);
            }
            Ok(Some(StoredRun { version, fields, now, place: Place::from_bytes(&reply.place) }))
        };
        replies.into_iter().map(read).collect()
    }

    /// Writes fields of a run and removes others, in one step, if its version is still the one that the caller has
    /// read: counter and nonce. A call that is sent again with the same nonce is one save. After an error the save may
    /// or may not have happened; the caller repeats it with the same nonce, or reads.
    pub async fn save_run(
        &self,
        id: RunId,
        seen: RunVersion,
        nonce: u64,
        set: &[(Bytes, Bytes)],
        remove: &[Bytes],
    ) -> Result<SavedRun, StoreError> {
        check(set.iter().map(|(name, _)| name).chain(remove))?;
        let next = seen.next(nonce);
        let call = scripts::run::Save {
            key: keys::run(id),
            seen: seen.to_bytes(),
            next: next.to_bytes(),
            set: 2 * set.len() as u64,
            fields: raw(set.iter().flat_map(|(name, value)| [name, value]).chain(remove)),
        };
        let reply = self.run(call).await?;
        let now = Time(reply.now);
        self.note_time(now);
        match reply.outcome {
            1 => Ok(SavedRun::Saved { version: next, now }),
            _ => Ok(SavedRun::Conflict { now: RunVersion::from_bytes(&reply.version)? }),
        }
    }

    /// Whether these runs are stored.
    pub async fn have_runs(&self, ids: &[RunId]) -> Vec<Result<bool, StoreError>> {
        let command = |id: &RunId| {
            let key = keys::run(*id);
            let mut cmd = redis::cmd("EXISTS");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(command).collect()).await;
        replies.into_iter().map(|reply| Ok(number::<u64>(&reply?)? > 0)).collect()
    }

    /// Those of these jobs whose runs are stored. Asks only about jobs that belong to a run.
    pub async fn in_stored_runs(&self, jobs: &[(JobId, Option<RunId>)]) -> Result<HashSet<JobId>, StoreError> {
        let runs: BTreeSet<RunId> = jobs.iter().filter_map(|(_, run)| *run).collect();
        if runs.is_empty() {
            return Ok(HashSet::new());
        }
        let runs: Vec<RunId> = runs.into_iter().collect();
        let mut stored = HashSet::new();
        for (run, answer) in runs.iter().zip(self.have_runs(&runs).await) {
            if answer? {
                stored.insert(*run);
            }
        }
        let kept = |(job, run): &(JobId, Option<RunId>)| run.is_some_and(|run| stored.contains(&run)).then_some(*job);
        Ok(jobs.iter().filter_map(kept).collect())
    }

    /// Deletes a run and its timeline, if its version is still the one that the caller has read; false if it is another
    /// one. Repeating is harmless, and finishes what an earlier call left undone.
    pub async fn delete_run(&self, id: RunId, seen: RunVersion) -> Result<bool, StoreError> {
        let reply = self.run(scripts::run::Delete { key: keys::run(id), seen: seen.to_bytes() }).await?;
        if reply.outcome == 2 {
            return Ok(false);
        }
        let key = keys::timeline(id);
        let mut cmd = redis::cmd("UNLINK");
        cmd.arg(key.as_bytes());
        self.router().call(Command::plain(cmd)).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_survives_its_bytes_and_is_both_of_its_numbers() {
        let version = RunVersion { counter: 3, nonce: u64::MAX - 1 };
        assert_eq!(RunVersion::from_bytes(&version.to_bytes()), Ok(Some(version)));
        assert_eq!(version.next(7), RunVersion { counter: 4, nonce: 7 });
        assert_eq!(RunVersion::from_bytes(b""), Ok(None));
        RunVersion::from_bytes(b"3").unwrap_err();
    }

    #[test]
    fn the_names_of_the_store_are_refused() {
        check(&[Bytes::from_static(b"head")]).unwrap();
        check(&[Bytes::from_static(b"head"), Bytes::from_static(b"v")]).unwrap_err();
    }
}
