//! Restores lost homes and queue entries, and forwards homes that are due too late.
//!
//! A home must be due no later than its record allows. A home that is due later, because a person or a clock that ran
//! ahead set it, would leave its job unchecked until then. It gets a new time if it still has the one that was read. If
//! that clock also wrote into the record, the record is set back first.
//!
//! A living job has a home for its whole life. So a job that has no home, and is still alive when it is read again
//! *after* that, has lost its home; a job that only ended in the meantime has not. A queue entry is written a moment
//! after the job is queued; it does no harm if the scrub adds it first.
//!
//! An ended job has a home until its effects are done, and a failover can lose the home before that. A bad end adds a
//! dead letter before the home is removed. So a job that ended badly, has neither home nor dead letter, and still has
//! its record when it is read again after that, gets its home back, and the check does the effects.
//!
//! The audit log records a restored home before it is restored. It does not record queue entries: the scrub may only be
//! earlier than the scheduler.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use muster_domain::{
    Act, JobId, Line, State, Tenant, Time, audit,
    job::{CLOCK_SLACK, LONGEST_LEASE, QUEUED_LOOK, asked_delay, is_too_late, next_look, ran_ahead},
    time::micros,
};

use super::Scrubbed;
use crate::{
    HomeKind, Store, StoreError, failpoint,
    homes::{Rescore, by_shard, text},
    keys,
    queues::{QueueEntry, by_queue},
    record::{Fields, Record},
    router::Command,
    script::number,
    scripts,
};

/// For this long after its bad end, a job without home and dead letter counts as one that lost them. Retention removes
/// no dead letter that is younger.
const UNFINISHED: Duration = Duration::from_secs(15 * 60);

/// The jobs of a page that were not where they must be found.
#[derive(Default)]
struct Missing {
    homes: HashSet<JobId>,
    entries: HashSet<JobId>,
    /// Jobs that ended badly, with neither home nor dead letter.
    unfinished: HashSet<JobId>,
    /// Homes that are due later than their records allow.
    late: Vec<Rescore>,
}

impl Store {
    /// Checks the homes and queue entries of these jobs, and restores what is missing.
    pub(super) async fn put_entries_back(&self, records: &[Record], done: &mut Scrubbed) {
        let records = self.set_back(records, done).await;
        let missing = self.missing_entries(&records, done).await;
        self.bring_nearer(&missing.late, done).await;
        let Missing { homes, entries, unfinished, .. } = &missing;
        let ids: BTreeSet<JobId> = homes.iter().chain(entries).chain(unfinished).copied().collect();
        if ids.is_empty() {
            return;
        }
        let records = self.readable(&ids.into_iter().collect::<Vec<_>>(), done).await;
        let now = self.now();
        let living = |record: &&Record| !record.head.state().is_end();
        let homeless = records.iter().filter(living).filter(|record| missing.homes.contains(&record.id));
        let homeless: Vec<&Record> = homeless.collect();
        let unfinished = records.iter().filter(|record| missing.unfinished.contains(&record.id));
        let unfinished: Vec<&Record> = unfinished.collect();
        let help = |record: &&Record| audit::of_help(record.id, &record.spec, &record.head, "put_back", now);
        let acts: Vec<Act> = homeless.iter().chain(&unfinished).map(help).collect();
        if !acts.is_empty()
            && let Err(fault) = self.audit(&acts).await
        {
            // Nothing is restored without an audit entry; the walk reads the same page again.
            done.take(Err(fault));
            return;
        }
        if !acts.is_empty() {
            failpoint!("scrub.after_audit");
        }
        let mut homes: Vec<_> = homeless.iter().map(|record| (record.id, look_in(record, now))).collect();
        let unfinished: Vec<_> = unfinished.iter().map(|record| (record.id, Duration::ZERO)).collect();
        done.unfinished += unfinished.len() as u64;
        homes.extend(unfinished);
        let queued = records.iter().filter(|record| record.head.state() == State::Queued);
        let unqueued = queued.filter(|record| missing.entries.contains(&record.id));
        let entries: Vec<QueueEntry> = unqueued.map(QueueEntry::of).collect();
        let (homes, queues) = tokio::join!(self.add_homes(&homes), self.add_entries(&entries));
        for (soonest, added) in homes {
            let added = done.take(added);
            done.homes += added;
            if added > 0 {
                done.soonest = Some(done.soonest.map_or(soonest, |known| known.min(soonest)));
            }
        }
        for (line, added) in queues {
            let added = done.take(added);
            done.queued += added;
            if added > 0 {
                done.lines.insert(line);
            }
        }
    }

