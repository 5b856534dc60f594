//! The slot of a cluster to which a key belongs: CRC-16/XMODEM of the key, or of the text between its first braces,
//! modulo 16384, as in the cluster specification of Redis.

/// The slot of a key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(hashed_part(key)) % 16_384
}

fn hashed_part(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let inside = &key[open + 1..];
        let close = inside.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &inside[..close])
    });
    tag.unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(
            crc ^ (u16::from(byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_gives() {
        // From `CLUSTER KEYSLOT` of a real node.
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("{user1}.a", 8106), ("a{}b", 13694), ("", 0)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"x{user1}y"), slot_of(b"user1"));
    }
}
