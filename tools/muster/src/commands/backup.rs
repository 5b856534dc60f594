//! `muster backup`: creates, verifies and restores a backup of Redis. NATS needs no backup: everything there is
//! published again from Redis (docs/operate/backup.md says how).

mod create;
mod keyspace;
mod manifest;
mod primaries;
mod restore;
mod throwaway;
mod verify;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use serde_json::json;

use self::{
    manifest::Manifest,
    restore::{Onto, Restored},
};
use crate::{
    outcome::Failure,
    output::{self, Format},
    redis::Servers,
    signals::StopSignals,
    spans,
    target::Target,
};

#[derive(Subcommand, Debug)]
pub(crate) enum Backup {
    Create(Create),
    Verify(Verify),
    Restore(Restore),
}

/// Back up everything that Redis holds, while the stack runs
#[derive(Args, Debug)]
pub(crate) struct Create {
    /// The folder to create
    dir: PathBuf,

    /// Address of Redis [default: that of the state file]; a password may be in REDISCLI_AUTH instead
    #[arg(long, env = "REDIS_URL", value_name = "REDIS_URL", hide_env_values = true)]
    from: Option<String>,
}

/// Load a backup into a throw-away server and compare it with its manifest
#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// The folder of the backup
    dir: PathBuf,
}

/// Restore a backup into a running, empty Redis; stop all services of Muster first
#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// The folder of the backup
    dir: PathBuf,

    /// Address of the empty Redis, one server or a cluster; a password may be in REDISCLI_AUTH instead
    #[arg(long, value_name = "REDIS_URL")]
    to: String,

    /// Restore only the empty primaries of a cluster, and do not change the others
    #[arg(long)]
    only_missing_shard: bool,
}

impl Backup {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        let mut stop = StopSignals::listen()?;
        // A signal ends the command in order, so that no half of a backup and no server stays behind.
        tokio::select! {
            ended = self.act(target, format) => ended,
            () = stop.next() => Err(Failure::new("stopped before the end").into()),
        }
    }

    async fn act(self, target: &Target, format: Format) -> anyhow::Result<()> {
        match self {
            Backup::Create(Create { dir, from }) => {
                let url = match from {
                    Some(url) => url,
                    None => target.stack()?.map(|stack| stack.redis_url).ok_or_else(nowhere)?,
                };
                let made = create::run(&Servers::parse(&url)?, &dir).await?;
                show(&made, format, &format!("wrote the backup to {}", dir.display()));
            }
            Backup::Verify(Verify { dir }) => {
                let whole = verify::run(&dir).await?;
                show(&whole, format, &format!("{} is complete and can be restored", dir.display()));
            }
            Backup::Restore(Restore { dir, to, only_missing_shard }) => {
                let onto = if only_missing_shard { Onto::MissingShards } else { Onto::Empty };
                let done = restore::run(&dir, &Servers::parse(&to)?, onto).await?;
                tell(&done, format);
            }
        }
        Ok(())
    }
}

fn nowhere() -> Failure {
    Failure::new("no Redis to back up").hint("give its address with --from (REDIS_URL), or give a --state-file")
}

fn show(manifest: &Manifest, format: Format, headline: &str) {
    if format == Format::Json {
        output::json(&json!(manifest));
        return;
    }
    output::line(headline);
    output::facts(&[
        ("moment", manifest.at.clone()),
        ("data format", manifest.data_format.clone().unwrap_or_else(|| "none yet".into())),
        ("size", indicatif::HumanBytes(manifest.bytes()).to_string()),
        ("alive", format!("{} jobs", manifest.counts.alive)),
    ]);
    output::line("");
    let row = |file: &manifest::Snapshot| {
        vec![
            file.file.clone(),
            file.primary.clone(),
            file.redis_version.clone(),
            file.counts.lasting().to_string(),
            file.counts.expiring.to_string(),
            file.bytes.to_string(),
        ]
    };
    output::rows(&["FILE", "PRIMARY", "REDIS", "KEYS", "EXPIRING", "BYTES"], manifest.files.iter().map(row));
    output::line("");
    let kinds = manifest.counts.kinds.iter().map(|(kind, n)| vec![kind.clone(), n.to_string()]);
    output::rows(&["KIND", "KEYS"], kinds);
}

/// Prints what was restored, what is lost, and what happens next.
fn tell(done: &Restored, format: Format) {
    let lost = Duration::from_secs(done.age.as_secs());
    if format == Format::Json {
        output::json(&json!({
            "backup": done.manifest,
            "restored": done.counts,
            "filled": done.filled,
            "left_as_they_are": done.left,
            "lost_ms": u64::try_from(done.age.as_millis()).unwrap_or(u64::MAX),
            "without_log": done.without_log,
        }));
    } else {
        let (keys, places) = (done.counts.lasting() + done.counts.expiring, done.filled.join(", "));
        output::line(format_args!("restored {keys} keys into {places}"));
        if !done.left.is_empty() {
            output::line(format_args!("not changed: {}", done.left.join(", ")));
        }
        output::line(format_args!(
            "\nLost: what was written to Redis after {} ({} ago). When a scheduler starts, it reads the submits, \
             cancels and results of the last ten minutes again from NATS.\n\
             Runs again: {} jobs had not ended at that time. If such a job has ended since, and NATS no longer has its \
             result, it runs again. Results of attempts that began after the backup are refused, because their fences \
             do not match.\n\
             Next: start all services of Muster, then `muster doctor`.",
            done.manifest.at,
            spans::show(lost),
            done.counts.alive,
        ));
    }
    if !done.without_log.is_empty() {
        eprintln!("warning: {} keeps no log (appendonly no): a restart loses everything", done.without_log.join(", "));
        eprintln!(
            "hint:  run redis-cli CONFIG SET appendonly yes, wait for the rewrite, and add it to the configuration of \
             Redis"
        );
    }
}
