//! Decides which workers a job is offered to: all workers that take its topic, or only those that provide what the job
//! requires.
//!
//! Jobs of a topic with the same requirements share one *line*: one backlog, one subject, one window. A line is named
//! by its topic and, if its jobs require anything, by a hash of the requirements: its *pool*. No topic can have such a
//! name, so lines never collide. Requirements match by equality, pair by pair. The key `worker` matches the worker's
//! own name, which a worker does not have to declare.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};

use crate::topic::{Labels, NameFault, Topic};

/// The most pairs that a job may require and a worker may provide.
pub const MAX_REQUIRES: usize = 16;
/// The key that every worker provides: its own name.
pub const WORKER: &str = "worker";
/// The separator between topic and pool. No topic name contains it.
const MARK: char = '~';
/// Hex digits of a pool: enough that two sets of requirements never share one.
const DIGITS: usize = 16;

/// The jobs of a topic that have the same requirements.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    topic: Topic,
    /// The topic alone, or topic, mark and pool.
    text: Arc<str>,
}

impl Line {
    /// The line of this topic's jobs with these requirements.
    pub fn of(topic: &Topic, requires: &Labels) -> Line {
        match pool_of(requires) {
            None => Line::from(topic),
            Some(pool) => Line { topic: topic.clone(), text: format!("{topic}{MARK}{pool}").into() },
        }
    }

    /// The line that a message names by topic and pool. An empty `pool` means no requirements.
    pub fn named(topic: &str, pool: &str) -> Result<Line, NameFault> {
        let topic = Topic::parse(topic)?;
        if pool.is_empty() {
            return Ok(Line::from(topic));
        }
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if pool.len() != DIGITS || !pool.bytes().all(hex) {
            return Err(NameFault::new("a pool is 16 hex digits"));
        }
        Ok(Line { text: format!("{topic}{MARK}{pool}").into(), topic })
    }

    /// The topic of the line's jobs.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The pool; empty if the line's jobs require nothing.
    pub fn pool(&self) -> &str {
        parts(&self.text).1
    }

    /// Topic and pool in one string, for keys and subjects.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<Topic> for Line {
    fn from(topic: Topic) -> Line {
        Line { text: topic.shared(), topic }
    }
}

impl From<&Topic> for Line {
    fn from(topic: &Topic) -> Line {
        Line::from(topic.clone())
    }
}

impl From<&Line> for Line {
    fn from(line: &Line) -> Line {
        line.clone()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits a line's name into topic and pool. The pool is empty if the name has none.
pub fn parts(name: &str) -> (&str, &str) {
    name.split_once(MARK).unwrap_or((name, ""))
}

/// The pool of jobs with these requirements; none if they require nothing.
pub fn pool_of(requires: &Labels) -> Option<String> {
    if requires.is_empty() {
        return None;
    }
    let mut hash = Sha256::new();
    for part in requires.iter().flat_map(|(key, value)| [key, value]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    Some(digest[..DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a worker with this name and these provided labels may run a job with these requirements.
pub fn provides(worker: &str, provided: &Labels, required: &Labels) -> bool {
    required.iter().all(|(key, value)| match key.as_str() {
        WORKER => value == worker,
        _ => provided.get(key) == Some(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn jobs_that_require_the_same_stand_in_one_line() {
        let topic = Topic::parse("render").unwrap();
        let gpu = Line::of(&topic, &labels(&[("gpu", "a100"), ("zone", "eu")]));
        assert_eq!(gpu, Line::of(&topic, &labels(&[("zone", "eu"), ("gpu", "a100")])));
        assert_ne!(gpu, Line::of(&topic, &labels(&[("gpu", "a100")])));
        assert_ne!(pool_of(&labels(&[("a", "bc")])), pool_of(&labels(&[("ab", "c")])), "no pair runs into the next");
        assert_eq!(Line::of(&topic, &Labels::new()).as_str(), "render");
        assert_eq!(Line::of(&topic, &Labels::new()).pool(), "");
    }

    #[test]
    fn a_line_is_named_by_topic_and_pool_and_no_topic_has_its_name() {
        let topic = Topic::parse("render").unwrap();
        let line = Line::of(&topic, &labels(&[("gpu", "a100")]));
        assert_eq!(Line::named("render", line.pool()).unwrap(), line);
        assert_eq!(Line::named("render", "").unwrap(), Line::from(&topic));
        assert_eq!((line.topic(), line.pool().len()), (&topic, DIGITS));
        assert_eq!((parts(line.as_str()), parts("render")), (("render", line.pool()), ("render", "")));
        assert!(Topic::parse(line.as_str()).is_err());
        for bad in ["x", "ABCDEF0123456789", "0123456789abcde", "0123456789abcdeg", ">"] {
            assert!(Line::named("render", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_worker_must_provide_every_pair() {
        let has = labels(&[("gpu", "a100"), ("zone", "eu")]);
        for (required, fits) in [
            (labels(&[]), true),
            (labels(&[("gpu", "a100")]), true),
            (labels(&[("gpu", "h100")]), false),
            (labels(&[("gpu", "a100"), ("disk", "ssd")]), false),
            (labels(&[("worker", "w1"), ("zone", "eu")]), true),
            (labels(&[("worker", "w2")]), false),
        ] {
            assert_eq!(provides("w1", &has, &required), fits, "{required:?}");
        }
        assert!(!provides("w1", &labels(&[("worker", "w2")]), &labels(&[("worker", "w2")])), "a name is not declared");
    }
}
