//! The cost of a stretch of work: the CPU time of every process from the kernel, messages from NATS and commands from
//! Redis, before and after; and the memory of each process at the end.

use std::{collections::BTreeMap, fs};

use super::{figures::Figures, rig::Rig, stores};
use crate::stack::Process;

/// The kernel counts in hundredths of a second on all common architectures.
const MICROS_PER_TICK: u64 = 10_000;

/// The services whose CPU time is listed separately, in the order of a job's path.
pub(super) const SERVICES: [&str; 7] = ["gateway", "scheduler", "workflow", "worker", "redis", "nats", "client"];

/// Up to this many workers are listed separately; more of them are one row.
const WORKERS_NAMED: usize = 8;

/// A process whose costs are counted.
struct Payer {
    /// Its name in the stack.
    name: String,
    service: String,
    pid: u32,
    before: u64,
}

/// The counters at the start of a measurement.
pub(super) struct Meter<'a> {
    rig: &'a Rig,
    payers: Vec<Payer>,
    messages: u64,
    commands: u64,
}

impl Meter<'_> {
    /// Reads the counters of the stack, of these workers, and of the bench itself as the client.
    pub(super) async fn start<'a>(rig: &'a Rig, workers: &[u32]) -> anyhow::Result<Meter<'a>> {
        let (messages, commands) = (stores::messages(&rig.stack).await?, stores::commands(&rig.stack).await?);
        let payer = |name: String, service: &str, pid: u32| Payer {
            name,
            service: service.to_owned(),
            pid,
            before: cpu_us(pid).unwrap_or_default(),
        };
        let stack = rig.stack.processes.iter().map(|p: &Process| payer(p.name.clone(), &p.service, p.pid));
        let name = |n: usize| if workers.len() > WORKERS_NAMED { "workers".to_owned() } else { format!("worker-{n}") };
        let crew = workers.iter().enumerate().map(|(n, pid)| payer(name(n + 1), "worker", *pid));
        let payers = stack.chain(crew).chain([payer("bench".to_owned(), "client", std::process::id())]).collect();
        Ok(Meter { rig, payers, messages, commands })
    }

    /// Reads the counters again, and returns the cost of a job: `cpu.<service>`, `cpu.total` and, without the bench
    /// itself, `cpu.stack` in microseconds; `nats_messages` and `redis_commands`; and `rss.<service>` in MiB, the
    /// largest of its replicas. For each process: `process.<name>.cpu` and `process.<name>.rss`.
    pub(super) async fn per_job(&self, jobs: u64) -> anyhow::Result<Figures> {
        let mut figures = Figures::default();
        let (mut spent, mut memory) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u64>::new());
        let mut alone = BTreeMap::<&str, (u64, u64)>::new();
        for payer in &self.payers {
            // A process that was replaced meanwhile makes the sum meaningless.
            let now = cpu_us(payer.pid).filter(|now| *now >= payer.before);
            let now = now.ok_or_else(|| anyhow::anyhow!("a process of service {} has ended", payer.service))?;
            let resident = rss_bytes(payer.pid).unwrap_or_default();
            *spent.entry(&payer.service).or_default() += now - payer.before;
            let largest = memory.entry(&payer.service).or_default();
            *largest = (*largest).max(resident);
            let (micros, bytes) = alone.entry(&payer.name).or_default();
            *micros += now - payer.before;
            *bytes += resident;
        }
        let share = |amount: u64| amount as f64 / jobs.max(1) as f64;
        for (service, micros) in &spent {
            figures.put(&format!("cpu.{service}"), share(*micros));
        }
        figures.put("cpu.total", share(spent.values().sum()));
        let client = spent.get("client").copied().unwrap_or_default();
        figures.put("cpu.stack", share(spent.values().sum::<u64>() - client));
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (service, bytes) in memory {
            figures.put(&format!("rss.{service}"), mebibytes(bytes));
        }
        for (name, (micros, bytes)) in alone {
            figures.put(&format!("process.{name}.cpu"), share(micros));
            figures.put(&format!("process.{name}.rss"), mebibytes(bytes));
        }
        let stack = &self.rig.stack;
        figures.put("nats_messages", share(stores::messages(stack).await?.saturating_sub(self.messages)));
        figures.put("redis_commands", share(stores::commands(stack).await?.saturating_sub(self.commands)));
        Ok(figures)
    }

    /// CPU seconds since the start, of the stack and its workers, without the bench itself.
    pub(super) fn stack_seconds(&self) -> f64 {
        let stack = self.payers.iter().filter(|payer| payer.service != "client");
        let spent = stack.map(|payer| cpu_us(payer.pid).unwrap_or_default().saturating_sub(payer.before));
        spent.sum::<u64>() as f64 / 1e6
    }
}

/// User and system time of a process and its threads so far, in microseconds.
pub(super) fn cpu_us(pid: u32) -> Option<u64> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|ticks| ticks * MICROS_PER_TICK)
}

/// Fields 14 and 15. The second field is the program's name and may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// The resident memory of a process.
pub(super) fn rss_bytes(pid: u32) -> Option<u64> {
    resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_odd_program_names() {
        assert_eq!(ticks("1 (a b) (c) S 1 1 1 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 9 1 1"), Some(300));
        assert_eq!(ticks("nonsense"), None);
        assert!(cpu_us(std::process::id()).is_some());
    }

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    2048 kB\nThreads: 1\n"), Some(2 * 1024 * 1024));
        assert_eq!(resident("Name: x\n"), None);
        assert!(rss_bytes(std::process::id()).unwrap() > 0);
    }
}
