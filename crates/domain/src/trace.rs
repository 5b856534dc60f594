//! W3C trace context: read from a request, carried in every envelope, shown in logs.

use std::fmt;

/// A valid `traceparent` of version 00.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The id of the trace.
    pub trace_id: u128,
    /// The span that caused the request or message carrying this context.
    pub parent_id: u64,
    /// Bit 0: sampled.
    pub flags: u8,
}

impl TraceParent {
    /// A new trace, for a request that came without one.
    pub fn fresh() -> TraceParent {
        TraceParent { trace_id: fastrand::u128(1..), parent_id: fastrand::u64(1..), flags: 1 }
    }

    /// The same trace, one span further down.
    pub fn child(self) -> TraceParent {
        TraceParent { parent_id: fastrand::u64(1..), ..self }
    }

    /// Reads the header's value. Returns `None` for an invalid value; the caller then ignores the header, as the
    /// standard requires.
    pub fn parse(text: &str) -> Option<TraceParent> {
        let b = text.as_bytes();
        let shape = b.len() == 55 && text.is_ascii() && b[2] == b'-' && b[35] == b'-' && b[52] == b'-';
        if !shape || !text.bytes().all(|c| c == b'-' || c.is_ascii_digit() || (b'a'..=b'f').contains(&c)) {
            return None;
        }
        let parent = TraceParent {
            trace_id: u128::from_str_radix(&text[3..35], 16).ok()?,
            parent_id: u64::from_str_radix(&text[36..52], 16).ok()?,
            flags: u8::from_str_radix(&text[53..], 16).ok()?,
        };
        (&text[..2] != "ff" && parent.trace_id != 0 && parent.parent_id != 0).then_some(parent)
    }

    /// Whether the upstream caller records the trace and asks for it to be recorded here too.
    pub fn is_sampled(self) -> bool {
        self.flags & 1 == 1
    }

    /// The trace id as 32 hex digits.
    pub fn trace_hex(self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_the_w3c_form() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = TraceParent::parse(text).unwrap();
        assert_eq!(parent.to_string(), text);
        assert_eq!(parent.child().trace_id, parent.trace_id);
        assert_ne!(parent.child().parent_id, parent.parent_id);
        assert!(parent.is_sampled() && !TraceParent { flags: 2, ..parent }.is_sampled());
        for bad in ["", "00-0-0-0", &text.to_uppercase(), &text.replace("4bf9", "zzzz"), &format!("ff{}", &text[2..])] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }
}
