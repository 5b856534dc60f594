//! Concurrency slots: one sorted set per limit, with who holds a slot and who waits for one.
//!
//! Promises: no more than `max` members hold a slot of a set; each call is one script on one key and
//! may be repeated. Time frees nothing: a member's score says when somebody should look at its job's
//! record, and removal compares that score. Leaves to others: judging (`domain::slot`) and admitting
//! (the scheduler).

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

/// A slot, held or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// Whose.
    pub tenant: Tenant,
    /// Of which limit.
    pub limit: Limit,
    /// Which job.
    pub job: JobId,
    /// The version under which it was, or will be, admitted.
    pub version: u32,
}

impl SlotRef {
    /// The slots that a record names, if its job was ever admitted: of its key, of its topic, or both.
    pub fn of(record: &Record) -> Vec<SlotRef> {
        let carried = record.carried_slot();
        carried.map_or_else(Vec::new, |slot| SlotRef::carried(&record.spec.tenant, &record.spec.topic, record.id, slot))
    }

    /// The slots that an offer carried to a worker and its result brings back.
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
    /// What its offer carries of the slots that it was admitted to, if it was.
    pub fn carried_slot(&self) -> Option<v1::Slot> {
        let (key, place) = (self.spec.concurrency_key.clone(), self.placed);
        let version = self.slot.filter(|_| place || !key.is_empty())?;
        Some(v1::Slot { key, version, place })
    }
}

/// A slot to be taken.
#[derive(Clone, Debug)]
pub struct SlotAsk {
    /// Which.
    pub slot: SlotRef,
    /// How many there are.
    pub max: u32,
    /// Who goes first among those that wait for a key's slot,
    pub priority: Priority,
    /// then who waits longest. For a topic's place nobody waits in line here: its backlog is the line.
    pub since: Time,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotTaken {
    /// It is the job's.
    Admitted,
    /// It was before, as read at this moment: somebody is about to dispatch the job, or died on the way.
    Before(Vec<SlotHeld>, Time),
    /// All are taken, by these (64 at most), as read at this moment; a key's job waits in line.
    Full(Vec<SlotHeld>, Time),
}

/// A slot that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHeld {
    /// Which.
    pub slot: SlotRef,
    /// When somebody should look whether it still is.
    pub look: Time,
}

/// Between the turns of two priorities: more than any moment.
const PRIORITY: i64 = 2_000_000_000_000_000;

/// Negative, and lower for who goes first.
fn turn(priority: Priority, since: Time) -> i64 {
    let rank = Priority::ALL.iter().position(|known| *known == priority).unwrap_or(0) as i64;
    let since = i64::try_from(since.0).unwrap_or(PRIORITY).min(PRIORITY - 1);
    (rank - Priority::ALL.len() as i64) * PRIORITY + since
}

impl Store {
    /// Takes slots, each for itself; who gets none of a key waits in line.
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

    /// Gives a slot back, or a place in line; only if its look is still the one that was `seen`, where
    /// one is given. Returns who is next in line.
    pub async fn free_slot(&self, slot: &SlotRef, seen: Option<Time>) -> Result<Option<SlotRef>, StoreError> {
        let reply = self.run(free(slot, seen)).await?;
        Ok(SlotRef::named(&slot.tenant, &slot.limit, &reply.next))
    }

    /// The same for many, whatever their looks are, in one pipeline.
    pub async fn free_slots(&self, slots: &[SlotRef]) -> Vec<Result<Option<SlotRef>, StoreError>> {
        let replies = self.run_many(slots.iter().map(|slot| free(slot, None)).collect()).await;
        let named = |(slot, reply): (&SlotRef, Result<scripts::slot::FreeReply, StoreError>)| {
            Ok(SlotRef::named(&slot.tenant, &slot.limit, &reply?.next))
        };
        slots.iter().zip(replies).map(named).collect()
    }

    /// A slot is still held: look again so long from now, if the look is still the one that was seen.
    pub async fn keep_slot(&self, held: &SlotHeld, look: Duration) -> Result<(), StoreError> {
        let SlotHeld { slot, look: seen } = held;
        let (key, seen) = (keys::slots(&slot.tenant, &slot.limit), seen.0.to_string().into_bytes());
        self.run(scripts::slot::Keep { key, member: slot.member(), seen, look: micros(look) }).await.map(|_| ())
    }

    /// Who holds slots of a limit (64 at most, by when they are looked at), and how many hold and wait in all.
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

/// Members and scores in turn.
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
