//! A counsel that is asked over NATS: one request per job, in plain JSON, so that any program can answer it.
//!
//! Knows: the format of question and answer. Promises: a missing or invalid answer is never an allow. Leaves to others:
//! repeating the question, the lock, and the effects of an answer.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use muster_bus::{Bus, subjects};
use muster_domain::{JobId, Priority, topic::glob_matches};
use muster_wire::v1::Submit;
use serde::{Deserialize, Serialize};

use super::{Advice, Counsel};

/// Most characters of a reason that are kept.
const MOST_REASON: usize = 1_000;

/// The decider that answers on `sys.job.decide`.
pub(crate) struct Outside {
    bus: Bus,
    /// Patterns of the topics that it decides about.
    topics: Vec<String>,
    patience: Duration,
}

#[derive(Serialize)]
struct Question<'a> {
    job_id: String,
    tenant: &'a str,
    topic: &'a str,
    principal: &'a str,
    priority: &'static str,
    labels: &'a BTreeMap<String, String>,
    /// Attempts started so far.
    attempt: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
enum Answer {
    Allow,
    Deny {
        #[serde(default)]
        reason: String,
    },
}

impl Outside {
    /// None if there is no topic to decide about.
    pub(crate) fn new(bus: Bus, topics: Vec<String>, patience: Duration) -> Option<Outside> {
        (!topics.is_empty()).then_some(Outside { bus, topics, patience })
    }
}

impl Counsel for Outside {
    fn concerns(&self, _tenant: &str, topic: &str) -> bool {
        self.topics.iter().any(|glob| glob_matches(glob, topic))
    }

    fn ask<'a>(&'a self, submit: &'a Submit) -> BoxFuture<'a, Result<Advice, String>> {
        async move {
            let question = question(submit).ok_or("the submit has no spec or no job id")?;
            let answer = self.bus.request_plain(&subjects::decide(), question, self.patience).await;
            read(&answer.map_err(|fault| fault.to_string())?)
        }
        .boxed()
    }
}

fn question(submit: &Submit) -> Option<Bytes> {
    let spec = submit.spec.as_ref()?;
    let question = Question {
        job_id: JobId::from_slice(&submit.job_id)?.to_string(),
        tenant: &spec.tenant,
        topic: &spec.topic,
        principal: &spec.principal,
        priority: Priority::from_code(spec.priority).as_str(),
        labels: &spec.labels,
        attempt: submit.attempt,
    };
    serde_json::to_vec(&question).ok().map(Bytes::from)
}

fn read(answer: &[u8]) -> Result<Advice, String> {
    match serde_json::from_slice(answer) {
        Ok(Answer::Allow) => Ok(Advice::Allow),
        Ok(Answer::Deny { reason }) => {
            let reason: String = reason.chars().filter(|c| !c.is_control()).take(MOST_REASON).collect();
            Ok(Advice::Deny(if reason.is_empty() { "no reason was given".to_owned() } else { reason }))
        }
        Err(fault) => Err(format!("the decider's answer cannot be read: {fault}")),
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::v1::Spec;

    use super::*;

    #[test]
    fn only_a_clear_answer_is_one() {
        assert_eq!(read(br#"{"decision":"allow"}"#), Ok(Advice::Allow));
        assert_eq!(
            read(br#"{"decision":"deny","reason":"not on\na Friday"}"#),
            Ok(Advice::Deny("not ona Friday".into()))
        );
        assert_eq!(read(br#"{"decision":"deny"}"#), Ok(Advice::Deny("no reason was given".into())));
        for bad in ["", "yes", "{}", r#"{"decision":"maybe"}"#, r#"{"allow":true}"#] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_question_says_what_the_job_is_and_not_what_it_carries() {
        let spec = Spec { tenant: "acme".into(), topic: "pay.out".into(), ..Default::default() };
        let job_id = JobId::mint(3);
        let submit = Submit {
            job_id: job_id.as_bytes().to_vec().into(),
            spec: Some(spec),
            payload: "\"secret\"".into(),
            attempt: 1,
            ..Default::default()
        };
        let asked = String::from_utf8(question(&submit).unwrap().to_vec()).unwrap();
        let rest = r#""tenant":"acme","topic":"pay.out","principal":"","priority":"normal","labels":{},"attempt":1}"#;
        assert_eq!(asked, format!(r#"{{"job_id":"{job_id}",{rest}"#));
    }
}
