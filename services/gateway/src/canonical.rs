//! Hashes a request body in one canonical form, for comparison under an idempotency key.
//!
//! Knows: JSON text that has been checked already. Promises: two bodies that differ only in white space, in the order
//! of keys or in the escaping of strings have the same hash. Numbers are hashed as they are written, so `1` and `1.0`
//! differ and large integers keep every digit. Leaves to others: whether the text is JSON at all, and what a mismatch
//! means.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::json;

/// The hash of an object made of these fields. Each value must be JSON no deeper than
/// [`MOST_DEPTH`](muster_flow::admission::bounds::MOST_DEPTH).
pub(crate) fn hash_fields<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> [u8; 16] {
    let mut out = Vec::with_capacity(256);
    let mut members = Vec::new();
    for (key, value) in fields {
        let start = out.len();
        Cursor { text: value, place: 0 }.value(&mut out);
        members.push((Cow::Borrowed(key), start..out.len()));
    }
    in_order(&mut out, 0, members);
    let digest: [u8; 32] = Sha256::digest(&out).into();
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    hash
}

fn put_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    out.push(tag);
    out.extend_from_slice(&(text.len() as u64).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Replaces everything in `out` from `start` on by the members, sorted by key.
fn in_order(out: &mut Vec<u8>, start: usize, mut members: Vec<(Cow<'_, str>, std::ops::Range<usize>)>) {
    members.sort_by(|a, b| a.0.cmp(&b.0));
    let mut sorted = Vec::with_capacity(out.len() - start + members.len() * 24);
    sorted.push(b'{');
    sorted.extend_from_slice(&(members.len() as u64).to_be_bytes());
    for (key, range) in members {
        put_text(&mut sorted, b'k', &key);
        sorted.extend_from_slice(&out[range]);
    }
    out.truncate(start);
    out.append(&mut sorted);
}

/// Walks over text that is known to be JSON.
struct Cursor<'a> {
    text: &'a str,
    place: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.place), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.place += 1;
        }
        bytes.get(self.place).copied().unwrap_or(0)
    }

    fn skip(&mut self) {
        self.peek();
        self.place += 1;
    }

    fn string(&mut self) -> Cow<'a, str> {
        self.peek();
        let start = self.place;
        let bytes = self.text.as_bytes();
        self.place += 1;
        while let Some(&byte) = bytes.get(self.place) {
            match byte {
                b'"' => break,
                b'\\' => self.place += 2,
                _ => self.place += 1,
            }
        }
        self.place += 1;
        let raw = self.text.get(start..self.place).unwrap_or_default();
        // A lone surrogate does not decode to text, so its escaped form is hashed.
        json::text(raw).unwrap_or(Cow::Borrowed(raw))
    }

    /// A number, `true`, `false` or `null`: everything up to the next delimiter.
    fn plain(&mut self) -> &'a str {
        let rest = &self.text[self.place..];
        let end = rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
        self.place += end.max(1);
        &rest[..end]
    }

    fn value(&mut self, out: &mut Vec<u8>) {
        match self.peek() {
            b'"' => {
                let text = self.string();
                put_text(out, b's', &text);
            }
            b'[' => {
                self.skip();
                out.push(b'[');
                while !matches!(self.peek(), b']' | 0) {
                    self.value(out);
                    if self.peek() == b',' {
                        self.skip();
                    }
                }
                self.skip();
                out.push(b']');
            }
            b'{' => {
                self.skip();
                let start = out.len();
                let mut members = Vec::new();
                while !matches!(self.peek(), b'}' | 0) {
                    let key = self.string();
                    self.skip();
                    let from = out.len();
                    self.value(out);
                    members.push((key, from..out.len()));
                    if self.peek() == b',' {
                        self.skip();
                    }
                }
                self.skip();
                in_order(out, start, members);
            }
            0 => {}
            _ => put_text(out, b'p', self.plain()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(payload: &str) -> [u8; 16] {
        serde_json::from_str::<serde::de::IgnoredAny>(payload).expect("the tests hash JSON only");
        hash_fields([("topic", "\"t\""), ("payload", payload)].into_iter())
    }

    #[test]
    fn spelling_does_not_matter() {
        let plain = hash(r#"{"a":[1,{"b":"x/y"}],"c":null}"#);
        assert_eq!(plain, hash("{ \"c\" : null,\n\t\"a\":[ 1 , {\"b\" : \"x\\/y\"} ] }"));
        assert_eq!(plain, hash(r#"{"\u0061":[1,{"b":"x\u002fy"}],"c":null}"#));
        let other_order = hash_fields([("payload", "1"), ("topic", "\"t\"")].into_iter());
        assert_eq!(other_order, hash("1"));
    }

    #[test]
    fn every_difference_that_counts_changes_the_hash() {
        let all = [
            "1",
            "1.0",
            "1e0",
            "10000000000000000000000001",
            "10000000000000000000000002",
            "\"1\"",
            "[1]",
            "[[1]]",
            "[]",
            "{}",
            "null",
            "true",
            "false",
            "\"\"",
            "[1,2]",
            "[12]",
            "[\"1\",\"2\"]",
            "[\"12\"]",
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
            r#"{"a":{"b":2}}"#,
            r#"{"a":1,"a":2}"#,
            r#"["a",1,"b",2]"#,
            r#""\ud800""#,
            r#""\ud801""#,
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(hash(a), hash(b), "{a} and {b}");
            }
        }
    }

    #[test]
    fn text_that_ends_early_does_not_hang_or_panic() {
        for odd in ["{\"a\"", "[1,", "\"\\", "{", "", "[1 2", "}", ",", "{,}"] {
            hash_fields([("payload", odd)].into_iter());
        }
    }
}
