//! The loop list of a service: one row for each loop.
//!
//! A loop is one file with `run_once` and its constants, and one [`Row`]. Its setting, its row in the docs, its start,
//! its lease, readiness, `/loops` and metrics are derived from these.

use std::time::Duration;

use muster_chassis::{Declared, Everyone, Loop, Safety, Slot, loops};
use muster_store::{LEADER_TTL, LeaderLock, Lease, ShardedLock};

use crate::{Member, Shards};

/// A loop of a service whose parts share a `C`.
pub trait LoopOf<C>: Loop<Lease: Grant> + Sized {
    /// Creates the loop on this replica; none if the settings turn it off.
    fn make(member: &Member, context: &C) -> Option<Self>;
}

/// What a tick holds. It determines how the loop is started.
pub trait Grant: Clone + Send + Sync + 'static {
    /// Starts a loop whose ticks hold this grant.
    fn start<L: Loop<Lease = Self>>(member: &Member, slot: Slot<L>, body: L);
}

/// Every replica ticks.
impl Grant for () {
    fn start<L: Loop<Lease = ()>>(_: &Member, slot: Slot<L>, body: L) {
        slot.start(body, Everyone);
    }
}

/// Only the replica that holds the loop's lock ticks.
impl Grant for Lease {
    fn start<L: Loop<Lease = Lease>>(member: &Member, slot: Slot<L>, body: L) {
        let lock = const {
            match L::SAFE {
                Safety::Leader { lock, .. } => LeaderLock::named(lock).expect("the store knows the lock"),
                Safety::Claim { .. } | Safety::Idempotent { .. } => panic!("a loop that takes a lease is a leader's"),
            }
        };
        slot.start(body, member.campaign(lock));
    }
}

/// Every replica that owns a shard ticks, for the shards that it owns.
impl Grant for Shards {
    fn start<L: Loop<Lease = Shards>>(member: &Member, slot: Slot<L>, body: L) {
        let lock = const {
            match L::SAFE {
                Safety::Leader { lock, .. } => ShardedLock::named(lock).expect("the store knows the sharded lock"),
                Safety::Claim { .. } | Safety::Idempotent { .. } => panic!("a loop that takes shards is a leader's"),
            }
        };
        slot.start(body, member.share(lock, LEADER_TTL));
    }
}

/// One loop of a service.
pub struct Row<C> {
    declared: Declared,
    start: fn(&Member, &C),
}

impl<C> Row<C> {
    /// The row of this loop.
    pub const fn of<L: LoopOf<C>>() -> Row<C> {
        Row { declared: Declared::of::<L>(), start: start::<C, L> }
    }
}

fn start<C, L: LoopOf<C>>(member: &Member, context: &C) {
    if let Some(body) = L::make(member, context) {
        L::Lease::start(member, member.chassis.loops.register(member.interval::<L>()), body);
    }
}

/// The rows in the form that the docs and the settings need.
pub const fn declared<C, const N: usize>(rows: &[Row<C>; N]) -> [Declared; N] {
    let (mut all, mut n) = ([rows[0].declared; N], 0);
    while n < N {
        all[n] = rows[n].declared;
        n += 1;
    }
    all
}

impl Member {
    /// Registers and starts all loops of the list, in its order.
    pub fn start_loops<C>(&self, rows: &[Row<C>], context: &C) {
        rows.iter().for_each(|row| (row.start)(self, context));
    }

    /// How often a loop runs when nothing wakes it.
    pub fn interval<L: Loop>(&self) -> Duration {
        self.chassis.values.get(loops::interval::<L>())
    }
}
