//! Entries as they stand in the stream, and pages of them.

use muster_domain::{Act, Time};
use redis::Value;

use crate::{
    ListError, Store, StoreError, keys,
    router::Command,
    script::{bytes, list},
};

/// Entries read for one page at most.
const PAGE_WORK: usize = 2_000;
/// Entries read at once.
const STEP: usize = 500;

/// An entry of the log, as it stands there.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct AuditEntry {
    /// Where it stands in the stream.
    pub cursor: String,
    /// Its id.
    pub id: String,
    /// Its number in the chain.
    pub number: String,
    /// The hash of the one before.
    pub previous: String,
    /// Its own.
    pub hash: String,
    /// What it says, verbatim: JSON.
    pub body: String,
}

impl AuditEntry {
    /// What it says, if that can be read.
    pub fn act(&self) -> Option<Act> {
        serde_json::from_str(&self.body).ok()
    }

    /// When Redis took it in, in milliseconds.
    pub(super) fn millis(&self) -> u64 {
        self.cursor.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0)
    }
}

/// Which entries.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// By this actor.
    pub actor: Option<String>,
    /// About this job.
    pub job: Option<String>,
    /// Not before.
    pub after: Option<Time>,
    /// Before.
    pub before: Option<Time>,
}

impl AuditFilter {
    fn fits(&self, act: &Act) -> bool {
        let same = |asked: &Option<String>, given: Option<&str>| asked.as_deref().is_none_or(|a| Some(a) == given);
        let at = Time::parse_rfc3339(&act.at).unwrap_or_default();
        same(&self.tenant, Some(&act.tenant))
            && same(&self.action, Some(&act.action))
            && same(&self.actor, Some(&act.actor))
            && same(&self.job, act.job_id.as_deref())
            && self.after.is_none_or(|after| at >= after)
            && self.before.is_none_or(|before| at < before)
    }
}

/// Reads what XRANGE and its kin answer. Fields that are not ours are passed over.
pub(super) fn entries(reply: Value) -> Result<Vec<AuditEntry>, StoreError> {
    let Value::Array(items) = reply else { return Ok(Vec::new()) };
    let wrong = || StoreError::Decode("an entry of the audit log".into());
    let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        let Value::Array(pair) = item else { continue };
        let [cursor, fields] = <[Value; 2]>::try_from(pair).map_err(|_| wrong())?;
        let mut entry = AuditEntry { cursor: text(&bytes(cursor)?), ..AuditEntry::default() };
        for pair in list(fields)?.chunks(2) {
            let [name, value] = pair else { continue };
            match name.as_slice() {
                b"id" => entry.id = text(value),
                b"n" => entry.number = text(value),
                b"prev" => entry.previous = text(value),
                b"hash" => entry.hash = text(value),
                b"body" => entry.body = text(value),
                _ => {}
            }
        }
        found.push(entry);
    }
    Ok(found)
}

/// Whether this can be a stream id; anything else would be an error of Redis.
fn is_stream_id(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.len() <= 19 && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('-').is_some_and(|(ms, n)| number(ms) && number(n))
}

impl Store {
    /// Entries in the order of the log, after the one at this place.
    pub(super) async fn audit_after(&self, cursor: &str, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        let from = if cursor.is_empty() { "-".to_owned() } else { format!("({cursor}") };
        let key = keys::audit();
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(key.as_bytes()).arg(from).arg("+").arg("COUNT").arg(limit);
        entries(self.router().call(Command::plain(cmd)).await?)
    }

    /// Entries that pass the filter, newest first, and where to go on. A page may be short.
    pub async fn list_audit(
        &self,
        filter: &AuditFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<AuditEntry>, Option<String>), ListError> {
        if cursor.is_some_and(|cursor| !is_stream_id(cursor)) {
            return Err(ListError::BadCursor);
        }
        let key = keys::audit();
        let mut below = cursor.map(str::to_owned);
        let (mut found, mut looked) = (Vec::new(), 0);
        while looked < PAGE_WORK {
            let from = below.as_ref().map_or("+".to_owned(), |cursor| format!("({cursor}"));
            let mut cmd = redis::cmd("XREVRANGE");
            cmd.arg(key.as_bytes()).arg(from).arg("-").arg("COUNT").arg(STEP);
            let page = entries(self.router().call(Command::plain(cmd)).await?)?;
            let over = page.len() < STEP;
            looked += page.len();
            for entry in page {
                below = Some(entry.cursor.clone());
                let Some(act) = entry.act() else { continue };
                // An act is told after it was done, so what Redis took in before cannot be later.
                if filter.after.is_some_and(|after| entry.millis() < after.0 / 1000) {
                    return Ok((found, None));
                }
                if filter.fits(&act) {
                    found.push(entry);
                    if found.len() == limit {
                        return Ok((found, below));
                    }
                }
            }
            if over {
                return Ok((found, None));
            }
        }
        Ok((found, below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_two_numbers() {
        for (text, fine) in [
            ("1-0", true),
            ("1700000000000-12", true),
            ("", false),
            ("+", false),
            ("1", false),
            ("a-1", false),
            ("1-", false),
        ] {
            assert_eq!(is_stream_id(text), fine, "{text:?}");
        }
    }
}
