//! Checks the chain and reports where it breaks.
//!
//! Memory use does not grow with the log, and a call checks a bounded number of entries. The returned cursor holds the
//! place where the call stopped and everything that the next call needs.

use muster_domain::Act;
use redis::Value;

use super::{GENESIS, link, read::AuditEntry, trim};
use crate::{
    ListError, Store, StoreError, keys,
    router::Command,
    script::{bytes, number},
};

/// How many entries are read at once.
const STEP: usize = 500;

/// Where the chain breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditBreak {
    /// The number that the entry should have.
    pub number: u64,
    /// The entry's id in the stream; empty if the entry is missing.
    pub cursor: String,
    /// The id of the act, as far as it can be read.
    pub id: String,
    /// What is wrong.
    pub reason: String,
}

/// The result of a check of the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// The number of valid entries.
    pub checked: u64,
    /// The number of the oldest entry that is kept.
    pub first: u64,
    /// The number of the last checked entry.
    pub last: u64,
    /// The hash of the last checked entry. With a note of this hash, an auditor can later prove that no earlier entry
    /// was changed.
    pub hash: String,
    /// Where the chain breaks.
    pub broken: Option<AuditBreak>,
    /// The cursor to continue with; none at the end.
    pub next_cursor: Option<String>,
}

/// The progress of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stand {
    /// The stream id of the last checked entry; empty before the first.
    cursor: String,
    number: u64,
    hash: String,
    /// The number before the oldest entry, and the hash that the oldest entry is linked to.
    begins: (u64, String),
    /// An entry records that retention removed everything before.
    anchored: bool,
    checked: u64,
}

impl Stand {
    fn new() -> Stand {
        let hash = GENESIS.to_owned();
        Stand { cursor: String::new(), number: 0, begins: (0, hash.clone()), hash, anchored: true, checked: 0 }
    }

    fn to_text(&self) -> String {
        let Stand { cursor, number, hash, begins: (before, anchor), anchored, checked } = self;
        format!("{cursor}.{number}.{hash}.{before}.{anchor}.{}.{checked}", u8::from(*anchored))
    }

    fn parse(text: &str) -> Option<Stand> {
        let parts: Vec<&str> = text.split('.').collect();
        let [cursor, number, hash, before, anchor, anchored, checked] = parts[..] else { return None };
        let plain = |part: &str| part.len() <= 64 && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if ![cursor, hash, anchor].into_iter().all(plain) || !cursor.contains('-') {
            return None;
        }
        Some(Stand {
            cursor: cursor.to_owned(),
            number: number.parse().ok()?,
            hash: hash.to_owned(),
            begins: (before.parse().ok()?, anchor.to_owned()),
            anchored: anchored == "1",
            checked: checked.parse().ok()?,
        })
    }

    /// Checks one more entry; returns what is wrong with it.
    fn step(&mut self, entry: &AuditEntry) -> Result<(), String> {
        let number: u64 = entry.number.parse().map_err(|_| "it has no number: it was not written by Muster")?;
        if self.cursor.is_empty() && number != 1 {
            // This is the oldest remaining entry: a later entry records the hash that it is linked to.
            self.begins = (number.saturating_sub(1), entry.previous.clone());
            (self.number, self.hash, self.anchored) = (self.begins.0, self.begins.1.clone(), false);
        }
        if number != self.number + 1 {
            return Err(format!("its number is {number}: entries were removed or inserted before it"));
        }
        if entry.previous != self.hash {
            return Err("it is not linked to the entry before it".to_owned());
        }
        if link(&self.hash, &entry.number, &entry.body) != entry.hash {
            return Err("its hash does not match its content: it was changed".to_owned());
        }
        let act: Act = entry.act().ok_or("it cannot be read")?;
        if act.id != entry.id {
            return Err("its id differs from the id in its content".to_owned());
        }
        self.anchored |= trim::anchor(&act).is_some_and(|(n, hash)| n == self.begins.0 && hash == self.begins.1);
        self.number = number;
        self.hash.clone_from(&entry.hash);
        self.cursor.clone_from(&entry.cursor);
        self.checked += 1;
        Ok(())
    }
}

impl Store {
    /// Checks the chain from its beginning, or from where an earlier call stopped, over at most about `limit` entries.
    /// Only reads.
    pub async fn verify_audit(&self, cursor: Option<&str>, limit: usize) -> Result<AuditReport, ListError> {
        let mut stand = match cursor {
            None => Stand::new(),
            Some(text) => Stand::parse(text).ok_or(ListError::BadCursor)?,
        };
        let (mut looked, mut broken) = (0, None);
        let mut over = false;
        while looked < limit && broken.is_none() && !over {
            let page = self.audit_after(&stand.cursor, STEP).await?;
            over = page.len() < STEP;
            looked += page.len();
            for entry in &page {
                if let Err(reason) = stand.step(entry) {
                    // Retention may have overtaken the check: the entries that it would check next were removed,
                    // rightly.
                    if self.left_meanwhile(&stand).await? {
                        return self.begin_again(limit).await;
                    }
                    let (cursor, id) = (entry.cursor.clone(), entry.id.clone());
                    broken = Some(AuditBreak { number: stand.number + 1, cursor, id, reason });
                    break;
                }
            }
        }
        if over && broken.is_none() {
            broken = self.ends_well(&stand).await?;
        }
        let report = AuditReport {
            checked: stand.checked,
            first: if stand.checked > 0 { stand.begins.0 + 1 } else { 0 },
            last: stand.number,
            hash: stand.hash.clone(),
            next_cursor: (!over && broken.is_none()).then(|| stand.to_text()),
            broken,
        };
        Ok(report)
    }

