//! Verifies a backup: every file must match its checksum, must load into a throw-away server, and must then hold what
//! the manifest says.

use std::path::Path;

use super::{
    keyspace::KeyCounts,
    manifest::{Manifest, Snapshot},
    throwaway::Throwaway,
};
use crate::{outcome::Failure, output};

/// Verifies all files; the error lists everything that is wrong.
pub(super) async fn run(folder: &Path) -> anyhow::Result<Manifest> {
    let manifest = Manifest::read(folder)?;
    let bar = output::bar(manifest.bytes(), "verifying");
    let mut wrong = Vec::new();
    for file in &manifest.files {
        if let Err(error) = load(folder, file, manifest.database).await {
            wrong.push(format!("{error:#}"));
        }
        bar.inc(file.bytes);
    }
    bar.finish_and_clear();
    match wrong.is_empty() {
        true => Ok(manifest),
        false => Err(unusable(folder, &wrong.join("; ")).into()),
    }
}

/// Loads one file and checks that it holds what the manifest says.
pub(super) async fn load(folder: &Path, file: &Snapshot, database: u32) -> anyhow::Result<Throwaway> {
    file.check(folder)?;
    let server = Throwaway::load(&folder.join(&file.file)).await?;
    let found = KeyCounts::of(&server.cli, database).await?;
    let differences = file.counts.differences(&found);
    if !differences.is_empty() {
        let differences = differences.join(", ");
        return Err(Failure::new(format!("{} differs from the manifest: {differences}", file.file)).into());
    }
    Ok(server)
}

pub(super) fn unusable(folder: &Path, why: &str) -> Failure {
    Failure::new(format!("the backup in {} cannot be used: {why}", folder.display()))
        .hint("use an older backup; nothing was changed")
}
