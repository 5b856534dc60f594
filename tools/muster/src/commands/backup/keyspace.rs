//! The content of a Redis server: every key with its expiry and, if requested, its value; and how many keys there are
//! of each kind. The kind of a key is the word after the prefix that all keys of Muster share.
//!
//! This is the operator's view of the table of keys in the documentation. The few keys that are used by name are
//! generated from the store's own list (`redis::keys`).

use std::collections::{BTreeMap, HashSet};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::redis::{Cli, keys::PREFIX};

/// The kind of keys that are not Muster's.
const OTHER: &str = "other";

/// How many keys one step reads, without and with their values: a value may be half a megabyte.
const STEP: &str = "2000";
const STEP_WITH_VALUES: &str = "200";

/// One step of a walk. It only reads. For each key it returns: its length, when it expires (-1: never), its number of
/// members if it is a sorted set, the length of its value; then key and value as raw bytes.
const WALK: &str = r"
local step = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
local out = { step[1] .. '\n' }
for _, key in ipairs(step[2]) do
  local expires, members, value = redis.call('PEXPIRETIME', key), 0, ''
  if redis.call('TYPE', key).ok == 'zset' then members = redis.call('ZCARD', key) end
  if ARGV[3] == 'values' then value = redis.call('DUMP', key) or '' end
  if expires ~= -2 then
    out[#out + 1] = string.format('%d %.0f %d %d\n', #key, expires, members, #value)
    out[#out + 1] = key
    out[#out + 1] = value
  end
end
return table.concat(out)";

/// A key of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    /// When the key expires, in milliseconds since 1970.
    pub(super) expires: Option<u64>,
    /// The number of members of a sorted set.
    members: u64,
    /// The value as `DUMP` returns it; empty if it was not requested.
    pub(super) value: Vec<u8>,
}

/// A walk over all keys of a server, each once.
pub(super) struct Walk<'a> {
    cli: &'a Cli,
    database: u32,
    values: bool,
    cursor: Option<String>,
    /// A server that rehashes its table meanwhile may return a key twice.
    seen: HashSet<Vec<u8>>,
}

impl<'a> Walk<'a> {
    /// Walks over keys and their expiry.
    pub(super) fn keys(cli: &'a Cli, database: u32) -> Walk<'a> {
        Walk { cli, database, values: false, cursor: Some("0".into()), seen: HashSet::new() }
    }

    /// Walks over values too.
    pub(super) fn values(cli: &'a Cli, database: u32) -> Walk<'a> {
        Walk { values: true, ..Walk::keys(cli, database) }
    }

    /// The next keys; `None` when the walk is complete.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<Entry>>> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let (step, values) = if self.values { (STEP_WITH_VALUES, "values") } else { (STEP, "keys") };
        let database = self.database.to_string();
        let reply = self.cli.ask_bytes(&["-n", &database, "EVAL_RO", WALK, "0", &cursor, step, values]).await?;
        let (next, mut entries) = parse(&reply).context("an answer of Redis that cannot be read")?;
        entries.retain(|entry| self.seen.insert(entry.key.clone()));
        self.cursor = (next != "0").then_some(next);
        Ok(Some(entries))
    }
}

fn parse(reply: &[u8]) -> Option<(String, Vec<Entry>)> {
    let line = |bytes: &[u8]| -> Option<(String, usize)> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        Some((std::str::from_utf8(&bytes[..end]).ok()?.to_owned(), end + 1))
    };
    let (cursor, mut at) = line(reply)?;
    let mut entries = Vec::new();
    while at < reply.len() {
        let (head, length) = line(&reply[at..])?;
        at += length;
        let numbers: Vec<i64> = head.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [key_length, expires, members, value_length] = numbers.as_slice() else { return None };
        let mut take = |length: &i64| {
            let end = at.checked_add(usize::try_from(*length).ok()?)?;
            let bytes = reply.get(at..end)?.to_vec();
            at = end;
            Some(bytes)
        };
        let (key, value) = (take(key_length)?, take(value_length)?);
        entries.push(Entry {
            key,
            expires: u64::try_from(*expires).ok(),
            members: u64::try_from(*members).ok()?,
            value,
        });
    }
    Some((cursor, entries))
}

/// The number of keys. Expiring keys are counted separately: a snapshot that is loaded later has fewer of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyCounts {
    /// Keys that do not expire, by kind.
    pub(super) kinds: BTreeMap<String, u64>,
    /// Keys that expire: locks, leases, limits.
    pub(super) expiring: u64,
    /// The number of homes: one for each active job.
    pub(super) alive: u64,
}

