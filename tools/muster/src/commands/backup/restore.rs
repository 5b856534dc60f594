//! Restores a backup into a running, empty Redis: one server or a cluster, whatever the backup came from.
//!
//! Each snapshot is loaded into a throw-away server beside this program, and its keys are copied from there by `DUMP`
//! and `RESTORE`. So the target needs no file: its own log gets every key, which would not happen with a snapshot
//! that is copied beside a log, and no file has the wrong owner.

use std::{path::Path, time::Duration};

use anyhow::Context;
use indicatif::ProgressBar;

use super::{
    create::millis,
    keyspace::{Entry, KeyCounts, Walk},
    manifest::{Manifest, Snapshot},
    primaries::{self, Primary},
    verify,
};
use crate::{
    outcome::Failure,
    output,
    redis::{Servers, Stream, keys, slot_of},
};

/// Which primaries of the target may already hold keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onto {
    /// None: everything is restored.
    Empty,
    /// Those that lost nothing: only keys of the empty primaries are restored.
    MissingShards,
}

/// The result of a restore.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) manifest: Manifest,
    /// The number of keys that were restored.
    pub(super) counts: KeyCounts,
    /// The primaries that were filled, and those that were left alone.
    pub(super) filled: Vec<String>,
    pub(super) left: Vec<String>,
    /// The time from the backup until now, by the clock of Redis.
    pub(super) age: Duration,
    /// The primaries without an append-only log.
    pub(super) without_log: Vec<String>,
}

/// A primary that is being filled.
struct Target {
    primary: Primary,
    stream: Stream,
    counts: KeyCounts,
}

/// Restores into the target, or refuses before anything is written.
pub(super) async fn run(folder: &Path, servers: &Servers, onto: Onto) -> anyhow::Result<Restored> {
    let manifest = Manifest::read(folder)?;
    for file in &manifest.files {
        file.check(folder).map_err(|error| verify::unusable(folder, &error.to_string()))?;
    }
    let (empty, left) = choose(primaries::find(servers).await?, onto).await?;
    let mut without_log = Vec::new();
    for primary in &empty {
        if primary.cli.info("persistence", "aof_enabled").await?.as_deref() != Some("1") {
            without_log.push(primary.cli.to_string());
        }
    }

    let scratch = tempfile::Builder::new().prefix("muster-restore-").tempdir()?;
    let mut targets = Vec::new();
    for (n, primary) in empty.into_iter().enumerate() {
        let stream = primary.cli.stream(&scratch.path().join(n.to_string()))?;
        targets.push(Target { primary, stream, counts: KeyCounts::default() });
    }
    let bar = output::bar(manifest.counts.lasting() + manifest.counts.expiring, "restoring");
    for file in &manifest.files {
        copy(folder, file, manifest.database, &mut targets, &bar).await?;
    }
    bar.finish_and_clear();

    let mut done = Restored {
        age: age(&targets, &manifest).await?,
        manifest,
        counts: KeyCounts::default(),
        filled: Vec::new(),
        left,
        without_log,
    };
    for Target { primary, stream, counts } in targets {
        stream.finish().await.map_err(|error| half_done(&error))?;
        compare(&primary, &counts).await?;
        done.counts.merge(&counts);
        done.filled.push(primary.cli.to_string());
    }
    Ok(done)
}

/// The primaries to fill, and the names of the others. Refuses a target that holds other data.
async fn choose(found: Vec<Primary>, onto: Onto) -> anyhow::Result<(Vec<Primary>, Vec<String>)> {
    let (mut empty, mut full) = (Vec::new(), Vec::new());
    for primary in found {
        match primary.keys().await? {
            (0, _) => empty.push(primary),
            (keys, _) => full.push((primary.cli.to_string(), keys)),
        }
    }
    let listed = || full.iter().map(|(name, keys)| format!("{name} has {keys} keys")).collect::<Vec<_>>().join(", ");
    let stop = "stop all services of Muster: they write to any Redis that they can reach";
    match onto {
        Onto::Empty if !full.is_empty() => {
            let failure = Failure::new(format!("the target is not empty: {}", listed()));
            Err(failure.hint(format!("{stop}; then FLUSHALL it, or restore into another one")).into())
        }
        Onto::MissingShards if empty.is_empty() => {
            let failure = Failure::new(format!("no primary of the target is empty: {}", listed()));
            Err(failure.hint(format!("{stop}; only an empty primary is restored")).into())
        }
        _ => Ok((empty, full.into_iter().map(|(name, _)| name).collect())),
    }
}

/// Copies the keys of a file that belong to a target.
async fn copy(
    folder: &Path,
    file: &Snapshot,
    database: u32,
    targets: &mut [Target],
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let loaded = verify::load(folder, file, database).await;
    let server = loaded.map_err(|error| verify::unusable(folder, &format!("{error:#}")))?;
    // With the marks of the backup the services would assume that they have read the bus. Without them they read the
    // bus again, and restore what was accepted after the backup, as far as the bus still has it.
    let marks = [keys::REREAD_MARK.as_bytes(), keys::RUN_REREAD_MARK.as_bytes()];
    let mut walk = Walk::values(&server.cli, database);
    while let Some(entries) = walk.next().await? {
        bar.inc(entries.len() as u64);
        for entry in entries.into_iter().filter(|entry| !marks.contains(&entry.key.as_slice())) {
            let slot = slot_of(&entry.key);
            let Some(target) = targets.iter_mut().find(|target| target.primary.owns(slot)) else { continue };
            send(&mut target.stream, &entry).await.map_err(|error| half_done(&error))?;
            target.counts.add(&entry);
        }
    }
    Ok(())
}

/// Never overwrites an existing key. An expiry stays at its original time.
async fn send(stream: &mut Stream, entry: &Entry) -> anyhow::Result<()> {
    match entry.expires {
        None => stream.send(&[b"RESTORE", &entry.key, b"0", &entry.value]).await,
        Some(at) => stream.send(&[b"RESTORE", &entry.key, at.to_string().as_bytes(), &entry.value, b"ABSTTL"]).await,
    }
}

fn half_done(error: &anyhow::Error) -> Failure {
    let said = format!("{error:#}");
    let failure = Failure::new(format!("the restore stopped before its end: {said}"));
    match () {
        () if said.contains("BUSYKEY") => failure
            .hint("another program writes to the target: stop all services of Muster, FLUSHALL the target, try again"),
        () if said.contains("DUMP payload version") => {
            failure.hint("the Redis of the target is older than the redis-server of this machine")
        }
        () => failure.hint("the target has a part of the backup now: FLUSHALL the target and try again"),
    }
}

/// Checks that the target holds exactly the keys that were sent.
async fn compare(primary: &Primary, sent: &KeyCounts) -> anyhow::Result<()> {
    let (keys, expiring) = primary.keys().await?;
    if keys.saturating_sub(expiring) == sent.lasting() {
        return Ok(());
    }
    let (found, wanted) = (keys.saturating_sub(expiring), sent.lasting());
    let failure =
        Failure::new(format!("after the restore {} has {found} keys without an expiry, not {wanted}", primary.cli));
    Err(failure.hint("another program writes to it: stop all services of Muster, FLUSHALL it, try again").into())
}

async fn age(targets: &[Target], manifest: &Manifest) -> anyhow::Result<Duration> {
    let first = targets.first().context("no primary to restore")?;
    let now = millis(&first.primary.cli.ask(&["TIME"]).await?).context("a time of Redis that cannot be read")?;
    Ok(Duration::from_millis(now.saturating_sub(manifest.at_ms)))
}
