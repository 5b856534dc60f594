//! Every script declares and touches exactly one key. That no other is touched at run time is shown
//! by the whole suite on the cluster, which refuses keys of other slots.

use muster_store::Store;

#[test]
fn every_script_takes_exactly_one_key() {
    let mut scripts = 0;
    for (name, text) in Store::script_sources() {
        scripts += 1;
        let code: String =
            text.lines().map(|line| line.split("--").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
        // A refused write may be answered (a full Redis), on the same key as any other.
        let code = code.replace("redis.pcall(", "redis.call(");
        let indices: Vec<&str> = code.split("KEYS").skip(1).map(|rest| rest.split(']').next().unwrap_or("")).collect();
        assert!(!indices.is_empty(), "{name} uses its key");
        assert!(indices.iter().all(|index| *index == "[1"), "{name}: {indices:?}");
        for way in ["pcall", "redis.replicate", "loadstring", "_G"] {
            assert!(!code.contains(way), "{name} uses {way}");
        }
        // Each call names that key, or needs none.
        let calls: Vec<&str> = code.split("redis.call(").skip(1).collect();
        assert!(!calls.is_empty(), "{name}");
        for call in calls {
            let keyed = call.split_once(", ").is_some_and(|(command, rest)| {
                // Of these the key is the second argument, after what to do with it.
                let named = matches!(command, "'XGROUP'" | "'XINFO'").then(|| rest.split_once(", ")).flatten();
                let rest = named.map_or(rest, |(_, rest)| rest);
                command.starts_with('\'') && command.ends_with('\'') && rest.starts_with("KEYS[1]")
            });
            assert!(keyed || call.starts_with("'TIME')"), "{name}: {}", call.lines().next().unwrap_or(""));
        }
    }
    assert!(scripts >= 15, "{scripts}");
}