impl KeyCounts {
    /// Counts all keys of a server.
    pub(super) async fn of(cli: &Cli, database: u32) -> anyhow::Result<KeyCounts> {
        let (mut counts, mut walk) = (KeyCounts::default(), Walk::keys(cli, database));
        while let Some(entries) = walk.next().await? {
            entries.iter().for_each(|entry| counts.add(entry));
        }
        Ok(counts)
    }

    /// Counts one more key.
    pub(super) fn add(&mut self, entry: &Entry) {
        let kind = kind(&entry.key);
        if kind == "due" {
            self.alive += entry.members;
        }
        match entry.expires {
            Some(_) => self.expiring += 1,
            None => *self.kinds.entry(kind).or_default() += 1,
        }
    }

    /// Adds the counts of another server.
    pub(super) fn merge(&mut self, other: &KeyCounts) {
        for (kind, n) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += n;
        }
        self.expiring += other.expiring;
        self.alive += other.alive;
    }

    /// The number of keys that do not expire.
    pub(super) fn lasting(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// The kinds whose numbers differ, one message each.
    pub(super) fn differences(&self, found: &KeyCounts) -> Vec<String> {
        let kinds: std::collections::BTreeSet<&String> = self.kinds.keys().chain(found.kinds.keys()).collect();
        let n = |counts: &KeyCounts, kind: &String| counts.kinds.get(kind).copied().unwrap_or(0);
        let differ = kinds.into_iter().filter(|kind| n(self, kind) != n(found, kind));
        differ.map(|kind| format!("{kind}: {} instead of {}", n(found, kind), n(self, kind))).collect()
    }
}

fn kind(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':'));
    rest.and_then(|rest| rest.split(':').next()).filter(|kind| !kind.is_empty()).unwrap_or(OTHER).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_any_bytes_are_read_as_they_are() {
        let reply = b"17\n3 -1 2 4\na\nb\0\n1 2x 1700000000000 0 0\nz";
        assert_eq!(parse(reply), None, "a head that is no head");
        let reply = b"17\n3 -1 2 4\na\nb\0\n121 1700000000000 0 0\nz";
        let (cursor, entries) = parse(reply).unwrap();
        assert_eq!(cursor, "17");
        assert_eq!(entries[0], Entry { key: b"a\nb".into(), expires: None, members: 2, value: b"\0\n12".into() });
        assert_eq!(entries[1], Entry { key: b"z".into(), expires: Some(1_700_000_000_000), members: 0, value: vec![] });
        assert_eq!(parse(b"0\n5 -1 0 0\nab"), None, "cut short");
    }

    #[test]
    fn keys_are_counted_by_kind_and_those_that_expire_apart() {
        let entry = |key: &str, expires, members| Entry { key: key.into(), expires, members, value: vec![] };
        let mut counts = KeyCounts::default();
        counts.add(&entry("muster:job:1", None, 0));
        counts.add(&entry("muster:job:2", None, 0));
        counts.add(&entry("muster:due:job:a", None, 7));
        counts.add(&entry("muster:reconciler:default", Some(1), 0));
        counts.add(&entry("cache", None, 0));
        assert_eq!((counts.lasting(), counts.expiring, counts.alive), (4, 1, 7));
        let mut less = counts.clone();
        less.kinds.insert("job".into(), 1);
        less.expiring = 0;
        assert_eq!(counts.differences(&less), ["job: 1 instead of 2"], "what expires is not compared");
        assert_eq!(counts.differences(&counts.clone()), Vec::<String>::new());
    }
}
