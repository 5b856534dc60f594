//! A TCP proxy in front of a server, for outages without killing a process: cut (existing connections drop, new ones
//! are refused), stalled (connections are accepted, nothing is forwarded), without answers (only the server's bytes
//! are held back), slow (each request arrives late), healed.

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{off_runtime, ports::free_port};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Slow(Duration),
    Unanswered,
    Stalled,
    Cut,
}

/// A proxy on a free port of 127.0.0.1, stopped on drop. Its tasks run on the runtime that started it.
pub struct Proxy {
    port: u16,
    mode: Arc<watch::Sender<Mode>>,
    listening: watch::Receiver<bool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Forwards to `target`, a port on 127.0.0.1.
    pub async fn start(target: u16) -> Proxy {
        let (port, listener) = loop {
            let port = off_runtime(free_port).await;
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
                break (port, listener);
            }
        };
        let mode = Arc::new(watch::Sender::new(Mode::Open));
        let (up, listening) = watch::channel(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, port, target, mode.subscribe(), up));
        Proxy { port, mode, listening, _tasks: tasks }
    }

    /// The port to put into a URL instead of the server's.
    pub fn url_port(&self) -> u16 {
        self.port
    }

    /// Drops all connections and refuses new ones.
    pub async fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
        let _ = self.listening.clone().wait_for(|up| !up).await;
    }

    /// Keeps and accepts connections, but forwards nothing in either direction.
    pub fn stall(&self) {
        self.mode.send_replace(Mode::Stalled);
    }

    /// Forwards the bytes of clients, and holds back those of the server.
    pub fn hold_answers(&self) {
        self.mode.send_replace(Mode::Unanswered);
    }

    /// Forwards the bytes of clients with this delay, and those of the server at once.
    pub fn slow(&self, delay: Duration) {
        self.mode.send_replace(Mode::Slow(delay));
    }

    /// Forwards again, including what was held back.
    pub async fn heal(&self) {
        self.mode.send_replace(Mode::Open);
        let _ = self.listening.clone().wait_for(|up| *up).await;
    }
}

async fn serve(
    listener: TcpListener,
    port: u16,
    target: u16,
    mut mode: watch::Receiver<Mode>,
    up: watch::Sender<bool>,
) {
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        if is(&mode, Mode::Cut) {
            listener = None;
            connections.shutdown().await;
            up.send_replace(false);
            if mode.wait_for(|mode| *mode != Mode::Cut).await.is_err() {
                return;
            }
        }
        let open = match &listener {
            Some(open) => open,
            None => match TcpListener::bind(("127.0.0.1", port)).await {
                Ok(bound) => {
                    up.send_replace(true);
                    listener.insert(bound)
                }
                Err(error) => panic!("the proxy gets its port {port} back: {error}"),
            },
        };
        while connections.try_join_next().is_some() {}
        tokio::select! {
            changed = mode.changed() => if changed.is_err() { return },
            accepted = open.accept() => if let Ok((client, _)) = accepted {
                connections.spawn(forward(client, target, mode.clone()));
            },
        }
    }
}

async fn forward(client: TcpStream, target: u16, mut mode: watch::Receiver<Mode>) {
    // A stalled proxy accepts, as a dead host behind a load balancer does, and goes no further.
    if mode.wait_for(|mode| matches!(mode, Mode::Open | Mode::Slow(_))).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = pump(from_client, to_server, mode.clone(), Direction::There);
    let back = pump(from_server, to_client, mode, Direction::Back);
    either(there, back).await;
}

async fn either(a: impl Future<Output = io::Result<()>>, b: impl Future<Output = io::Result<()>>) {
    tokio::select! { _ = a => {}, _ = b => {} }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    direction: Direction,
) -> io::Result<()> {
    // The bytes that were read wait here for their time, so that a delay does not hold up the bytes behind them.
    let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut chunk = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut chunk).await?;
            let Ok(passed) = mode.wait_for(|mode| direction.passes(*mode)).await.map(|mode| *mode) else {
                return Ok(());
            };
            let delay = match passed {
                Mode::Slow(delay) if direction == Direction::There => delay,
                _ => Duration::ZERO,
            };
            if count == 0 || late.send((Instant::now() + delay, chunk[..count].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    let (read, written): (io::Result<()>, io::Result<()>) = tokio::join!(read, write);
    read.and(written)
}

/// The direction in which bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

impl Direction {
    fn passes(self, mode: Mode) -> bool {
        match mode {
            Mode::Open | Mode::Slow(_) => true,
            Mode::Unanswered => self == Direction::There,
            Mode::Stalled | Mode::Cut => false,
        }
    }
}

fn is(mode: &watch::Receiver<Mode>, wanted: Mode) -> bool {
    *mode.borrow() == wanted
}
