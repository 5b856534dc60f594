//! Dead letters: jobs that ended badly, by tenant and time, and messages that could not be read, as received.

use std::time::Duration;

use bytes::Bytes;
use muster_domain::{JobId, Tenant, Time};

use crate::{
    ListError, Store, StoreError, keys,
    router::Command,
    script::{list, number},
};

/// How long an unreadable message is kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A message that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMessage {
    /// Derived from the time and the sequence of the message on its stream: the same message is the same dead letter.
    pub id: String,
    /// The subject of the message.
    pub subject: String,
    /// What is wrong with the message.
    pub reason: String,
    /// The bytes of the message.
    pub original: Bytes,
    /// When the message was found, in Redis time.
    pub at: Time,
}

/// Why a message could not be read, without the message's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMessageCause {
    /// The subject of the message.
    pub subject: String,
    /// What is wrong with the message.
    pub reason: String,
    /// When the message was found, in Redis time.
    pub at: Time,
}

impl Store {
    /// Adds jobs that ended badly. Repeating is harmless.
    pub async fn add_dead_letters(&self, items: &[(Tenant, JobId, Time)]) -> Result<(), StoreError> {
        let command = |(tenant, id, at): &(Tenant, JobId, Time)| {
            let key = keys::dead_letters(tenant);
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(key.as_bytes()).arg(at.0).arg(id.to_string());
            Command::plain(cmd)
        };
        let replies = self.router().many(items.iter().map(command).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// The number of jobs and messages among the dead letters, over all tenants. Two reads, and the length of a list
    /// for each tenant.
    pub async fn count_all_dead_letters(&self) -> Result<u64, StoreError> {
        let tenants = self.listed_tenants().await?;
        let places = tenants.iter().map(keys::dead_letters).chain([keys::dead_messages()]);
        let length = |place: keys::Key| {
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(place.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many(places.map(length).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + number::<u64>(&reply?)?))
    }

    /// Removes a job from the dead letters. Repeating is harmless.
    pub async fn drop_dead_letter(&self, tenant: &Tenant, id: JobId) -> Result<(), StoreError> {
        let key = keys::dead_letters(tenant);
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(key.as_bytes()).arg(id.to_string());
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }

    /// A tenant's dead letters, newest first, below the given one; and whether there may be more.
    pub(crate) async fn dead_letters_below(
        &self,
        tenant: &Tenant,
        below: Option<(u64, JobId)>,
        limit: usize,
    ) -> Result<(Vec<(JobId, Time)>, bool), StoreError> {
        let key = keys::dead_letters(tenant);
        let mut cmd = redis::cmd("ZREVRANGEBYSCORE");
        let from = below.map_or("+inf".to_owned(), |(at, _)| at.to_string());
        cmd.arg(key.as_bytes()).arg(from).arg("-inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(limit + 64);
        let raw = list(self.router().call(Command::plain(cmd)).await?)?;
        let entry = |pair: &[Vec<u8>]| {
            let id: JobId = std::str::from_utf8(&pair[0]).ok()?.parse().ok()?;
            let at: f64 = std::str::from_utf8(pair.get(1)?).ok()?.parse().ok()?;
            Some((id, Time(at as u64)))
        };
        // Entries of the cursor's own microsecond come in falling order of their text; skip those already shown.
        let seen = |(id, at): &(JobId, Time)| {
            below.is_some_and(|(score, last)| at.0 == score && id.to_string() >= last.to_string())
        };
        let found: Vec<(JobId, Time)> = raw.chunks(2).filter_map(entry).filter(|e| !seen(e)).take(limit).collect();
        let more = found.len() == limit || raw.len() / 2 == limit + 64;
        Ok((found, more))
    }

    /// Keeps an unreadable message for thirty days. Repeating is harmless.
    pub async fn add_dead_message(&self, message: &DeadMessage) -> Result<(), StoreError> {
        let key = keys::dead_message(&message.id);
        let mut put = redis::cmd("HSET");
        put.arg(key.as_bytes())
            .arg("subject")
            .arg(&message.subject)
            .arg("reason")
            .arg(&message.reason)
            .arg("original")
            .arg(message.original.as_ref())
            .arg("at")
            .arg(message.at.0);
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(key.as_bytes()).arg(KEPT.as_secs());
        let index = keys::dead_messages();
        let mut enter = redis::cmd("ZADD");
        enter.arg(index.as_bytes()).arg(message.at.0).arg(&message.id);
        let mut trim = redis::cmd("ZREMRANGEBYSCORE");
        trim.arg(index.as_bytes()).arg("-inf").arg(self.now().before(KEPT).0);
        let commands = [put, expire, enter, trim].map(Command::plain);
        let replies = self.router().many(commands.into()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// How many jobs of a tenant are in the dead letters.
    pub async fn count_dead_letters(&self, tenant: &Tenant) -> Result<u64, StoreError> {
        self.count(&keys::dead_letters(tenant)).await
    }

    /// How many unreadable messages are kept.
    pub async fn count_dead_messages(&self) -> Result<u64, StoreError> {
        self.count(&keys::dead_messages()).await
    }

    async fn count(&self, key: &keys::Key) -> Result<u64, StoreError> {
        let mut cmd = redis::cmd("ZCARD");
        cmd.arg(key.as_bytes());
        crate::script::number(&self.router().call(Command::plain(cmd)).await?)
    }

    /// Unreadable messages, newest first, below the cursor; and the next cursor.
    pub async fn list_dead_messages(
        &self,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<DeadMessage>, Option<String>), ListError> {
        let (ids, next) = self.newest_below(&keys::dead_messages(), "m", cursor, limit).await?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.extend(self.dead_message(&id).await?);
        }
        Ok((found, next))
    }

    /// Why the newest unreadable messages could not be read, at most `limit` of them. Changes nothing.
    pub async fn dead_message_causes(&self, limit: usize) -> Result<Vec<DeadMessageCause>, ListError> {
        let (ids, _) = self.newest_below(&keys::dead_messages(), "m", None, limit).await?;
        let command = |id: &String| {
            let key = keys::dead_message(id);
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(key.as_bytes()).arg(&["subject", "reason", "at"]);
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(command).collect()).await;
        let mut causes = Vec::with_capacity(replies.len());
        for reply in replies {
            // A message that was removed in the meantime has no fields.
            let fields = redis::from_redis_value::<Vec<Option<String>>>(reply?);
            if let Ok([Some(subject), Some(reason), Some(at)]) = fields.as_deref() {
                let at = Time(at.parse().unwrap_or_default());
                causes.push(DeadMessageCause { subject: subject.clone(), reason: reason.clone(), at });
            }
        }
        Ok(causes)
    }

    /// Removes an unreadable message; false if there is none. Repeating is harmless.
    pub async fn delete_dead_message(&self, id: &str) -> Result<bool, StoreError> {
        let (key, index) = (keys::dead_message(id), keys::dead_messages());
        let mut delete = redis::cmd("DEL");
        delete.arg(key.as_bytes());
        let mut leave = redis::cmd("ZREM");
        leave.arg(index.as_bytes()).arg(id);
        let replies = self.router().many([delete, leave].map(Command::plain).into()).await;
        let gone = replies.into_iter().map(|reply| crate::script::number::<u64>(&reply?));
        gone.sum::<Result<u64, StoreError>>().map(|gone| gone > 0)
    }

    /// The members of a set that is ordered by time, newest first, and the cursor to continue with. A cursor consists
    /// of the kind of list, the last member's time and its name.
    pub(crate) async fn newest_below(
        &self,
        key: &keys::Key,
        kind: &str,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), ListError> {
        let parse = |text: &str| {
            let (at, name) = text.strip_prefix(kind)?.strip_prefix('.')?.split_once('.')?;
            Some((at.parse::<u64>().ok()?, name.to_owned()))
        };
        let below = cursor.map(|text| parse(text).ok_or(ListError::BadCursor)).transpose()?;
        let from = below.as_ref().map_or("+inf".to_owned(), |(at, _)| at.to_string());
        let mut cmd = redis::cmd("ZREVRANGEBYSCORE");
        cmd.arg(key.as_bytes()).arg(from).arg("-inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(limit + 65);
        let raw = list(self.router().call(Command::plain(cmd)).await?)?;
        let entry = |pair: &[Vec<u8>]| {
            let at: f64 = std::str::from_utf8(pair.get(1)?).ok()?.parse().ok()?;
            Some((at as u64, String::from_utf8(pair[0].clone()).ok()?))
        };
        let unseen =
            |(at, name): &(u64, String)| below.as_ref().is_none_or(|(b, last)| at < b || (at == b && name < last));
        let mut entries: Vec<(u64, String)> = raw.chunks(2).filter_map(entry).filter(unseen).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|(at, name)| format!("{kind}.{at}.{name}"));
        Ok((entries.into_iter().map(|(_, name)| name).collect(), next))
    }

    /// Reads an unreadable message's record: subject, reason, original bytes.
    pub async fn dead_message(&self, id: &str) -> Result<Option<DeadMessage>, StoreError> {
        let key = keys::dead_message(id);
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(key.as_bytes()).arg(&["subject", "reason", "original", "at"]);
        let reply = self.router().call(Command::plain(cmd)).await?;
        let redis::Value::Array(fields) = reply else { return Ok(None) };
        let [subject, reason, original, at] =
            <[redis::Value; 4]>::try_from(fields).map_err(|_| StoreError::Decode("a dead message".into()))?;
        if subject == redis::Value::Nil {
            return Ok(None);
        }
        let text = |value| crate::script::bytes(value).map(|b| String::from_utf8_lossy(&b).into_owned());
        Ok(Some(DeadMessage {
            id: id.to_owned(),
            subject: text(subject)?,
            reason: text(reason)?,
            original: crate::script::bytes(original)?.into(),
            at: Time(crate::script::number(&at)?),
        }))
    }
}
