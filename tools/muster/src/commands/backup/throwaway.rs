//! A Redis server that runs for as long as one file is examined. It listens on a socket in a folder of its own, loads
//! the file and never writes to it.
//!
//! It is started without a log of its own: a server with a log (`appendonly yes`) ignores a snapshot beside it, and
//! starts empty and healthy.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path, process::Stdio, time::Duration};

use anyhow::Context;
use tempfile::TempDir;
use tokio::{process::Child, time::sleep};

use crate::{commands::dev::bound_to_parent, outcome::Failure, programs, redis::Cli};

/// The server. Dropping this kills it.
pub(super) struct Throwaway {
    pub(super) cli: Cli,
    _server: Child,
    _folder: TempDir,
}

impl Throwaway {
    /// Starts the server on this file. Fails, and names the file, if it cannot be loaded completely.
    pub(super) async fn load(file: &Path) -> anyhow::Result<Throwaway> {
        let program = programs::server("redis-server", "redis-server")?;
        let folder =
            tempfile::Builder::new().prefix("muster-backup-").permissions(Permissions::from_mode(0o700)).tempdir()?;
        let (socket, log) = (folder.path().join("redis.sock"), folder.path().join("redis.log"));
        let file = file.canonicalize().with_context(|| format!("cannot read {}", file.display()))?;
        let (dir, name) =
            (file.parent().context("a file has a folder")?, file.file_name().context("a file has a name")?);
        let mut command = bound_to_parent(programs::find("setpriv").as_deref(), &program);
        command.args(["--port", "0", "--unixsocketperm", "700", "--save", "", "--appendonly", "no"]);
        command.args(["--daemonize", "no", "--maxmemory", "0", "--databases", "64"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(dir).arg("--dbfilename").arg(name);
        let out = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).kill_on_drop(true);
        let mut server = command.spawn().context("cannot start redis-server")?;
        let cli = Cli::on_socket(&socket)?;
        loop {
            if server.try_wait()?.is_some() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(unloadable(&file, &said).into());
            }
            // The server answers with an error while it loads.
            if socket.exists() && cli.ask(&["PING"]).await.is_ok() {
                return Ok(Throwaway { cli, _server: server, _folder: folder });
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn unloadable(file: &Path, log: &str) -> Failure {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // "12:C 18 Nov 2026 03:00:00.000 # What it says"
    let reason = |line: &str| Some(line.split_once(" # ")?.1.to_owned());
    let lines: Vec<String> = log.lines().filter_map(reason).collect();
    let telling = ["RDB", "Short read", "checksum", "Unrecoverable", "Can't handle"];
    let why = lines.iter().find(|line| telling.iter().any(|word| line.contains(word))).or(lines.last());
    let failure = Failure::new(format!(
        "{name} cannot be loaded: {}",
        why.map_or("redis-server ended without a reason", String::as_str)
    ));
    match log.contains("Can't handle RDB format") {
        true => failure.hint("the redis-server of this machine is older than the one that wrote the file"),
        false => failure,
    }
}
