//! The lines that HTTP workers were notified of: which jobs they may run besides those that require nothing. Notices
//! arrive only while a call is open, so the gateway remembers them between calls.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_domain::{Line, Topic, WorkerId};
use muster_wire::v1::Pool;
use tokio::time::Instant;

/// A line without a notice for this long has no jobs for its workers.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// The most workers that are remembered (`MOST`), and the most lines of each (`MOST_LINES`).
const MOST: usize = 10_000;
const MOST_LINES: usize = 256;

/// The lines that each worker was notified of, and until when each is valid.
#[derive(Default)]
pub(super) struct Told(Mutex<HashMap<WorkerId, HashMap<Line, Instant>>>);

impl Told {
    /// Remembers the lines in a notice to a worker.
    pub(super) fn note(&self, worker: &WorkerId, pools: &[Pool], now: Instant) {
        if pools.is_empty() {
            return;
        }
        let mut told = self.lock();
        if told.len() >= MOST {
            told.retain(|_, lines| lines.values().any(|until| *until > now));
        }
        let lines = told.entry(worker.clone()).or_default();
        lines.retain(|_, until| *until > now);
        let named = pools.iter().filter_map(|pool| Line::named(&pool.topic, &pool.pool).ok());
        for line in named.take(MOST_LINES) {
            lines.insert(line, now + FORGET_AFTER);
        }
    }

    /// The lines of these topics that are valid for a worker.
    pub(super) fn lines(&self, worker: &WorkerId, topics: &[Topic], now: Instant) -> Vec<Line> {
        let told = self.lock();
        let Some(lines) = told.get(worker) else { return Vec::new() };
        let hold = |(line, until): &(&Line, &Instant)| **until > now && topics.contains(line.topic());
        lines.iter().filter(hold).map(|(line, _)| line.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerId, HashMap<Line, Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_hears_of_the_lines_of_its_topics_until_nobody_speaks_of_them() {
        let (told, now, worker) = (Told::default(), Instant::now(), WorkerId::trusted("h~a~1"));
        let pool = |topic: &str| Pool { topic: topic.into(), pool: "0123456789abcdef".into(), ..Pool::default() };
        let topics = [Topic::parse("t").unwrap()];
        told.note(&worker, &[pool("t"), pool("other"), Pool { pool: "?".into(), ..pool("t") }], now);
        let held: Vec<String> = told.lines(&worker, &topics, now).iter().map(Line::to_string).collect();
        assert_eq!(held, ["t~0123456789abcdef"]);
        assert!(told.lines(&WorkerId::trusted("h~b~1"), &topics, now).is_empty());
        assert!(told.lines(&worker, &topics, now + FORGET_AFTER).is_empty());
    }
}
