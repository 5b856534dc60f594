//! Reading entries from the stream, and pages of entries.

use muster_domain::{Act, Time};
use redis::Value;

use crate::{
    ListError, Store, StoreError, keys,
    router::Command,
    script::{bytes, list},
};

/// The most entries read for one page.
const PAGE_WORK: usize = 2_000;
/// How many entries are read at once.
const STEP: usize = 500;

/// An entry of the log, as stored.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct AuditEntry {
    /// The entry's id in the stream.
    pub cursor: String,
    /// The id of the act.
    pub id: String,
    /// The entry's number in the chain.
    pub number: String,
    /// The hash of the entry before.
    pub previous: String,
    /// The hash of this entry.
    pub hash: String,
    /// The content, verbatim: JSON.
    pub body: String,
}

impl AuditEntry {
    /// The content, if it can be parsed.
    pub fn act(&self) -> Option<Act> {
        serde_json::from_str(&self.body).ok()
    }

    /// When Redis stored the entry, in milliseconds.
    pub(super) fn millis(&self) -> u64 {
        self.cursor.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0)
    }
}

/// A filter for entries; an absent field matches all.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// The tenant.
    pub tenant: Option<String>,
    /// The action.
    pub action: Option<String>,
    /// The actor.
    pub actor: Option<String>,
    /// The id of the job.
    pub job: Option<String>,
    /// Only entries at this time or later.
    pub after: Option<Time>,
    /// Only entries before this time.
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

/// Parses the reply of XRANGE and similar commands. Skips unknown fields.
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

/// Whether this can be a stream id; Redis would answer anything else with an error.
fn is_stream_id(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.len() <= 19 && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('-').is_some_and(|(ms, n)| number(ms) && number(n))
}

impl Store {
    /// Entries in the order of the log, after this stream id.
    pub(super) async fn audit_after(&self, cursor: &str, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        let from = if cursor.is_empty() { "-".to_owned() } else { format!("({cursor}") };
        let key = keys::audit();
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(key.as_bytes()).arg(from).arg("+").arg("COUNT").arg(limit);
        entries(self.router().call(Command::plain(cmd)).await?)
    }

    /// The newest entries, in the order of the log.
    pub(super) async fn newest_audit(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        let key = keys::audit();
        let mut cmd = redis::cmd("XREVRANGE");
        cmd.arg(key.as_bytes()).arg("+").arg("-").arg("COUNT").arg(limit);
        let mut newest = entries(self.router().call(Command::plain(cmd)).await?)?;
        newest.reverse();
        Ok(newest)
    }

    /// Entries that match the filter, newest first, and the cursor of the next page. A page may be short.
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
                // An entry is stored after its act's time, so an entry stored before `after`, and
                // every older one, is too old.
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
