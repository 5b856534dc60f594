//! Concurrency slots and places: one sorted set per limit, with the jobs that hold a slot and the jobs that wait for
//! one.
//!
//! No more than `max` members hold a slot of a set. Each call is one script on one key and may be repeated. Time alone
//! never frees a slot: a member's score is the time when a scheduler should check its job's record, and a removal after
//! such a check compares that score. `domain::slot` judges slots, and the scheduler admits jobs.

use std::time::Duration;

use muster_domain::{
    JobId, Priority, Tenant, Time, Topic,
    slot::{Limit, SLOT_LOOK},
    time::micros,
};
use muster_wire::v1;

use crate::{
    Record, Store, StoreError, keys,
    router::Command,
    script::{list, number},
    scripts,
};

/// A slot that a job holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// The tenant that owns the job.
    pub tenant: Tenant,
    /// The limit that the slot belongs to.
    pub limit: Limit,
    /// The id of the job.
    pub job: JobId,
    /// The version under which the job was, or will be, admitted.
    pub version: u32,
}

impl SlotRef {
    /// The slots that a record names, if its job was ever admitted: of its key, of its topic, or both.
    pub fn of(record: &Record) -> Vec<SlotRef> {
        let carried = record.carried_slot();
        carried.map_or_else(Vec::new, |slot| SlotRef::carried(&record.spec.tenant, &record.spec.topic, record.id, slot))
    }

    /// The slots that an offer carried to a worker and that the worker's result returns.
    pub fn carried(tenant: &Tenant, topic: &Topic, job: JobId, slot: v1::Slot) -> Vec<SlotRef> {
        let v1::Slot { key, version, place } = slot;
        let limits = [(!key.is_empty()).then_some(Limit::Key(key)), place.then(|| Limit::Topic(topic.clone()))];
        let named = |limit| SlotRef { tenant: tenant.clone(), limit, job, version };
        limits.into_iter().flatten().map(named).collect()
    }

    fn member(&self) -> Vec<u8> {
        format!("{}:{}", self.job, self.version).into_bytes()
    }

    fn named(tenant: &Tenant, limit: &Limit, member: &[u8]) -> Option<SlotRef> {
        let (job, version) = std::str::from_utf8(member).ok()?.split_once(':')?;
        let (job, version) = (job.parse().ok()?, version.parse().ok()?);
        Some(SlotRef { tenant: tenant.clone(), limit: limit.clone(), job, version })
    }
}

impl Record {
    /// The slots that the job was admitted to, in the form that its offer carries; none if there are none.
    pub fn carried_slot(&self) -> Option<v1::Slot> {
        let (key, place) = (self.spec.concurrency_key.clone(), self.placed);
        let version = self.slot.filter(|_| place || !key.is_empty())?;
        Some(v1::Slot { key, version, place })
    }
}

/// A request for a slot.
#[derive(Clone, Debug)]
pub struct SlotAsk {
    /// The slot.
    pub slot: SlotRef,
    /// How many slots the limit has.
    pub max: u32,
    /// The order of the jobs that wait for a slot of a key: by priority,
    pub priority: Priority,
    /// then by age. Jobs do not wait here for a place of a topic: the topic's backlog holds them.
    pub since: Time,
}

/// The result of a request for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotTaken {
    /// The job now holds the slot.
    Admitted,
    /// The job held the slot before, as read at this time: a scheduler is about to dispatch the job, or died before
    /// that.
    Before(Vec<SlotHeld>, Time),
    /// All slots are held, as read at this time, by these jobs (at most 64). A job that needs a slot of a key now waits
    /// for it.
    Full(Vec<SlotHeld>, Time),
}

/// A slot that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHeld {
    /// The slot.
    pub slot: SlotRef,
    /// When a scheduler should check whether the slot is still in use.
    pub look: Time,
}

/// The distance between the turns of two priorities: larger than any time.
const PRIORITY: i64 = 2_000_000_000_000_000;

/// The score of a waiting job: negative, and lowest for the job that goes first.
fn turn(priority: Priority, since: Time) -> i64 {
    let rank = Priority::ALL.iter().position(|known| *known == priority).unwrap_or(0) as i64;
    let since = i64::try_from(since.0).unwrap_or(PRIORITY).min(PRIORITY - 1);
    (rank - Priority::ALL.len() as i64) * PRIORITY + since
}

