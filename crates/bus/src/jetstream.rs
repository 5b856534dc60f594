//! JetStream's request-reply interface, as far as Muster uses it.
//!
//! This module uses plain JSON requests rather than the client library's types: the oldest supported server silently
//! ignores fields that it does not know. So it sends exactly the intended fields and compares them with what the server
//! reports.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Bus, BusError};

/// A duration in JetStream's unit.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Deserialize)]
struct Judged {
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// Parses an answer: its content, or the error that it carries.
pub(crate) fn judge<T: DeserializeOwned>(answer: &[u8]) -> Result<T, BusError> {
    let unreadable = |e: serde_json::Error| BusError::Unreadable(e.to_string());
    let Judged { error } = serde_json::from_slice(answer).map_err(unreadable)?;
    if let Some(Fault { code, err_code, description }) = error {
        return Err(BusError::Refused { code, err_code, description });
    }
    serde_json::from_slice(answer).map_err(unreadable)
}

impl Bus {
    /// One call. At most one request; nothing is retried.
    pub(crate) async fn api<T: DeserializeOwned>(&self, verb: &str, body: &Value) -> Result<T, BusError> {
        let subject = async_nats::Subject::from(format!("$JS.API.{verb}"));
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = self.ask(subject, None, body, self.inner.settings.request_timeout).await?;
        judge(&answer.payload)
    }
}

/// Whether the server has every field that Muster asked for. Fields that the server added are ignored.
pub(crate) fn compare(what: &str, asked: &Value, echoed: &Value) -> Result<(), BusError> {
    match differences(asked, echoed).next() {
        None => Ok(()),
        Some((field, want, got)) => Err(BusError::Mismatch {
            what: what.to_owned(),
            field: field.to_owned(),
            want: want.to_string(),
            got: got.to_string(),
        }),
    }
}

/// Every field in which the server differs from the request: its name, the value asked for, the value of the server.
pub(crate) fn differences<'a>(
    asked: &'a Value,
    echoed: &'a Value,
) -> impl Iterator<Item = (&'a str, &'a Value, &'a Value)> {
    let fields = asked.as_object().into_iter().flatten();
    let both = fields.map(|(field, want)| (field.as_str(), want, &echoed[field.as_str()]));
    both.filter(|(_, want, got)| got != want && !(is_nothing(want) && is_nothing(got)))
}

/// The server leaves out empty values.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ignored_option_is_named() {
        let asked = json!({"filter_subject": "a", "max_deliver": -1, "headers_only": false});
        assert_eq!(compare("c", &asked, &json!({"filter_subject": "a", "max_deliver": -1, "extra": 1})), Ok(()));
        let fault = compare("consumer c", &asked, &json!({"max_deliver": -1})).unwrap_err();
        assert!(matches!(&fault, BusError::Mismatch { field, .. } if field == "filter_subject"));
        assert!(fault.to_string().contains("consumer c") && fault.to_string().contains("filter_subject"));
    }

    #[test]
    fn an_error_in_an_answer_is_an_error() {
        let fault = judge::<Value>(br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#);
        assert!(fault.unwrap_err().is_missing(crate::error::NO_MESSAGE));
        assert!(matches!(judge::<Value>(b"nonsense"), Err(BusError::Unreadable(_))));
    }
}
