//! The primaries of a Redis: one server, or the nodes of a cluster that own slots. Found by asking the servers
//! themselves, so that one reachable node is enough.

use std::ops::RangeInclusive;

use crate::{
    outcome::Failure,
    redis::{Cli, Servers},
};

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// A server that owns keys.
pub(super) struct Primary {
    pub(super) cli: Cli,
    /// Set only for a node of a cluster.
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

impl Primary {
    /// Whether a key with this slot belongs to this primary.
    pub(super) fn owns(&self, slot: u16) -> bool {
        self.slots.is_empty() || self.slots.iter().any(|range| range.contains(&slot))
    }

    /// The number of keys on the server, and how many of them expire.
    pub(super) async fn keys(&self) -> anyhow::Result<(u64, u64)> {
        let text = self.cli.ask(&["INFO", "keyspace"]).await?;
        Ok(keyspace(&text))
    }
}

/// Sums over all databases, because a server with keys in any database is not empty.
fn keyspace(text: &str) -> (u64, u64) {
    let field = |line: &str, name: &str| {
        let (_, fields) = line.split_once(':')?;
        fields.split(',').find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    let rows = text.lines().filter(|line| line.starts_with("db"));
    rows.fold((0, 0), |(keys, expires), line| {
        (keys + field(line, "keys").unwrap_or(0), expires + field(line, "expires").unwrap_or(0))
    })
}

/// All primaries, in the order of their slots. Refuses a cluster in which some slots have no owner.
pub(super) async fn find(servers: &Servers) -> anyhow::Result<Vec<Primary>> {
    let cli = first_that_answers(servers).await?;
    if cli.info("cluster", "cluster_enabled").await?.as_deref() != Some("1") {
        if servers.cluster {
            return Err(Failure::new(format!("Redis at {cli} is not a node of a cluster, but the URL says so")).into());
        }
        if cli.info("replication", "role").await?.as_deref() != Some("master") {
            let failure = Failure::new(format!("Redis at {cli} is a replica"));
            return Err(failure.hint("use the address of its primary: `redis-cli ROLE` shows it").into());
        }
        return Ok(vec![Primary { cli, slots: Vec::new() }]);
    }
    let nodes = cli.ask(&["CLUSTER", "NODES"]).await?;
    let mut found: Vec<Primary> = nodes.lines().filter_map(|line| node(&cli, line)).collect();
    found.sort_by_key(|primary| primary.slots.iter().map(|range| *range.start()).min());
    let served: u32 = found.iter().flat_map(|p| &p.slots).map(|range| u32::from(range.end() - range.start()) + 1).sum();
    if served != u32::from(SLOTS) {
        let failure = Failure::new(format!("only {served} of the {SLOTS} slots of the cluster have a primary"));
        return Err(failure.hint("start the missing primary first: `redis-cli CLUSTER NODES` shows it").into());
    }
    Ok(found)
}

async fn first_that_answers(servers: &Servers) -> anyhow::Result<Cli> {
    let mut last = None;
    for node in &servers.nodes {
        let cli = Cli::at(node.clone())?;
        match cli.ask(&["PING"]).await {
            Ok(_) => return Ok(cli),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Failure::usage("no address of Redis").into()))
}

/// Parses one line of `CLUSTER NODES`; `None` unless it is a live primary that owns slots.
fn node(asked: &Cli, line: &str) -> Option<Primary> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let flags: Vec<&str> = words.get(2)?.split(',').collect();
    if !flags.contains(&"master") || flags.contains(&"fail") || flags.contains(&"noaddr") {
        return None;
    }
    let slots: Vec<_> = words.get(8..)?.iter().filter_map(|word| range(word)).collect();
    let (host, port) = words[1].split(['@', ',']).next()?.rsplit_once(':')?;
    // A node that has met no other node does not know its own address.
    let host = if host.is_empty() { asked.host() } else { host };
    (!slots.is_empty()).then_some(Primary { cli: asked.sibling(host, port.parse().ok()?), slots })
}

fn range(word: &str) -> Option<RangeInclusive<u16>> {
    // Words in brackets are slots that move to another node.
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Servers;

    #[test]
    fn primaries_that_live_and_own_slots_are_found() {
        let asked = Cli::at(Servers::parse("redis://:pw@seed:1").unwrap().nodes.remove(0)).unwrap();
        let read = |line: &str| node(&asked, line).map(|p| (p.cli.to_string(), p.slots));
        let line = "07c3 10.0.0.2:6379@16379,redis-2 myself,master - 0 0 2 connected 0-5460 9000 [5461->-07c4]";
        assert_eq!(read(line), Some(("10.0.0.2:6379".into(), vec![0..=5460, 9000..=9000])));
        assert_eq!(
            read("07c3 :6379@16379 myself,master - 0 0 0 connected 0-16383"),
            Some(("seed:6379".into(), vec![0..=16383]))
        );
        for dead in ["master,fail", "slave", "master,noaddr"] {
            assert_eq!(read(&format!("07c3 10.0.0.2:6379@16379 {dead} - 0 0 2 connected 0-5460")), None, "{dead}");
        }
        assert_eq!(read("07c3 10.0.0.2:6379@16379 master - 0 0 2 connected"), None, "owns nothing");
    }

    #[test]
    fn all_databases_count() {
        let text = "# Keyspace\r\ndb0:keys=7,expires=2,avg_ttl=10\r\ndb3:keys=1,expires=0,avg_ttl=0\r\n";
        assert_eq!(keyspace(text), (8, 2));
        assert_eq!(keyspace("# Keyspace\r\n"), (0, 0));
    }
}