impl Store {
    /// Requests slots, each in one script with its own answer. A job that gets no slot of a key waits for one. A
    /// repetition after a grant returns [`SlotTaken::Before`].
    pub async fn take_slots(&self, asks: &[SlotAsk]) -> Vec<Result<SlotTaken, StoreError>> {
        let call = |ask: &SlotAsk| scripts::slot::Take {
            key: keys::slots(&ask.slot.tenant, &ask.slot.limit),
            member: ask.slot.member(),
            max: ask.max.into(),
            look: micros(SLOT_LOOK),
            turn: match ask.slot.limit {
                Limit::Key(_) => turn(ask.priority, ask.since),
                Limit::Topic(_) => 0,
            },
        };
        let replies = self.run_many(asks.iter().map(call).collect()).await;
        let read = |(ask, reply): (&SlotAsk, Result<scripts::slot::TakeReply, StoreError>)| {
            let reply = reply?;
            Ok(match reply.outcome {
                1 => SlotTaken::Admitted,
                2 => SlotTaken::Before(held(&ask.slot.tenant, &ask.slot.limit, &reply.holders), Time(reply.now)),
                _ => SlotTaken::Full(held(&ask.slot.tenant, &ask.slot.limit, &reply.holders), Time(reply.now)),
            })
        };
        asks.iter().zip(replies).map(read).collect()
    }

    /// Frees a slot, or removes a waiting job; with `seen` only if the slot's time for the next check is still that
    /// one. Returns the first waiting job. Repeating is harmless.
    pub async fn free_slot(&self, slot: &SlotRef, seen: Option<Time>) -> Result<Option<SlotRef>, StoreError> {
        let reply = self.run(free(slot, seen)).await?;
        Ok(SlotRef::named(&slot.tenant, &slot.limit, &reply.next))
    }

    /// The same for many slots without a comparison, in one pipeline; each slot has its own answer.
    pub async fn free_slots(&self, slots: &[SlotRef]) -> Vec<Result<Option<SlotRef>, StoreError>> {
        let replies = self.run_many(slots.iter().map(|slot| free(slot, None)).collect()).await;
        let named = |(slot, reply): (&SlotRef, Result<scripts::slot::FreeReply, StoreError>)| {
            Ok(SlotRef::named(&slot.tenant, &slot.limit, &reply?.next))
        };
        slots.iter().zip(replies).map(named).collect()
    }

    /// Sets the next check of a slot that is still in use to `look` from now, in one step, if its time is still the one
    /// that was seen. Otherwise changes nothing.
    pub async fn keep_slot(&self, held: &SlotHeld, look: Duration) -> Result<(), StoreError> {
        let SlotHeld { slot, look: seen } = held;
        let (key, seen) = (keys::slots(&slot.tenant, &slot.limit), seen.0.to_string().into_bytes());
        self.run(scripts::slot::Keep { key, member: slot.member(), seen, look: micros(look) }).await.map(|_| ())
    }

    /// The jobs that hold slots of a limit (at most 64, by the time of their next check), how many hold one, and how
    /// many wait.
    pub async fn read_slots(&self, tenant: &Tenant, limit: &Limit) -> Result<(Vec<SlotHeld>, u64, u64), StoreError> {
        let name = keys::slots(tenant, limit);
        let ask = |verb: &str, args: &[&str]| {
            let mut cmd = redis::cmd(verb);
            cmd.arg(name.as_bytes()).arg(args);
            Command::plain(cmd)
        };
        let asked = vec![
            ask("ZRANGEBYSCORE", &["0", "+inf", "WITHSCORES", "LIMIT", "0", "64"]),
            ask("ZCOUNT", &["0", "+inf"]),
            ask("ZCARD", &[]),
        ];
        let mut replies = self.router().many(asked).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::Decode("a reply is missing".into())));
        let holders = list(next()?)?;
        let (holding, all): (u64, u64) = (number(&next()?)?, number(&next()?)?);
        Ok((held(tenant, limit, &holders), holding, all.saturating_sub(holding)))
    }
}

fn free(slot: &SlotRef, seen: Option<Time>) -> scripts::slot::Free {
    let seen = seen.map(|at| at.0.to_string().into_bytes()).unwrap_or_default();
    scripts::slot::Free { key: keys::slots(&slot.tenant, &slot.limit), member: slot.member(), seen }
}

/// Parses members and scores in turn.
fn held(tenant: &Tenant, limit: &Limit, pairs: &[Vec<u8>]) -> Vec<SlotHeld> {
    let read = |pair: &[Vec<u8>]| {
        let score: f64 = std::str::from_utf8(pair.get(1)?).ok()?.parse().ok()?;
        Some(SlotHeld { slot: SlotRef::named(tenant, limit, &pair[0])?, look: Time(score as u64) })
    };
    pairs.chunks(2).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_urgent_and_then_the_older_go_first() {
        let moments = [Time(1_700_000_000_000_000), Time(1_800_000_000_000_000)];
        let turns: Vec<i64> = Priority::ALL.iter().flat_map(|p| moments.map(|since| turn(*p, since))).collect();
        assert!(turns.is_sorted() && turns.iter().all(|turn| *turn < 0), "{turns:?}");
        assert!(turns.iter().all(|turn| turn.unsigned_abs() < 1 << 53), "exact as a score");
    }
}