    /// Checks only the newest `limit` entries: whether each is linked to the one before and matches its hash, and
    /// whether the last one is there. Two or three reads. Older entries are not checked.
    pub async fn verify_audit_tail(&self, limit: usize) -> Result<Option<AuditBreak>, StoreError> {
        let mut stand = Stand::new();
        for entry in self.newest_audit(limit).await? {
            if let Err(reason) = stand.step(&entry) {
                let (cursor, id) = (entry.cursor, entry.id);
                return Ok(Some(AuditBreak { number: stand.number + 1, cursor, id, reason }));
            }
        }
        // Only a check of the whole log shows whether older entries were removed by retention.
        stand.anchored = true;
        self.ends_well(&stand).await
    }

    async fn begin_again(&self, limit: usize) -> Result<AuditReport, ListError> {
        Box::pin(self.verify_audit(None, limit)).await
    }

    /// Whether the log now begins after the last checked entry.
    async fn left_meanwhile(&self, stand: &Stand) -> Result<bool, StoreError> {
        let first = self.audit_after("", 1).await?;
        let number = first.first().and_then(|entry| entry.number.parse::<u64>().ok());
        Ok(!stand.cursor.is_empty() && number.is_some_and(|first| first > stand.number + 1))
    }

    /// Checks what the links cannot show: a beginning or an end that was cut off by hand.
    async fn ends_well(&self, stand: &Stand) -> Result<Option<AuditBreak>, StoreError> {
        let at = |number: u64, reason: &str| {
            Some(AuditBreak { number, cursor: String::new(), id: String::new(), reason: reason.to_owned() })
        };
        if !stand.anchored {
            return Ok(at(
                stand.begins.0,
                "the entries up to this one are gone, and no entry says that retention removed them",
            ));
        }
        let ends = self.audit_end().await?;
        let Some((last, length, ids)) = ends else { return Ok(None) };
        if stand.cursor.is_empty() && last == "0-0" {
            return Ok(None);
        }
        // A process may have added entries since the last page.
        let newest = self.audit_after(&stand.cursor, 1).await?;
        if newest.is_empty() && last != stand.cursor {
            return Ok(at(stand.number + 1, "the newest entries were removed"));
        }
        let kept = stand.number - stand.begins.0;
        if newest.is_empty() && length == kept && ids.is_some_and(|ids| ids > length) {
            return Ok(at(
                stand.number,
                "the entries of some recorded ids are missing: the newest entries were removed, and others were added \
                 since",
            ));
        }
        Ok(None)
    }

    /// The last id that the stream gave, how many entries it has, and how many ids are remembered.
    async fn audit_end(&self) -> Result<Option<(String, u64, Option<u64>)>, StoreError> {
        let key = keys::audit();
        let mut exists = redis::cmd("EXISTS");
        exists.arg(key.as_bytes());
        if number::<u64>(&self.router().call(Command::plain(exists)).await?)? == 0 {
            return Ok(None);
        }
        let mut stream = redis::cmd("XINFO");
        stream.arg("STREAM").arg(key.as_bytes());
        let mut groups = redis::cmd("XINFO");
        groups.arg("GROUPS").arg(key.as_bytes());
        let stream = facts(self.router().call(Command::plain_at(stream, 2)).await?);
        let Value::Array(groups) = self.router().call(Command::plain_at(groups, 2)).await? else {
            return Err(StoreError::Decode("XINFO GROUPS".into()));
        };
        let fact = |name: &str| stream.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let wrong = || StoreError::Decode("XINFO STREAM".into());
        let last = bytes(fact("last-generated-id").cloned().ok_or_else(wrong)?)?;
        let length = number(fact("length").ok_or_else(wrong)?)?;
        let named = |group: &Vec<(String, Value)>| {
            group.iter().any(|(name, value)| name == "name" && bytes(value.clone()).is_ok_and(|name| name == b"ids"))
        };
        let ids = groups.into_iter().map(facts).find(named);
        let ids = ids.and_then(|group| group.into_iter().find(|(name, _)| name == "consumers"));
        Ok(Some((String::from_utf8_lossy(&last).into_owned(), length, ids.and_then(|(_, n)| number(&n).ok()))))
    }
}

/// The names and values in a reply of XINFO.
fn facts(reply: Value) -> Vec<(String, Value)> {
    let text = |value: Value| bytes(value).map(|raw| String::from_utf8_lossy(&raw).into_owned()).unwrap_or_default();
    match reply {
        Value::Map(pairs) => pairs.into_iter().map(|(name, value)| (text(name), value)).collect(),
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| Some((text(flat.next()?), flat.next()?))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_on_where_its_cursor_says() {
        let stand = Stand {
            cursor: "1700000000000-3".into(),
            number: 7,
            hash: "ab".repeat(32),
            begins: (4, "cd".repeat(32)),
            anchored: false,
            checked: 3,
        };
        assert_eq!(Stand::parse(&stand.to_text()), Some(stand));
        for odd in ["", "1-0", "1-0.x.y.1.z.1.1", "(1-0.1.a.1.b.1.1", ".1.a.1.b.1.1"] {
            assert_eq!(Stand::parse(odd), None, "{odd}");
        }
    }
}
