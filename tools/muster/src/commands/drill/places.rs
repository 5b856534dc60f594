//! The hash slots of a Redis cluster: those of job records and of the audit log, and those of a killed primary. Reads
//! the names of the keys from Redis, because only the store builds them.

use std::{ops::RangeInclusive, path::Path};

use anyhow::Context;
use muster_domain::Time;
use tokio::process::Command;

/// The number of hash slots of every Redis cluster.
const SLOTS: u16 = 16_384;

/// A primary that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Death {
    /// Its hash slots.
    pub(super) slots: Vec<RangeInclusive<u16>>,
    /// It was alive at the first time, and dead at the second.
    pub(super) between: (Time, Time),
}

impl Death {
    /// The death of the primary with these slots, in the notation of `CLUSTER NODES`.
    pub(super) fn of(slots: &str, between: (Time, Time)) -> Death {
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        // A slot that moves to or from another node has one more entry in brackets, which is skipped.
        Death { slots: slots.split(' ').filter_map(range).collect(), between }
    }

    /// Whether it had this slot.
    pub(super) fn took(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// The hash slots of jobs and of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// The part of a record's key before the id of the job.
    before_id: String,
    /// The slot of the audit log; none if there is no log yet.
    pub(super) log: Option<u16>,
}

impl Places {
    /// Finds the keys on the primaries: the record of a job that exists, and the audit log.
    pub(super) async fn ask(redis_cli: &Path, addrs: &[String], job: &str) -> anyhow::Result<Places> {
        let (mut record, mut log) = (None, None);
        for addr in addrs {
            record = record.or(find(redis_cli, addr, &format!("*:{job}"), "hash").await?);
            log = log.or(find(redis_cli, addr, "*:audit", "stream").await?);
        }
        let record = record.with_context(|| format!("no primary has the record of {job}"))?;
        let before_id = record.strip_suffix(job).unwrap_or_default().to_owned();
        Ok(Places { before_id, log: log.map(|key| slot_of(&key)) })
    }

    /// The slot of a job's record, even if there is no record.
    pub(super) fn of(&self, job: &str) -> u16 {
        slot_of(&format!("{}{job}", self.before_id))
    }
}

/// The first key of this type on this node that matches the pattern.
async fn find(redis_cli: &Path, addr: &str, pattern: &str, kind: &str) -> anyhow::Result<Option<String>> {
    let (host, port) = addr.rsplit_once(':').context("no port")?;
    let scan = ["SCAN", "0", "MATCH", pattern, "COUNT", "10000000", "TYPE", kind];
    let output = Command::new(redis_cli).args(["-h", host, "-p", port]).args(scan).output().await?;
    anyhow::ensure!(output.status.success(), "redis-cli: {}", String::from_utf8_lossy(&output.stderr));
    // The first line is the cursor.
    Ok(String::from_utf8_lossy(&output.stdout).lines().nth(1).filter(|key| !key.is_empty()).map(str::to_owned))
}

/// The slot of a key without a hash tag: CRC16 (XMODEM), by the cluster specification.
fn slot_of(key: &str) -> u16 {
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % SLOTS
}

#[cfg(test)]
impl Places {
    /// Records and log of these names.
    pub(super) fn named(before_id: &str, log: &str) -> Places {
        Places { before_id: before_id.to_owned(), log: Some(slot_of(log)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(Places::named("a:", "foo").of("b"), slot_of("a:b"));
    }

    #[test]
    fn a_primary_takes_its_slots_with_it() {
        let death = Death::of("0-5460 7000 [93->-292f8b]", (Time(1), Time(2)));
        assert!([0, 93, 5_460, 7_000].iter().all(|&slot| death.took(slot)));
        assert!([5_461, 7_001, 16_383].iter().all(|&slot| !death.took(slot)));
    }
}
