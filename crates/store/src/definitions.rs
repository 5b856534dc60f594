//! Definitions of workflows: one hash each, with every version that there was.
//!
//! The server counts versions 1, 2, 3 …; content equal to the latest makes no new one. A definition that is deleted is
//! only hidden: its versions stay for the runs that have begun with them, and the next version has a number of its own. A
//! sorted set per tenant has the names, and is written before the hash and again after it: a name without a definition is
//! not shown. What a definition says is opaque here.

use bytes::Bytes;
use muster_domain::{Tenant, Time, WorkflowName};

use crate::{SeenVersion, Store, StoreError, keys, router::Command, script::list, scripts};

/// A version of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The number of the version.
    pub version: u32,
    /// When the version was stored, in Redis time.
    pub stored_at: Time,
    /// The content.
    pub text: Bytes,
}

/// A version without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinitionVersion {
    /// The number of the version.
    pub version: u32,
    /// When the version was stored, in Redis time.
    pub stored_at: Time,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutDefinition {
    /// This is the version now.
    Stored {
        /// The number of the version.
        version: u32,
        /// Whether this call made it; false if the content was equal to the latest version.
        new: bool,
    },
    /// Another version is shown than the caller has seen; nothing was written. None: no version is shown.
    Mismatch(Option<u32>),
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedDefinition {
    /// The definition is hidden; this was its latest version.
    Hidden(u32),
    /// No version was shown.
    Missing,
    /// Another version is shown than the caller has seen; nothing was changed.
    Mismatch(u32),
}

fn decode(what: &str) -> StoreError {
    StoreError::Decode(format!("a definition: {what}"))
}

fn text(raw: &[u8]) -> Option<&str> {
    std::str::from_utf8(raw).ok()
}

fn shown(version: u64) -> Option<u32> {
    u32::try_from(version).ok().filter(|version| *version > 0)
}

impl Store {
    /// Stores a definition, if the version that is shown is the one that the caller has seen. Content with the hash of
    /// the latest version makes no new one. A call that is sent twice is one write; after an error the definition may or
    /// may not be stored.
    pub async fn put_definition(
        &self,
        tenant: &Tenant,
        name: &WorkflowName,
        seen: SeenVersion,
        canonical: &Bytes,
        hash: &[u8; 32],
    ) -> Result<PutDefinition, StoreError> {
        self.name_definition(tenant, name).await?;
        let call = scripts::definition::Put {
            key: keys::definition(tenant, name),
            writer: uuid::Uuid::new_v4().into_bytes().to_vec(),
            seen: seen.text(),
            hash: hash.to_vec(),
            text: canonical.to_vec(),
        };
        let reply = self.run(call).await?;
        if reply.outcome == 0 {
            return Ok(PutDefinition::Mismatch(shown(reply.version)));
        }
        let version = shown(reply.version).ok_or_else(|| decode("no version"))?;
        let new = reply.outcome == 1;
        if new {
            // A deletion at the same time may have removed the name.
            self.name_definition(tenant, name).await?;
        }
        Ok(PutDefinition::Stored { version, new })
    }

    async fn name_definition(&self, tenant: &Tenant, name: &WorkflowName) -> Result<(), StoreError> {
        let key = keys::definitions(tenant);
        let mut cmd = redis::cmd("ZADD");
        cmd.arg(key.as_bytes()).arg(0).arg(name.as_str());
        self.router().call(Command::plain(cmd)).await.map(drop)
    }

    /// Reads a version of a definition, also of a hidden one; without a number the latest, unless it is hidden.
    pub async fn read_definition(
        &self,
        tenant: &Tenant,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<Definition>, StoreError> {
        let version = match version {
            Some(version) => version,
            None => match self.shown_versions(tenant, std::slice::from_ref(name)).await?.pop().flatten() {
                Some(latest) => latest,
                None => return Ok(None),
            },
        };
        let key = keys::definition(tenant, name);
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(key.as_bytes()).arg(version).arg(format!("t{version}"));
        let reply = self.router().call(Command::plain(cmd)).await?;
        let fields = redis::from_redis_value::<(Option<Vec<u8>>, Option<u64>)>(reply);
        let (content, at) = fields.map_err(|fault| decode(&fault.to_string()))?;
        let stored_at = Time(at.unwrap_or_default());
        Ok(content.map(|content| Definition { version, stored_at, text: content.into() }))
    }

    /// The latest versions of these definitions, in order; none for one that is hidden or was never stored.
    pub async fn shown_versions(
        &self,
        tenant: &Tenant,
        names: &[WorkflowName],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let command = |name: &WorkflowName| {
            let key = keys::definition(tenant, name);
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(key.as_bytes()).arg("n").arg("x");
            Command::plain(cmd)
        };
        let replies = self.router().many(names.iter().map(command).collect()).await;
        let read = |reply: Result<redis::Value, StoreError>| {
            let fields = redis::from_redis_value::<(Option<u32>, Option<Vec<u8>>)>(reply?);
            let (latest, hidden) = fields.map_err(|fault| decode(&fault.to_string()))?;
            Ok(latest.filter(|_| hidden.is_none()))
        };
        replies.into_iter().map(read).collect()
    }

    /// Every version of a definition, newest first, also if it is hidden.
    pub async fn definition_versions(
        &self,
        tenant: &Tenant,
        name: &WorkflowName,
    ) -> Result<Vec<DefinitionVersion>, StoreError> {
        let key = keys::definition(tenant, name);
        let mut latest = redis::cmd("HGET");
        latest.arg(key.as_bytes()).arg("n");
        let latest = self.router().call(Command::plain(latest)).await?;
        let latest = redis::from_redis_value::<Option<u32>>(latest).map_err(|fault| decode(&fault.to_string()))?;
        let all: Vec<u32> = (1..=latest.unwrap_or_default()).rev().collect();
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(key.as_bytes()).arg(all.iter().map(|version| format!("t{version}")).collect::<Vec<_>>());
        let times = self.router().call(Command::plain(cmd)).await?;
        let times = redis::from_redis_value::<Vec<Option<u64>>>(times).map_err(|fault| decode(&fault.to_string()))?;
        let version = |(version, at): (u32, Option<u64>)| Some(DefinitionVersion { version, stored_at: Time(at?) });
        Ok(all.into_iter().zip(times).filter_map(version).collect())
    }

    /// Names and latest versions of a tenant's definitions that are shown, in order of their names, behind `after`; and
    /// the name to continue behind, if there are more.
    pub async fn list_definitions(
        &self,
        tenant: &Tenant,
        after: Option<&WorkflowName>,
        limit: usize,
    ) -> Result<(Vec<(WorkflowName, u32)>, Option<WorkflowName>), StoreError> {
        let key = keys::definitions(tenant);
        let mut cmd = redis::cmd("ZRANGEBYLEX");
        let from = after.map_or("-".to_owned(), |name| format!("({name}"));
        cmd.arg(key.as_bytes()).arg(from).arg("+").arg("LIMIT").arg(0).arg(limit + 1);
        let names = list(self.router().call(Command::plain(cmd)).await?)?;
        let mut names: Vec<_> = names.iter().filter_map(|name| WorkflowName::parse(text(name)?).ok()).collect();
        let more = names.len() > limit;
        names.truncate(limit);
        let next = if more { names.last().cloned() } else { None };
        let versions = self.shown_versions(tenant, &names).await?;
        Ok((names.into_iter().zip(versions).filter_map(|(name, version)| Some((name, version?))).collect(), next))
    }

    /// Hides a definition, if the version that is shown is the one that the caller has seen. Its versions stay. Repeating
    /// is harmless, and finds nothing to hide.
    pub async fn delete_definition(
        &self,
        tenant: &Tenant,
        name: &WorkflowName,
        seen: SeenVersion,
    ) -> Result<DeletedDefinition, StoreError> {
        let call = scripts::definition::Hide { key: keys::definition(tenant, name), seen: seen.text() };
        let reply = self.run(call).await?;
        if reply.outcome == 0 {
            return Ok(DeletedDefinition::Mismatch(shown(reply.version).unwrap_or_default()));
        }
        let key = keys::definitions(tenant);
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(key.as_bytes()).arg(name.as_str());
        self.router().call(Command::plain(cmd)).await?;
        if self.shown_versions(tenant, std::slice::from_ref(name)).await?.pop().flatten().is_some() {
            // Stored again in the meantime.
            self.name_definition(tenant, name).await?;
        }
        Ok(shown(reply.version).map_or(DeletedDefinition::Missing, DeletedDefinition::Hidden))
    }
}
