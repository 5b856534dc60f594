//! The bounds of a job's payload, and those of its numbers, for every reader of requests.
//!
//! The bounds of numbers, names, labels and keys are in `domain`.

pub use muster_domain::job::bounds::{ATTEMPTS, DELAY_MS, FACTOR, JITTER, SPAN_MS, TIMEOUT_MS};

/// The most bytes of a payload. For larger data the payload carries a URL.
pub const MOST_PAYLOAD: usize = 512 * 1024;
/// How deep a payload may nest. Many JSON parsers, including the one used here, stop at this depth.
pub const MOST_DEPTH: usize = 128;
/// Why a payload is refused before anything else is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadFault {
    /// It has too many bytes.
    #[error("has {0} bytes; at most {MOST_PAYLOAD} are taken, larger data goes by URL")]
    TooLarge(usize),
    /// It nests too deeply.
    #[error("nests deeper than {MOST_DEPTH} levels")]
    TooDeep,
}

/// Checks the size and the depth of a payload, which is JSON.
pub fn check_payload(text: &str) -> Result<(), PayloadFault> {
    if text.len() > MOST_PAYLOAD {
        return Err(PayloadFault::TooLarge(text.len()));
    }
    if depth(text) > MOST_DEPTH { Err(PayloadFault::TooDeep) } else { Ok(()) }
}

/// The nesting depth of JSON text. The parser that splits out verbatim values does not limit it.
pub fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings() {
        assert_eq!(depth("1"), 0);
        assert_eq!(depth(r#"{"a":[1,{"b":"[[[[\"[[["}]}"#), 3);
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(depth(&deep), 500);
    }

    #[test]
    fn a_payload_is_bounded_in_bytes_and_depth() {
        assert_eq!(check_payload(&"1".repeat(MOST_PAYLOAD)), Ok(()));
        assert_eq!(check_payload(&"1".repeat(MOST_PAYLOAD + 1)), Err(PayloadFault::TooLarge(MOST_PAYLOAD + 1)));
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(check_payload(&nested(MOST_DEPTH)), Ok(()));
        assert_eq!(check_payload(&nested(MOST_DEPTH + 1)), Err(PayloadFault::TooDeep));
    }
}
