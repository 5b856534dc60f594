//! The `redis-cli` program: one command, a transfer of a snapshot, a stream of commands. Errors of the server and of
//! the connection are returned as errors with the server's message.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::Address;
use crate::{outcome::Failure, programs};

/// The longest time for one command.
const ANSWER: Duration = Duration::from_secs(30);

/// One server, asked through `redis-cli`.
#[derive(Clone)]
pub(crate) struct Cli {
    program: PathBuf,
    endpoint: Endpoint,
}

#[derive(Clone)]
enum Endpoint {
    Network(Address),
    Socket(PathBuf),
}

impl std::fmt::Display for Cli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.endpoint {
            Endpoint::Network(address) => address.fmt(f),
            Endpoint::Socket(path) => path.display().fmt(f),
        }
    }
}

impl Cli {
    /// A server that is reached over the network.
    pub(crate) fn at(address: Address) -> anyhow::Result<Cli> {
        Ok(Cli { program: program()?, endpoint: Endpoint::Network(address) })
    }

    /// A server on this machine that listens only on a socket.
    pub(crate) fn on_socket(path: &Path) -> anyhow::Result<Cli> {
        Ok(Cli { program: program()?, endpoint: Endpoint::Socket(path.to_owned()) })
    }

    /// The same server, or another node of its cluster.
    pub(crate) fn sibling(&self, host: &str, port: u16) -> Cli {
        let endpoint = match &self.endpoint {
            Endpoint::Network(address) => Endpoint::Network(address.sibling(host, port)),
            Endpoint::Socket(path) => Endpoint::Socket(path.clone()),
        };
        Cli { program: self.program.clone(), endpoint }
    }

    /// The host, as it was given.
    pub(crate) fn host(&self) -> &str {
        match &self.endpoint {
            Endpoint::Network(address) => &address.host,
            Endpoint::Socket(_) => "",
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        match &self.endpoint {
            Endpoint::Socket(path) => {
                command.arg("-s").arg(path).env_remove("REDISCLI_AUTH");
            }
            Endpoint::Network(address) => {
                command.args(["-h", &address.host, "-p", &address.port.to_string()]);
                command.args(["-n", &address.database.to_string()]);
                if address.tls {
                    command.arg("--tls");
                }
                if let Some(user) = &address.user {
                    command.args(["--user", user]);
                }
                // Without a password in the URL, the operator's own REDISCLI_AUTH applies.
                if let Some(password) = &address.password {
                    command.env("REDISCLI_AUTH", password);
                }
            }
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs one command. Returns its reply as bytes, without the line feed that `redis-cli` adds.
    pub(crate) async fn ask_bytes(&self, args: &[&str]) -> anyhow::Result<Vec<u8>> {
        let output = self.command().args(["-e", "--raw"]).args(args).output();
        let Ok(output) = timeout(ANSWER, output).await else {
            return Err(Failure::new(format!("Redis at {self} did not answer within {ANSWER:?}")).into());
        };
        let output = output.context("cannot run redis-cli")?;
        if !output.status.success() {
            return Err(self.refused(&output.stderr).into());
        }
        let mut reply = output.stdout;
        if reply.last() == Some(&b'\n') {
            reply.pop();
        }
        Ok(reply)
    }

    /// Runs one command. Returns its reply as text.
    pub(crate) async fn ask(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&self.ask_bytes(args).await?).into_owned())
    }

    /// A field of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str, field: &str) -> anyhow::Result<Option<String>> {
        let text = self.ask(&["INFO", section]).await?;
        let mut pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Ok(pairs.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned()))
    }

    /// Writes a snapshot of the server, taken while it serves, to a file that only its owner may read.
    pub(crate) async fn snapshot(&self, file: &Path) -> anyhow::Result<()> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        made.with_context(|| format!("cannot write {}", file.display()))?;
        let output = self.command().arg("--rdb").arg(file).output().await.context("cannot run redis-cli")?;
        if !output.status.success() {
            return Err(self.refused(&output.stderr).into());
        }
        Ok(())
    }

    /// Opens a stream of commands to the server. Its errors go to `log`.
    pub(crate) fn stream(&self, log: &Path) -> anyhow::Result<Stream> {
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = self.command();
        command.args(["--pipe", "--pipe-timeout", "300"]).stdin(Stdio::piped());
        command.stdout(out.try_clone()?).stderr(out);
        let mut child = command.spawn().context("cannot run redis-cli")?;
        let input = child.stdin.take().context("redis-cli has no input")?;
        Ok(Stream { child, input: Some(input), log: log.to_owned(), sent: 0, endpoint: self.to_string() })
    }

    fn refused(&self, said: &[u8]) -> Failure {
        let said = String::from_utf8_lossy(said);
        // After a wrong password, further lines only say that the client is not logged in.
        let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim();
        let failure = Failure::new(format!("Redis at {self}: {line}"));
        match line {
            _ if line.contains("NOAUTH") => failure.hint("put the password into the URL, or into REDISCLI_AUTH"),
            _ if line.contains("NOPERM") => {
                failure.hint("a backup needs a user that may run SYNC, REPLCONF, EVAL_RO and CLUSTER")
            }
            _ => failure,
        }
    }
}

fn program() -> anyhow::Result<PathBuf> {
    programs::server("redis-cli", "redis-tools")
}

/// A stream of commands to a server.
pub(crate) struct Stream {
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
    sent: u64,
    endpoint: String,
}

impl Stream {
    /// Sends one command.
    pub(crate) async fn send(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let input = self.input.as_mut().context("the stream has ended")?;
        if input.write_all(&bytes).await.is_err() {
            anyhow::bail!("Redis at {}: {}", self.endpoint, self.complaint());
        }
        self.sent += 1;
        Ok(())
    }

    /// Waits until each command was answered. Fails if the server refused any.
    pub(crate) async fn finish(mut self) -> anyhow::Result<u64> {
        drop(self.input.take());
        let status = self.child.wait().await?;
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let replies = said.split("replies: ").nth(1).and_then(|rest| rest.trim().parse::<u64>().ok());
        if !status.success() || replies != Some(self.sent) {
            return Err(Failure::new(format!("Redis at {}: {}", self.endpoint, self.complaint())).into());
        }
        Ok(self.sent)
    }

    /// The first line that is not routine output of `redis-cli`.
    fn complaint(&self) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let routine = ["All data transferred", "Last reply received", "errors:"];
        let line = said.lines().find(|line| !line.is_empty() && !routine.iter().any(|word| line.starts_with(word)));
        line.unwrap_or("the connection ended before every command was answered").to_owned()
    }
}
