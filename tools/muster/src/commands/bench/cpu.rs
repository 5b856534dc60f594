//! What each process of a stack paid: CPU time from the kernel's books, before and after.

use std::fs;

use serde_json::{Map, Value};

use crate::{output, stack::Process};

/// The kernel counts in hundredths of a second, on every architecture that people run.
const MICROS_PER_TICK: u64 = 10_000;

/// CPU time of processes, taken when it was started.
pub(super) struct Meter {
    before: Vec<(String, u32, u64)>,
}

/// What they paid since, in microseconds.
pub(super) struct Paid {
    by_process: Vec<(String, u64)>,
}

impl Meter {
    /// Reads the stack's processes, the bench's worker and the bench itself.
    pub(super) fn start(processes: &[Process], worker: u32) -> Meter {
        let stack = processes.iter().map(|p| (p.name.clone(), p.pid));
        let ours = [("bench worker".to_owned(), worker), ("bench client".to_owned(), std::process::id())];
        let before = stack.chain(ours).map(|(name, pid)| (name, pid, spent(pid).unwrap_or_default())).collect();
        Meter { before }
    }

    /// Reads them again. A process that was replaced meanwhile is left out.
    pub(super) fn stop(self) -> Paid {
        let paid = |(name, pid, before): (String, u32, u64)| Some((name, spent(pid)?.checked_sub(before)?));
        Paid { by_process: self.before.into_iter().filter_map(paid).collect() }
    }
}

impl Paid {
    /// Microseconds of CPU a job, by process and in all.
    pub(super) fn per_job(&self, jobs: u64) -> Value {
        let mut all = Map::new();
        for (name, micros) in &self.by_process {
            all.insert(name.clone(), round(*micros, jobs).into());
        }
        all.insert("total".to_owned(), round(self.total(), jobs).into());
        Value::Object(all)
    }

    /// The same as a table.
    pub(super) fn show(&self, jobs: u64) {
        let row = |name: &str, micros: u64| {
            let seconds = micros as f64 / 1e6;
            vec![name.to_owned(), format!("{seconds:.2}"), format!("{:.1}", round(micros, jobs))]
        };
        let rows = self.by_process.iter().map(|(name, micros)| row(name, *micros));
        output::rows(&["PROCESS", "CPU s", "µs/job"], rows.chain([row("total", self.total())]));
    }

    fn total(&self) -> u64 {
        self.by_process.iter().map(|(_, micros)| micros).sum()
    }
}

fn round(micros: u64, jobs: u64) -> f64 {
    (micros as f64 / jobs as f64 * 10.0).round() / 10.0
}

/// User and system time of a process and its threads so far, in microseconds.
fn spent(pid: u32) -> Option<u64> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|ticks| ticks * MICROS_PER_TICK)
}

/// Fields 14 and 15. The second field is the program's name and may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_odd_program_names() {
        assert_eq!(ticks("1 (a b) (c) S 1 1 1 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 9 1 1"), Some(300));
        assert_eq!(ticks("nonsense"), None);
        assert!(spent(std::process::id()).is_some());
    }

    #[test]
    fn a_job_costs_its_share() {
        let paid = Paid { by_process: vec![("a".into(), 3_000_000), ("b".into(), 1_000_000)] };
        let shares = paid.per_job(100_000);
        assert_eq!((shares["a"].as_f64(), shares["total"].as_f64()), (Some(30.0), Some(40.0)));
    }
}