    /// The same records, after those were mended in which a clock that ran ahead has left its moments.
    async fn set_back<'a>(&self, records: &'a [Record], done: &mut Scrubbed) -> Cow<'a, [Record]> {
        let now = self.now();
        let ahead: Vec<&Record> = records.iter().filter(|r| ran_ahead(&r.head, &r.spec, now)).collect();
        if ahead.is_empty() {
            return Cow::Borrowed(records);
        }
        let call = |record: &&Record| scripts::job::SetBack {
            key: keys::job(record.id),
            longest: micros(LONGEST_LEASE),
            slack: micros(CLOCK_SLACK),
            delay: asked_delay(&record.spec).map_or(0, micros),
        };
        for reply in self.run_many(ahead.iter().map(call).collect()).await {
            done.ahead += done.take(reply.map(|reply| reply.changed));
        }
        let ids: Vec<JobId> = ahead.iter().map(|record| record.id).collect();
        let again: HashMap<JobId, Record> =
            self.readable(&ids, done).await.into_iter().map(|record| (record.id, record)).collect();
        Cow::Owned(records.iter().map(|record| again.get(&record.id).unwrap_or(record).clone()).collect())
    }

    async fn missing_entries(&self, records: &[Record], done: &mut Scrubbed) -> Missing {
        let ask = |key: keys::Key, member: Vec<u8>| {
            let mut cmd = redis::cmd("ZSCORE");
            cmd.arg(key.as_bytes()).arg(member);
            Command::plain(cmd)
        };
        let living: Vec<&Record> = records.iter().filter(|record| !record.head.state().is_end()).collect();
        let queued: Vec<&Record> = living.iter().copied().filter(|r| r.head.state() == State::Queued).collect();
        let of_home = |record: &&Record| ask(keys::homes(HomeKind::Job, record.id.shard()), text(record.id));
        let of_entry = |record: &&Record| {
            let entry = QueueEntry::of(record);
            ask(keys::queue(&entry.tenant, &entry.line, entry.priority), entry.member())
        };
        let now = self.now();
        let bad = |record: &&Record| record.head.state().is_bad_end() && now.since(record.head.since) < UNFINISHED;
        let ended: Vec<&Record> = records.iter().filter(bad).collect();
        let of_letter = |record: &&Record| ask(keys::dead_letters(&record.spec.tenant), text(record.id));
        let asked = living.iter().map(of_home).chain(queued.iter().map(of_entry));
        let commands = asked.chain(ended.iter().map(of_home)).chain(ended.iter().map(of_letter)).collect();
        let replies = self.router().many(commands).await;
        let late = living.iter().zip(&replies).filter_map(|(record, reply)| {
            let read = due(reply.as_ref().ok()?)?;
            let after = look_in(record, now);
            is_too_late(&record.head, read, now).then_some(Rescore { job: record.id, read: read.0, after })
        });
        let late: Vec<_> = late.collect();
        let mut replies = replies.into_iter();
        let mut absent = |asked: &[&Record]| -> HashSet<JobId> {
            let found = asked.iter().zip(replies.by_ref());
            let absent = found.filter(|(_, reply)| match reply {
                Ok(score) => *score == redis::Value::Nil,
                Err(fault) => {
                    done.take(Err(fault.clone()));
                    false
                }
            });
            absent.map(|(record, _)| record.id).collect()
        };
        let (homes, entries) = (absent(&living), absent(&queued));
        let (homeless, letterless) = (absent(&ended), absent(&ended));
        Missing { homes, entries, unfinished: homeless.intersection(&letterless).copied().collect(), late }
    }

    /// Forwards homes that are due too late, if their time is still the one that was read: a job that has ended in the
    /// meantime gets no new home.
    async fn bring_nearer(&self, late: &[Rescore], done: &mut Scrubbed) {
        let Some(soonest) = late.iter().map(|home| home.after).min() else { return };
        let number = |n: u64| n.to_string().into_bytes();
        let call = |(shard, items): (u8, Vec<Rescore>)| scripts::home::Rescore {
            key: keys::homes(HomeKind::Job, shard),
            triples: items.into_iter().flat_map(|r| [text(r.job), number(r.read), number(micros(r.after))]).collect(),
        };
        let changed = self.run_many(by_shard(late, |home| home.job).into_iter().map(call).collect()).await;
        for reply in changed {
            let changed = done.take(reply.map(|reply| reply.changed));
            done.late += changed;
            if changed > 0 {
                done.soonest = Some(done.soonest.map_or(soonest, |known| known.min(soonest)));
            }
        }
    }

    /// Adds missing homes. Returns for each call how many, and when the first of its jobs is due.
    async fn add_homes(&self, items: &[(JobId, Duration)]) -> Vec<(Duration, Result<u64, StoreError>)> {
        let groups = by_shard(items, |item| item.0);
        let soonest = |items: &[(JobId, Duration)]| items.iter().map(|item| item.1).min().unwrap_or_default();
        let call = |(shard, items): &(u8, Vec<(JobId, Duration)>)| scripts::home::PutBack {
            key: keys::homes(HomeKind::Job, *shard),
            pairs: items.iter().flat_map(|(id, after)| [text(*id), micros(*after).to_string().into_bytes()]).collect(),
        };
        let replies = self.run_many(groups.iter().map(call).collect()).await;
        let added = replies.into_iter().map(|reply| reply.map(|reply| reply.added));
        groups.iter().map(|(_, items)| soonest(items)).zip(added).collect()
    }

    /// Adds missing queue entries. Returns for each queue how many.
    async fn add_entries(&self, items: &[QueueEntry]) -> Vec<((Tenant, Line), Result<u64, StoreError>)> {
        let queues = by_queue(items);
        let command = |(key, entries): (&keys::Key, &Vec<&QueueEntry>)| {
            let mut cmd = redis::cmd("ZADD");
            cmd.arg(key.as_bytes()).arg("NX");
            for entry in entries {
                cmd.arg(entry.since.0).arg(entry.member());
            }
            Command::plain(cmd)
        };
        let replies = self.router().many(queues.iter().map(command).collect()).await;
        let added = replies.into_iter().map(|reply| number(&reply?));
        let lines = queues.values().map(|entries| (entries[0].tenant.clone(), entries[0].line.clone()));
        lines.zip(added).collect()
    }

    /// The records that exist and can be read; counts the others.
    pub(super) async fn readable(&self, ids: &[JobId], done: &mut Scrubbed) -> Vec<Record> {
        let mut records = Vec::with_capacity(ids.len());
        for record in self.read(ids, Fields::NONE).await {
            match record {
                Ok(Some(record)) if !record.deleted => records.push(record),
                Ok(_) => {}
                Err(fault) => _ = done.take(Err(fault)),
            }
        }
        records
    }
}

/// When a home with this score is due; none if there is no home.
fn due(score: &redis::Value) -> Option<Time> {
    let redis::Value::BulkString(text) = score else { return None };
    let score: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Time(score.max(0.0) as u64))
}

/// When a job whose home was lost is checked. Jobs that only wait get times spread over the interval, so that the jobs
/// of a whole lost shard are not due at once.
fn look_in(record: &Record, now: Time) -> Duration {
    let wait = next_look(&record.head, now).remaining(now);
    if wait == QUEUED_LOOK { wait.mul_f64(0.1 + 0.9 * fastrand::f64()) } else { wait }
}
