//! The map of hash slots to nodes: the hash of a key, the map, and the parser for CLUSTER SLOTS.

use std::{collections::BTreeSet, sync::Arc};

use redis::Value;

use super::{address::NodeAddr, node::Node};
use crate::error::StoreError;

/// The number of hash slots of every Redis Cluster.
pub(super) const SLOTS: usize = 16_384;

const NOBODY: u16 = u16::MAX;

/// The hash slot of a key: CRC16 of its hash tag, or of the whole key if it has none.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&byte| byte == b'}').filter(|&close| close > 0).map(|close| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

/// CRC16-CCITT (XMODEM), as the cluster specification defines it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// A range of slots with its nodes, the primary first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) nodes: Vec<NodeAddr>,
}

/// Parses the reply to CLUSTER SLOTS. A node without a host has the host of the node that answered.
pub(super) fn read_ranges(reply: &Value, answered_by: &NodeAddr) -> Result<Vec<Range>, StoreError> {
    let odd = || StoreError::Decode("CLUSTER SLOTS".into());
    let Value::Array(rows) = reply else { return Err(odd()) };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(parts) = row else { return Err(odd()) };
        let [first, last, nodes @ ..] = parts.as_slice() else { return Err(odd()) };
        let (first, last) = (small(first).ok_or_else(odd)?, small(last).ok_or_else(odd)?);
        if first > last || usize::from(last) >= SLOTS {
            return Err(odd());
        }
        // Skip a node whose address is not known yet; a range without a primary is not served.
        let nodes: Vec<NodeAddr> = nodes.iter().filter_map(|node| read_node(node, answered_by)).collect();
        if !nodes.is_empty() {
            ranges.push(Range { first, last, nodes });
        }
    }
    Ok(ranges)
}

fn read_node(value: &Value, answered_by: &NodeAddr) -> Option<NodeAddr> {
    let Value::Array(parts) = value else { return None };
    let host = match parts.first()? {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let host = match host {
        "?" => return None,
        "" => answered_by.host(),
        host => host,
    };
    Some(NodeAddr::new(host, small(parts.get(1)?)?))
}

fn small(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// The map of hash slots to nodes. Immutable; a change makes a new map.
#[derive(Clone)]
pub(super) struct SlotMap {
    owner: Box<[u16]>,
    primaries: Vec<Arc<Node>>,
    /// Nodes that serve nothing, but can be asked for the map.
    pub(super) replicas: BTreeSet<NodeAddr>,
}

impl SlotMap {
    /// A map without any node.
    pub(super) fn unknown() -> SlotMap {
        SlotMap { owner: vec![NOBODY; SLOTS].into(), primaries: Vec::new(), replicas: BTreeSet::new() }
    }

    /// The map of a standalone server.
    pub(super) fn all_on(node: Arc<Node>) -> SlotMap {
        SlotMap { owner: vec![0; SLOTS].into(), primaries: vec![node], replicas: BTreeSet::new() }
    }

    /// The map from a cluster's answer; `node` finds or creates the node of an address.
    pub(super) fn build(ranges: &[Range], mut node: impl FnMut(&NodeAddr) -> Arc<Node>) -> SlotMap {
        let mut map = SlotMap::unknown();
        for range in ranges {
            let [primary, replicas @ ..] = range.nodes.as_slice() else { continue };
            let index = map.index_of(primary, &mut node);
            map.owner[usize::from(range.first)..=usize::from(range.last)].fill(index);
            map.replicas.extend(replicas.iter().cloned());
        }
        map
    }

    /// The same map after the moves that MOVED replies reported.
    pub(super) fn with_moves(&self, moves: &[(u16, NodeAddr)], mut node: impl FnMut(&NodeAddr) -> Arc<Node>) -> Self {
        let mut map = self.clone();
        for (slot, addr) in moves {
            let index = map.index_of(addr, &mut node);
            if let Some(owner) = map.owner.get_mut(usize::from(*slot)) {
                *owner = index;
            }
        }
        map
    }

    fn index_of(&mut self, addr: &NodeAddr, node: &mut impl FnMut(&NodeAddr) -> Arc<Node>) -> u16 {
        let index = self.primaries.iter().position(|known| known.addr == *addr).unwrap_or_else(|| {
            self.primaries.push(node(addr));
            self.primaries.len() - 1
        });
        // A cluster has at most 1,000 nodes.
        u16::try_from(index).unwrap_or(NOBODY)
    }

    /// The node that serves a hash slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.primaries.get(usize::from(self.owner[usize::from(slot)]))
    }

    /// All nodes that serve hash slots.
    pub(super) fn primaries(&self) -> &[Arc<Node>] {
        &self.primaries
    }

    /// Whether both maps have the same address for every hash slot.
    pub(super) fn same_owners(&self, other: &SlotMap) -> bool {
        let addr = |map: &SlotMap, slot: usize| map.owner(slot as u16).map(|node| node.addr.clone());
        (0..SLOTS).all(|slot| {
            // Neighbouring slots mostly have the same owner: only the borders need the full comparison.
            slot > 0 && self.owner[slot] == self.owner[slot - 1] && other.owner[slot] == other.owner[slot - 1]
                || addr(self, slot) == addr(other, slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}.bar"), slot_of(b"foo"));
        assert_eq!(slot_of(b"a{foo}{bar}"), slot_of(b"foo"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16_384);
        assert_eq!(slot_of(b"foo{{bar}}"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"{unclosed"), crc16(b"{unclosed") % 16_384);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn cluster_slots_is_read_with_and_without_hosts() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())]);
        let asked = NodeAddr::new("seed", 1);
        let reply = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(99),
                node(Value::BulkString(b"10.0.0.1".into()), 7),
                node(Value::Nil, 8),
                node(Value::BulkString(b"?".into()), 9),
            ]),
            Value::Array(vec![Value::Int(100), Value::Int(16_383), node(Value::BulkString(Vec::new()), 9)]),
        ]);
        let ranges = read_ranges(&reply, &asked).unwrap();
        assert_eq!(ranges[0].nodes, vec![NodeAddr::new("10.0.0.1", 7), NodeAddr::new("seed", 8)]);
        assert_eq!(ranges[1], Range { first: 100, last: 16_383, nodes: vec![NodeAddr::new("seed", 9)] });
        assert!(read_ranges(&Value::Int(1), &asked).is_err());
        let beyond = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16_384)])]);
        assert!(read_ranges(&beyond, &asked).is_err());
    }
}
