//! Creates a backup while everything runs: a snapshot of each primary, loaded once into a throw-away server so that
//! the manifest says what is really in it. The folder appears under its name when it is complete, or not at all.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use muster_domain::Time;

use super::{
    keyspace::KeyCounts,
    manifest::{self, Manifest, Snapshot},
    primaries::{self, Primary},
    throwaway::Throwaway,
};
use crate::{
    outcome::Failure,
    output,
    redis::{Servers, keys, slot_of},
};

/// Backs up these servers into a new folder.
pub(super) async fn run(servers: &Servers, folder: &Path) -> anyhow::Result<Manifest> {
    if folder.symlink_metadata().is_ok() {
        let failure = Failure::new(format!("{} exists already", folder.display()));
        return Err(failure
            .hint("each backup needs a new folder; name it by the time: backup-$(date +%F-%H%M%S)")
            .into());
    }
    let folder = std::path::absolute(folder)?;
    let parent = folder.parent().context("a folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let found = primaries::find(servers).await?;
    // The folder has another name until it is complete; it is removed if anything fails.
    let private = fs::Permissions::from_mode(0o700);
    let scratch = tempfile::Builder::new().prefix(".muster-backup-").permissions(private).tempdir_in(parent)?;

    let files: Vec<PathBuf> = found.iter().map(|primary| scratch.path().join(file_name(primary))).collect();
    let spinner = output::spinner("receiving");
    let received = try_join_all(found.iter().zip(&files).map(|(primary, file)| receive(primary, file)));
    let received = watched(received, &files, &spinner).await?;
    spinner.finish_and_clear();

    let database = servers.nodes.first().map_or(0, |node| node.database);
    let keys = received.iter().map(|source| source.keys).sum();
    let (bar, mut snapshots, mut data_format) = (output::bar(keys, "checking"), Vec::new(), None);
    for ((primary, file), source) in found.iter().zip(&files).zip(received) {
        let server = Throwaway::load(file).await?;
        let counts = KeyCounts::of(&server.cli, database).await?;
        if counts.lasting() + counts.expiring == 0 && source.keys > 0 {
            let held = source.keys;
            return Err(Failure::new(format!(
                "the snapshot of {} is empty, but the server has {held} keys",
                primary.cli
            ))
            .into());
        }
        let database = database.to_string();
        let format = server.cli.ask(&["-n", &database, "GET", keys::FORMAT]).await?;
        data_format = data_format.or((!format.is_empty()).then_some(format));
        File::open(file)?.sync_all()?;
        let (bytes, sha256) = manifest::digest(file)?;
        bar.inc(source.keys);
        snapshots.push(Snapshot {
            file: file_name(primary),
            primary: primary.cli.to_string(),
            slots: primary.slots.iter().map(|range| format!("{}-{}", range.start(), range.end())).collect(),
            redis_version: source.version,
            at_ms: source.at_ms,
            bytes,
            sha256,
            counts,
        });
    }
    bar.finish_and_clear();

    let mut counts = KeyCounts::default();
    snapshots.iter().for_each(|snapshot| counts.merge(&snapshot.counts));
    let at_ms = snapshots.iter().map(|snapshot| snapshot.at_ms).min().unwrap_or_default();
    let whole = Manifest {
        manifest: manifest::VERSION,
        made_by: format!("muster {}", env!("CARGO_PKG_VERSION")),
        at_ms,
        at: Time(at_ms * 1_000).rfc3339(),
        data_format,
        cluster: found.iter().any(|primary| !primary.slots.is_empty()),
        database,
        counts,
        files: snapshots,
    };
    whole.write(scratch.path())?;
    File::open(scratch.path())?.sync_all()?;
    fs::rename(scratch.path(), &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    File::open(parent)?.sync_all()?;
    if let Err(error) = note(&found, &whole).await {
        eprintln!("warning: the backup is complete, but its time could not be written to Redis: {error:#}");
    }
    Ok(whole)
}

/// What a primary reported about itself before its snapshot.
struct Source {
    at_ms: u64,
    keys: u64,
    version: String,
}

async fn receive(primary: &Primary, file: &Path) -> anyhow::Result<Source> {
    let time = primary.cli.ask(&["TIME"]).await?;
    let (keys, _) = primary.keys().await?;
    let version = primary.cli.info("server", "redis_version").await?.unwrap_or_default();
    primary.cli.snapshot(file).await.with_context(|| format!("no snapshot of {}", primary.cli))?;
    Ok(Source { at_ms: millis(&time).context("a time of Redis that cannot be read")?, keys, version })
}

/// Parses the two lines of `TIME` into milliseconds.
pub(super) fn millis(reply: &str) -> Option<u64> {
    let (seconds, micros) = reply.trim().split_once('\n')?;
    Some(seconds.trim().parse::<u64>().ok()? * 1_000 + micros.trim().parse::<u64>().ok()? / 1_000)
}

/// Shows how many bytes have arrived while `work` runs.
async fn watched<T>(work: impl Future<Output = T>, files: &[PathBuf], spinner: &ProgressBar) -> T {
    let mut work = std::pin::pin!(work);
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = tick.tick() => {
                let come: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
                spinner.set_message(format!("receiving {} snapshots: {}", files.len(), indicatif::HumanBytes(come)));
            }
        }
    }
}

fn file_name(primary: &Primary) -> String {
    match primary.slots.first() {
        None => "redis.rdb".to_owned(),
        Some(first) => format!("redis-slots-{:05}.rdb", first.start()),
    }
}

/// Writes into Redis when the last backup was made: a gauge and an alert use it.
async fn note(found: &[Primary], whole: &Manifest) -> anyhow::Result<()> {
    let slot = slot_of(keys::BACKUP.as_bytes());
    let owner = found.iter().find(|primary| primary.owns(slot)).context("no primary owns it")?;
    let (at, files, bytes) = (whole.at_ms.to_string(), whole.files.len().to_string(), whole.bytes().to_string());
    owner.cli.ask(&["HSET", keys::BACKUP, "at_ms", &at, "files", &files, "bytes", &bytes]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_is_read_from_redis() {
        assert_eq!(millis("1700000000\n123999\n"), Some(1_700_000_000_123));
        assert_eq!(millis("nonsense"), None);
    }
}
