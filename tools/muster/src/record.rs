//! A cheap record of executions: the job and the time, by the machine's monotonic clock, which all processes share.
//! The worker of a bench writes it, and the bench reads it. Entries are collected and written a few milliseconds
//! later. Each write has whole entries only, so that several workers may share a file. A killed worker loses its last
//! few entries, a worker that leaves in order none.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};

/// The size of an entry in bytes: the job's id as text, then the time.
pub(crate) const ENTRY: usize = ID + 8;
const ID: usize = 36;
/// How long entries are collected before they are written.
const COLLECT: Duration = Duration::from_millis(5);

/// Microseconds by the clock that all processes of this machine share.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|_| nix::sys::time::TimeSpec::new(0, 0));
    now.tv_sec().unsigned_abs() * 1_000_000 + now.tv_nsec().unsigned_abs() / 1_000
}

/// Records executions.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    noted: Mutex<Noted>,
    changed: Condvar,
}

#[derive(Default)]
struct Noted {
    entries: Vec<u8>,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// Appends to this file.
    pub(crate) fn open(path: &Path) -> io::Result<Recorder> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let writer = std::thread::Builder::new().name("recorder".into()).spawn(move || keep_writing(file, &theirs))?;
        Ok(Recorder { shared, writer: Some(writer) })
    }

    /// Records that this job begins now.
    pub(crate) fn note(&self, job: &str) {
        let at = now_us().to_le_bytes();
        let mut noted = self.shared.lock();
        let first = noted.entries.is_empty();
        if job.len() == ID {
            noted.entries.extend_from_slice(job.as_bytes());
            noted.entries.extend_from_slice(&at);
        }
        drop(noted);
        if first {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn keep_writing(mut file: File, shared: &Shared) {
    let mut taken = Vec::new();
    let mut over = false;
    while !over {
        let mut noted = shared.lock();
        while noted.entries.is_empty() && !noted.over {
            noted = shared.changed.wait(noted).unwrap_or_else(PoisonError::into_inner);
        }
        if !noted.over {
            drop(noted);
            std::thread::sleep(COLLECT);
            noted = shared.lock();
        }
        over = noted.over;
        std::mem::swap(&mut noted.entries, &mut taken);
        drop(noted);
        if let Err(error) = file.write_all(&taken) {
            tracing::error!(%error, "executions cannot be recorded");
        }
        taken.clear();
    }
}

/// The entries of a file, each with its time in microseconds; invalid bytes are left out.
pub(crate) fn entries(bytes: &[u8]) -> impl Iterator<Item = (&str, u64)> {
    bytes.chunks_exact(ENTRY).filter_map(|entry| {
        let (id, at) = entry.split_at(ID);
        Some((std::str::from_utf8(id).ok()?, u64::from_le_bytes(at.try_into().ok()?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_can_be_read_back_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let ids = ["0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"];
        let before = now_us();
        let recorder = Recorder::open(&path).unwrap();
        ids.iter().for_each(|id| recorder.note(id));
        drop(recorder);
        let bytes = std::fs::read(&path).unwrap();
        let read: Vec<_> = entries(&bytes).collect();
        assert_eq!(read.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
        assert!(read.iter().all(|(_, at)| (before..=now_us()).contains(at)));
    }
}
