//! Spreads the shards of a loop over its replicas.

use std::collections::BTreeMap;

use muster_domain::ids::SHARDS;

/// Computes which member owns each shard. Shares differ by one at most. Every replica that sees the same members gets
/// the same result. When a member comes or goes, most shards keep their owner: each shard ranks the members by a hash,
/// and takes the first one whose share is not full.
pub(crate) fn owners<'m>(members: &'m [String]) -> BTreeMap<u8, &'m str> {
    let mut names: Vec<&'m str> = members.iter().map(String::as_str).collect();
    names.sort_by_key(|name| weight(name.as_bytes(), u8::MAX));
    let (each, more) = match names.len() {
        0 => return BTreeMap::new(),
        n => (usize::from(SHARDS) / n, usize::from(SHARDS) % n),
    };
    let mut room: BTreeMap<&str, usize> =
        names.iter().enumerate().map(|(n, name)| (*name, each + usize::from(n < more))).collect();
    let mut owners = BTreeMap::new();
    for shard in 0..SHARDS {
        let open = room.iter().filter(|(_, left)| **left > 0).map(|(name, _)| *name);
        // The shares add up to the number of shards, so there is always an open one.
        let Some(owner) = open.max_by_key(|name| weight(name.as_bytes(), shard)) else { break };
        room.entry(owner).and_modify(|left| *left -= 1);
        owners.insert(shard, owner);
    }
    owners
}

/// FNV-1a with a final mix: stable across versions, unlike the standard library's hasher.
fn weight(name: &[u8], shard: u8) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.iter().chain([&shard]).fold(0xcbf2_9ce4_8422_2325, step);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: usize) -> Vec<String> {
        (0..n).map(|n| format!("replica-{n}~{n:08x}")).collect()
    }

    fn shares(members: &[String]) -> Vec<usize> {
        let owners = owners(members);
        assert_eq!(owners.len(), if members.is_empty() { 0 } else { usize::from(SHARDS) });
        let mut shares: Vec<usize> =
            members.iter().map(|name| owners.values().filter(|owner| *owner == name).count()).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        shares
    }

    #[test]
    fn shares_are_even_whatever_the_number_of_replicas() {
        assert!(shares(&members(0)).is_empty());
        assert_eq!(shares(&members(1)), [16]);
        assert_eq!(shares(&members(2)), [8, 8]);
        assert_eq!(shares(&members(3)), [6, 5, 5]);
        assert_eq!(shares(&members(16)), [1; 16]);
        assert_eq!(shares(&members(20)).iter().sum::<usize>(), 16);
    }

    #[test]
    fn the_order_of_the_members_does_not_matter() {
        let mut reversed = members(5);
        reversed.reverse();
        assert_eq!(owners(&members(5)), owners(&reversed));
    }

    #[test]
    fn most_shards_stay_where_they_are_when_a_replica_comes() {
        for n in 1..8 {
            let (before, after) = (members(n), members(n + 1));
            let (before, after) = (owners(&before), owners(&after));
            let moved = before.iter().filter(|(shard, owner)| after[shard] != **owner).count();
            let least = usize::from(SHARDS) / (n + 1);
            assert!(moved <= 2 * least + 2, "{n} replicas and one more: {moved} moved, {least} had to");
        }
    }
}
