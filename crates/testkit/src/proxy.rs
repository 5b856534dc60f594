//! A TCP proxy in front of a server, for outages without killing anything: cut (existing
//! connections drop, new ones are refused), stalled (accepted, nothing forwarded), without answers
//! (only what the server says is held back), healed.

use std::{future::Future, io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

use crate::{off_runtime, ports::free_port};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Unanswered,
    Stalled,
    Cut,
}

/// A proxy on a free port of 127.0.0.1; gone on drop. Its tasks live on the runtime that started it.
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

    /// Forwards what clients send, and holds back what the server says.
    pub fn hold_answers(&self) {
        self.mode.send_replace(Mode::Unanswered);
    }

    /// Forwards again, what was held back included.
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
    if mode.wait_for(|mode| *mode == Mode::Open).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = pump(from_client, to_server, mode.clone(), &[Mode::Open, Mode::Unanswered]);
    let back = pump(from_server, to_client, mode, &[Mode::Open]);
    either(there, back).await;
}

async fn either(a: impl Future<Output = io::Result<()>>, b: impl Future<Output = io::Result<()>>) {
    tokio::select! { _ = a => {}, _ = b => {} }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    passes: &[Mode],
) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut chunk).await?;
        if mode.wait_for(|mode| passes.contains(mode)).await.is_err() || count == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..count]).await?;
    }
}

fn is(mode: &watch::Receiver<Mode>, wanted: Mode) -> bool {
    *mode.borrow() == wanted
}
