//! One redis-server as Muster ships it: AOF every second, no snapshots, no eviction.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::{clock, folder, off_runtime, ports::free_port, process::Process, wait::poll};

const START_TRIES: usize = 5;
const START_TIME: Duration = Duration::from_secs(20);

/// A running redis-server on a free port of 127.0.0.1, killed on drop.
pub struct RedisServer {
    inner: Arc<Inner>,
}

struct Inner {
    port: u16,
    folder: TempDir,
    extra: Vec<String>,
    /// How far its clock is off, in the format of libfaketime.
    clock: Mutex<Option<&'static str>>,
    process: Mutex<Option<Process>>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> RedisServer {
        Self::start_with(&[]).await
    }

    /// Starts a server with further options, such as `["--requirepass", "secret"]`.
    pub async fn start_with(options: &[&str]) -> RedisServer {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        off_runtime(move || Self::start_blocking(&options)).await
    }

    /// Starts a server whose clock is off by this much, such as `+1h`.
    pub async fn start_off_by(offset: &'static str) -> RedisServer {
        off_runtime(move || {
            let mut server = Self::launch_at(Some(offset), &[]);
            for _ in 0..START_TRIES {
                match server.wait_ready() {
                    Ok(()) => return server,
                    Err(_) => server = Self::launch_at(Some(offset), &[]),
                }
            }
            server.wait_ready().expect("redis-server starts");
            server
        })
        .await
    }

    /// Stops the server, which writes all of its log, and starts it again with the right clock and the same data.
    pub async fn correct_clock(&self) {
        self.stop();
        *self.inner.clock.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.restart().await;
    }

    pub(crate) fn start_blocking(extra: &[String]) -> RedisServer {
        let mut server = Self::launch(extra);
        for _ in 0..START_TRIES {
            match server.wait_ready() {
                Ok(()) => return server,
                Err(_) => server = Self::launch(extra),
            }
        }
        server.wait_ready().expect("redis-server starts");
        server
    }

    /// Starts the process without waiting for it.
    pub(crate) fn launch(extra: &[String]) -> RedisServer {
        Self::launch_at(None, extra)
    }

    /// The same with a clock that is off by this much, such as `+1m`.
    pub(crate) fn launch_at(clock: Option<&'static str>, extra: &[String]) -> RedisServer {
        let (port, folder, extra) = (free_port(), folder::fresh(), extra.to_vec());
        let inner = Inner { port, folder, extra, clock: Mutex::new(clock), process: Mutex::new(None) };
        inner.spawn();
        RedisServer { inner: Arc::new(inner) }
    }

    /// The URL that a client connects to.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.inner.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The process id, if the server runs.
    pub fn pid(&self) -> Option<u32> {
        self.inner.process().as_ref().map(Process::pid)
    }

    /// Whether the server runs (a paused one does).
    pub fn running(&self) -> bool {
        self.inner.process().as_mut().is_some_and(|process| !process.exited())
    }

    /// Kills the server with SIGKILL.
    pub fn kill9(&self) {
        drop(self.inner.process().take());
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&self) {
        if let Some(mut process) = self.inner.process().take() {
            process.stop();
        }
    }

    /// Restarts the server on the same port with the same data; kills it first if it runs.
    pub async fn restart(&self) {
        let inner = Arc::clone(&self.inner);
        off_runtime(move || {
            inner.process().take();
            inner.spawn();
            inner.wait_ready().expect("redis-server starts again");
        })
        .await;
    }

    /// SIGSTOP: connections stay open, nothing answers.
    pub fn pause(&self) {
        if let Some(process) = self.inner.process().as_ref() {
            process.pause();
        }
    }

    /// Continues the paused server (SIGCONT).
    pub fn resume(&self) {
        if let Some(process) = self.inner.process().as_ref() {
            process.resume();
        }
    }

    /// Deletes all data.
    pub async fn flushall(&self) {
        let answer = self.cli(&["FLUSHALL"]).await;
        assert_eq!(answer, "OK", "FLUSHALL on port {}", self.port());
    }

    /// What redis-cli prints for a command, trimmed. A server error is printed, not a panic.
    pub async fn cli(&self, args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let port = self.port();
        off_runtime(move || cli(port, &args)).await
    }

    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.inner.wait_ready()
    }
}

impl Inner {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) {
        let folder = self.folder.path();
        let mut args: Vec<String> = ["--bind", "127.0.0.1", "--protected-mode", "no", "--daemonize", "no"]
            .into_iter()
            .chain(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""])
            .chain(["--hash-max-listpack-value", "512", "--maxmemory-policy", "noeviction"])
            .map(str::to_owned)
            .collect();
        args.extend(["--port".into(), self.port.to_string(), "--dir".into(), folder.display().to_string()]);
        args.extend(self.extra.iter().cloned());
        let program = if let Some(offset) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner) {
            let lies = clock::off_by(offset).into_iter().map(|(name, value)| format!("{name}={value}"));
            args.splice(0..0, lies.chain(["redis-server".to_owned()]));
            "env"
        } else {
            "redis-server"
        };
        let process =
            Process::spawn(program, &args, &folder.join("log")).expect("redis-server is installed and can be started");
        *self.process() = Some(process);
    }

    /// Waits until this very process answers: if another test took the port, its server would answer.
    fn wait_ready(&self) -> Result<()> {
        let pid = match self.process().as_ref() {
            Some(process) => process.pid(),
            None => bail!("redis-server on port {} was killed", self.port),
        };
        let ready = poll(START_TIME, || {
            let mut process = self.process();
            let process = process.as_mut()?;
            if process.exited() {
                return Some(Err(process.last_words()));
            }
            let info = ask(self.port, "INFO server").ok()?;
            let ours = info.contains(&format!("process_id:{pid}\r")) || info.starts_with("-NOAUTH");
            let loaded = !ask(self.port, "PING").ok()?.starts_with("-LOADING");
            (ours && loaded).then_some(Ok(()))
        });
        match ready {
            Some(Ok(())) => Ok(()),
            Some(Err(words)) => bail!("redis-server on port {} ended:\n{words}", self.port),
            None => bail!("redis-server on port {} was not ready within {START_TIME:?}", self.port),
        }
    }
}

/// What redis-cli prints, trimmed.
pub(crate) fn cli(port: u16, args: &[String]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(args).output();
    let output = output.expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Sends one inline command on a new connection. Returns the raw reply; bulk strings are read completely.
pub(crate) fn ask(port: u16, command: &str) -> io::Result<String> {
    let wait = Duration::from_millis(500);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk)?;
        reply.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&reply);
        if count == 0 || complete(&text) {
            return Ok(text.into_owned());
        }
    }
}

fn complete(reply: &str) -> bool {
    let Some((head, body)) = reply.split_once("\r\n") else { return false };
    match head.strip_prefix('$').map(str::parse::<usize>) {
        Some(Ok(length)) => body.len() >= length + 2,
        _ => true,
    }
}
