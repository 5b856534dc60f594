//! The requests of a bench, as bytes prepared before the clock runs, and the parsing of their answers. Every job
//! carries the same payload of 200 bytes.

use muster_domain::JobId;

use crate::target::Door;

/// The size of a payload as JSON, in bytes.
pub(super) const PAYLOAD: usize = 200;

/// Requests that submit, one per topic, each for the same number of jobs.
pub(super) struct Submits {
    requests: Vec<Vec<u8>>,
    /// The number of jobs in a request.
    pub(super) batch: u64,
}

impl Submits {
    /// Creates the requests for these topics. A single job is a plain submit, more jobs are a batch.
    pub(super) fn new(door: &Door, topics: &[String], batch: u64) -> Submits {
        let request = |topic: &String| {
            let job = format!(r#"{{"topic":"{topic}","payload":{}}}"#, payload());
            match batch {
                1 => post(door, "/jobs", &job),
                _ => {
                    let items = vec![job.as_str(); usize::try_from(batch).unwrap_or_default()].join(",");
                    post(door, "/jobs/batch", &format!(r#"{{"items":[{items}]}}"#))
                }
            }
        };
        Submits { requests: topics.iter().map(request).collect(), batch }
    }

    /// The n-th request; topics take turns.
    pub(super) fn nth(&self, n: u64) -> &[u8] {
        &self.requests[usize::try_from(n % self.requests.len() as u64).unwrap_or_default()]
    }
}

/// A payload of [`PAYLOAD`] bytes.
pub(super) fn payload() -> String {
    let (open, close) = (r#"{"data":""#, r#""}"#);
    format!("{open}{}{close}", "x".repeat(PAYLOAD - open.len() - close.len()))
}

/// A POST below the API's root.
pub(super) fn post(door: &Door, path: &str, body: &str) -> Vec<u8> {
    let head = head(door, "POST", path);
    format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A GET below the API's root.
pub(super) fn get(door: &Door, path: &str) -> Vec<u8> {
    format!("{}\r\n", head(door, "GET", path)).into_bytes()
}

fn head(door: &Door, method: &str, path: &str) -> String {
    let tenant = door.tenant.as_ref().map(|tenant| format!("Muster-Tenant: {tenant}\r\n")).unwrap_or_default();
    let key = &door.api_key;
    format!("{method} /api/v1{path} HTTP/1.1\r\nHost: muster\r\nAuthorization: Bearer {key}\r\n{tenant}")
}

/// The ids of the jobs in an answer, in order. The payloads of a bench contain no ids.
pub(super) fn job_ids(body: &[u8]) -> impl Iterator<Item = JobId> {
    const MARK: &[u8] = br#""id":""#;
    const LENGTH: usize = 36;
    let mut rest = body;
    std::iter::from_fn(move || {
        let at = rest.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
        let id = std::str::from_utf8(rest.get(at..at + LENGTH)?).ok()?.parse().ok();
        rest = &rest[at + LENGTH..];
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        Door { urls: vec!["http://127.0.0.1:1".into()], api_key: "k".into(), tenant: Some("t".into()) }
    }

    #[test]
    fn requests_are_whole_and_say_their_length() {
        let submits = Submits::new(&door(), &["a".into(), "b".into()], 3);
        let text = String::from_utf8(submits.nth(1).to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /api/v1/jobs/batch HTTP/1.1\r\nHost: muster\r\nAuthorization: Bearer k\r\n"));
        assert!(head.contains("Muster-Tenant: t\r\n"));
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((body["items"].as_array().unwrap().len(), &body["items"][2]["topic"]), (3, &"b".into()));
        assert_eq!(submits.nth(0), submits.nth(2), "topics take turns");
        assert!(get(&door(), "/x").ends_with(b"\r\n\r\n"));
        assert_eq!(payload().len(), PAYLOAD);
    }

    #[test]
    fn ids_are_found_in_single_and_bulk_answers() {
        let (a, b) = (JobId::mint(1), JobId::mint(2));
        let single = format!(r#"{{"id":"{a}","topic":"t","trace_id":"no"}}"#);
        assert_eq!(job_ids(single.as_bytes()).collect::<Vec<_>>(), [a]);
        let bulk = format!(r#"{{"items":[{{"status":202,"job":{{"id":"{a}"}}}},{{"job":{{"id":"{b}"}}}}]}}"#);
        assert_eq!(job_ids(bulk.as_bytes()).collect::<Vec<_>>(), [a, b]);
        assert_eq!(job_ids(br#"{"id":"short"}"#).count(), 0);
    }
}
