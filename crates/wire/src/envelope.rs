//! The envelope around every message: format version, sender, trace context, Redis time.

use bytes::Bytes;
use muster_domain::{Time, TraceParent};
use prost::Message;

pub use crate::v1::envelope::Body;
use crate::{Envelope, WireError};

/// The format that this release writes, and the highest that it reads.
pub const FORMAT: u32 = 1;

/// Wraps a body in an envelope.
pub fn seal(sender: &str, trace: Option<TraceParent>, now: Time, body: Body) -> Envelope {
    Envelope {
        format: FORMAT,
        sender: sender.to_owned(),
        traceparent: trace.map(|t| t.to_string()).unwrap_or_default(),
        sent_at: now.0,
        body: Some(body),
    }
}

/// The bytes of an envelope.
pub fn encode(envelope: &Envelope) -> Bytes {
    envelope.encode_to_vec().into()
}

/// The encoded length of a message in bytes.
pub fn encoded_len(message: &impl Message) -> usize {
    message.encoded_len()
}

/// Reads an envelope that has a body.
pub fn decode(bytes: Bytes) -> Result<(Envelope, Body), WireError> {
    let mut envelope = Envelope::decode(bytes).map_err(|e| WireError::Malformed(e.to_string()))?;
    if envelope.format > FORMAT {
        return Err(WireError::TooNew(envelope.format));
    }
    let body = envelope.body.take().ok_or(WireError::UnexpectedBody)?;
    Ok((envelope, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Wake;

    #[test]
    fn an_envelope_keeps_sender_trace_time_and_body() {
        let trace = TraceParent::fresh();
        let body = Body::Wake(Wake { r#loop: "reconciler".into(), in_us: 7 });
        let bytes = encode(&seal("s1", Some(trace), Time(42), body.clone()));
        let (envelope, read) = decode(bytes).unwrap();
        assert_eq!(read, body);
        assert_eq!((envelope.sender.as_str(), envelope.sent_at), ("s1", 42));
        assert_eq!(TraceParent::parse(&envelope.traceparent), Some(trace));
    }

    #[test]
    fn garbage_and_newer_formats_are_errors() {
        assert!(matches!(decode(Bytes::from_static(b"\xff\xff\xff")), Err(WireError::Malformed(_))));
        assert_eq!(decode(Bytes::new()), Err(WireError::UnexpectedBody));
        let newer = Envelope { format: FORMAT + 1, ..Envelope::default() };
        assert_eq!(decode(encode(&newer)), Err(WireError::TooNew(FORMAT + 1)));
    }
}
