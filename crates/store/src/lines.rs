//! The lines of a topic: the plain one, and one for each set of requirements that its jobs wait with.
//!
//! There is one small sorted set per tenant and topic. A member holds what the jobs of a line require, so that a reader
//! knows the line and which workers may run its jobs; its score is the time when the line was last noted. A line that
//! is noted before a job is put into it is found by every reader from then on. A name is dropped only if it was not
//! noted again since it was read. A read costs the same however many jobs wait, and returns no more than
//! [`MOST_LINES`]. A topic whose jobs require nothing has no such set. The scheduler notes lines in time; the caller
//! checks that a line is empty before it drops the name.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{Labels, Line, Tenant, Time, Topic};

use crate::{LeaderLock, Lease, Store, StoreError, keys, router::Command, script::list, scripts};

/// How many lines of a topic are returned besides the plain one: those that were noted last.
pub const MOST_LINES: usize = 1000;
/// A line that was not noted for this long may be dropped, once it is empty. A scheduler that puts jobs into a line
/// notes it again long before.
pub const LINE_KEPT: Duration = Duration::from_secs(600);
/// The names of a topic vanish by themselves this long after its lines were last noted.
const SET_KEPT: Duration = Duration::from_secs(24 * 3600);

/// A line of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicLine {
    /// The line.
    pub line: Line,
    /// What the line's jobs require; empty for the plain line.
    pub requires: Labels,
    /// When the line was last noted; the plain line never is.
    pub noted: Option<Time>,
}

impl TopicLine {
    fn plain(topic: &Topic) -> TopicLine {
        TopicLine { line: topic.into(), requires: Labels::new(), noted: None }
    }

    /// Parses a member of the set; none if this version does not write such members.
    fn read(topic: &Topic, member: &[u8], score: &[u8]) -> Option<TopicLine> {
        let requires: Labels = serde_json::from_slice(member).ok().filter(|requires: &Labels| !requires.is_empty())?;
        let noted = std::str::from_utf8(score).ok()?.parse::<f64>().ok()?;
        Some(TopicLine { line: Line::of(topic, &requires), requires, noted: Some(Time(noted as u64)) })
    }
}

/// Pairs in the order of their names, so that equal requirements give equal text.
fn member(requires: &Labels) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(requires).map_err(|fault| StoreError::Decode(fault.to_string()))
}

impl Store {
    /// Notes lines by topic and by what their jobs require. One call for each topic, each of which may fail alone;
    /// repeating is harmless.
    pub async fn note_lines(&self, lines: &[(&Tenant, &Topic, &Labels)]) -> Result<(), StoreError> {
        let mut sets: BTreeMap<keys::Key, Vec<Vec<u8>>> = BTreeMap::new();
        for (tenant, topic, requires) in lines.iter().filter(|(.., requires)| !requires.is_empty()) {
            sets.entry(keys::lines(tenant, topic)).or_default().push(member(requires)?);
        }
        let ttl_ms = u64::try_from(SET_KEPT.as_millis()).unwrap_or(u64::MAX);
        let calls = sets.into_iter().map(|(key, members)| scripts::line::Note { key, ttl_ms, members }).collect();
        self.run_many(calls).await.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// The lines of each topic: the plain one first, then those that were noted last. Only reads.
    pub async fn lines_of(&self, topics: &[(Tenant, Topic)]) -> Result<Vec<Vec<TopicLine>>, StoreError> {
        let command = |(tenant, topic): &(Tenant, Topic)| {
            let mut cmd = redis::cmd("ZREVRANGE");
            cmd.arg(keys::lines(tenant, topic).as_bytes()).arg(0).arg(MOST_LINES - 1).arg("WITHSCORES");
            Command::plain(cmd)
        };
        let replies = self.router().many(topics.iter().map(command).collect()).await;
        let lines = topics.iter().zip(replies).map(|((_, topic), reply)| {
            let noted = list(reply?)?;
            let noted = noted.chunks_exact(2).filter_map(|pair| TopicLine::read(topic, &pair[0], &pair[1]));
            Ok(std::iter::once(TopicLine::plain(topic)).chain(noted).collect())
        });
        lines.collect()
    }

    /// Up to `limit` lines that were last noted before this time, the oldest first. Only reads.
    pub async fn lines_before(
        &self,
        tenant: &Tenant,
        topic: &Topic,
        before: Time,
        limit: usize,
    ) -> Result<Vec<TopicLine>, StoreError> {
        let mut cmd = redis::cmd("ZRANGEBYSCORE");
        cmd.arg(keys::lines(tenant, topic).as_bytes()).arg("-inf").arg(before.0).arg("WITHSCORES");
        cmd.arg("LIMIT").arg(0).arg(limit);
        let noted = list(self.router().call(Command::plain(cmd)).await?)?;
        Ok(noted.chunks_exact(2).filter_map(|pair| TopicLine::read(topic, &pair[0], &pair[1])).collect())
    }

    /// Drops a line, unless it was noted since it was read. Returns true if this call dropped it. The caller must have
    /// checked, after it read the line, that nothing waits there.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{Lease, Store, TopicLine};
    /// async fn tick(store: &Store, lease: &Lease, tenant: &muster_domain::Tenant, line: &TopicLine) {
    ///     store.drop_line(lease, tenant, line).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{Store, TopicLine};
    /// async fn tick(store: &Store, tenant: &muster_domain::Tenant, line: &TopicLine) {
    ///     store.drop_line(tenant, line).await;
    /// }
    /// ```
    pub async fn drop_line(&self, lease: &Lease, tenant: &Tenant, line: &TopicLine) -> Result<bool, StoreError> {
        lease.leads(LeaderLock::Snapshot)?;
        let Some(noted) = line.noted else { return Ok(false) };
        let key = keys::lines(tenant, line.line.topic());
        let call = scripts::line::Drop { key, member: member(&line.requires)?, read: noted.0 };
        Ok(self.run(call).await?.dropped == 1)
    }
}
