//! One nats-server with JetStream on disk.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::{
    folder, off_runtime,
    ports::{free_port, random},
    process::Process,
    wait::poll,
};

const START_TRIES: usize = 5;
const START_TIME: Duration = Duration::from_secs(30);

/// A running nats-server on a free port of 127.0.0.1, killed on drop.
pub struct NatsServer {
    inner: Arc<Inner>,
}

struct Inner {
    port: u16,
    name: String,
    cluster: String,
    folder: TempDir,
    process: Mutex<Option<Process>>,
}

impl NatsServer {
    /// Starts a server and waits until JetStream answers.
    pub async fn start() -> NatsServer {
        off_runtime(Self::start_blocking).await
    }

    pub(crate) fn start_blocking() -> NatsServer {
        for _ in 1..START_TRIES {
            let server = Self::launch(String::new());
            if server.wait_ready().is_ok() {
                return server;
            }
        }
        let server = Self::launch(String::new());
        server.wait_ready().expect("nats-server starts");
        server
    }

    /// Starts the process without waiting for it; `cluster` is a block of configuration, or empty.
    pub(crate) fn launch(cluster: String) -> NatsServer {
        let inner = Inner {
            port: free_port(),
            name: format!("test-{:016x}", random()),
            cluster,
            folder: folder::fresh(),
            process: Mutex::new(None),
        };
        inner.spawn();
        NatsServer { inner: Arc::new(inner) }
    }

    /// The URL that a client connects to.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.inner.port)
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

    /// Restarts the server on the same port with its streams; kills it first if it runs.
    pub async fn restart(&self) {
        let inner = Arc::clone(&self.inner);
        off_runtime(move || {
            inner.process().take();
            inner.spawn();
            inner.wait_ready().expect("nats-server starts again");
        })
        .await;
    }

    /// Restarts the server on the same port without any stream or consumer.
    pub async fn restart_empty(&self) {
        self.kill9();
        match std::fs::remove_dir_all(self.inner.store()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("the store can be wiped: {error}"),
            _ => self.restart().await,
        }
    }

    /// The folder of the streams, for tests that damage them while the server is down.
    pub fn store(&self) -> std::path::PathBuf {
        self.inner.store()
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

    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.inner.wait_ready()
    }
}

impl Inner {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("jetstream")
    }

    fn spawn(&self) {
        let folder = self.folder.path();
        let file = folder.join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:{}\"\nserver_name: {}\njetstream {{ store_dir: {:?} }}\n{}\n",
            self.port,
            self.name,
            self.store().display().to_string(),
            self.cluster
        );
        std::fs::write(&file, text).expect("the configuration can be written");
        let args = ["-c".to_owned(), file.display().to_string()];
        let process = Process::spawn("nats-server", &args, &folder.join("log"))
            .expect("nats-server is installed and can be started");
        *self.process() = Some(process);
    }

    fn wait_ready(&self) -> Result<()> {
        let ready = poll(START_TIME, || {
            let mut process = self.process();
            let Some(process) = process.as_mut() else { return Some(Err("killed".to_owned())) };
            if process.exited() {
                return Some(Err(process.last_words()));
            }
            jetstream_answers(self.port, &self.name).unwrap_or(false).then_some(Ok(()))
        });
        match ready {
            Some(Ok(())) => Ok(()),
            Some(Err(words)) => bail!("nats-server on port {} ended:\n{words}", self.port),
            None => bail!("nats-server on port {} was not ready within {START_TIME:?}", self.port),
        }
    }
}

/// Whether the server with this name listens there, and its JetStream is up.
fn jetstream_answers(port: u16, name: &str) -> io::Result<bool> {
    let wait = Duration::from_millis(500);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream
        .write_all(b"CONNECT {\"verbose\":false}\r\nSUB _INBOX.ready 1\r\nPUB $JS.API.INFO _INBOX.ready 0\r\n\r\n")?;
    let deadline = Instant::now() + wait;
    let (mut text, mut chunk) = (String::new(), [0; 4096]);
    while Instant::now() < deadline {
        let count = stream.read(&mut chunk)?;
        text.push_str(&String::from_utf8_lossy(&chunk[..count]));
        if count == 0 || (text.contains("MSG _INBOX.ready") && text.ends_with("}\r\n")) {
            break;
        }
    }
    let ours = text.contains(&format!("\"server_name\":\"{name}\""));
    Ok(ours && text.contains("io.nats.jetstream.api.v1.account_info_response") && !text.contains("\"error\""))
}
