//! A line between one process and one server that can be cut, stalled or slowed down, for outages that one
//! replica sees and the others do not. The port stays bound while the line is cut, so that no other process gets it.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Open,
    /// Bytes from the process arrive this much later.
    Slow(Duration),
    /// Connections stay open and new ones are accepted, but no bytes pass.
    Stalled,
    /// Connections are closed, new ones at once.
    Cut,
}

/// One line; it ends when this is dropped.
pub(super) struct Proxy {
    port: u16,
    line: watch::Sender<Line>,
    _serving: JoinSet<()>,
}

/// The lines of one process to its stores.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) redis: Vec<Proxy>,
    pub(super) nats: Vec<Proxy>,
}

impl Proxy {
    /// Listens on `port` of the loopback interface and forwards to `target`.
    pub(super) async fn start(port: u16, target: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        let (line, seen) = watch::channel(Line::Open);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, target, seen));
        Ok(Proxy { port, line, _serving: serving })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, line: watch::Receiver<Line>) {
    let mut carried = JoinSet::new();
    loop {
        while carried.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => drop(carried.spawn(carry(client, target, line.clone()))),
            // Probably no file descriptor is free: wait until some are closed.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

async fn carry(client: TcpStream, target: SocketAddr, line: watch::Receiver<Line>) {
    let mut cut = line.clone();
    tokio::select! {
        biased;
        _ = cut.wait_for(|line| *line == Line::Cut) => (),
        _ = join(client, target, line) => (),
    }
}

async fn join(client: TcpStream, target: SocketAddr, mut line: watch::Receiver<Line>) -> io::Result<()> {
    open(&mut line).await?;
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        there = pump(from_client, to_server, line.clone(), Direction::There) => there,
        back = pump(from_server, to_client, line, Direction::Back) => back,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut line: watch::Receiver<Line>,
    direction: Direction,
) -> io::Result<()> {
    // Bytes wait here for their time, so that a delay does not stop the reading of the next bytes.
    let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut chunk = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut chunk).await?;
            let delay = match open(&mut line).await? {
                Line::Slow(delay) if direction == Direction::There => delay,
                _ => Duration::ZERO,
            };
            if count == 0 || late.send((Instant::now() + delay, chunk[..count].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            to.write_all(&bytes).await?;
        }
        io::Result::Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// The direction of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

/// Waits until bytes may pass.
async fn open(line: &mut watch::Receiver<Line>) -> io::Result<Line> {
    let passes = |line: &Line| matches!(line, Line::Open | Line::Slow(_));
    line.wait_for(passes).await.map(|line| *line).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn echo() -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut all = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                all.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        (addr, tasks)
    }

    #[tokio::test]
    async fn a_line_carries_stalls_goes_on_and_is_cut() {
        let (addr, _echo) = echo().await;
        let proxy = Proxy::start(0, addr).await.unwrap();
        let mut byte = [0];
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        client.write_all(b"a").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"a");

        proxy.set(Line::Stalled);
        client.write_all(b"b").await.unwrap();
        assert!(timeout(Duration::from_millis(50), client.read_exact(&mut byte)).await.is_err(), "stalled");
        proxy.set(Line::Open);
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b", "what was held back comes after all");

        proxy.set(Line::Slow(Duration::from_millis(60)));
        let sent = Instant::now();
        client.write_all(b"c").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        assert!(&byte == b"c" && sent.elapsed() >= Duration::from_millis(60), "slow");

        proxy.set(Line::Cut);
        assert!(!matches!(client.read(&mut byte).await, Ok(1..)), "cut");
        let mut late = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert!(!matches!(late.read(&mut byte).await, Ok(1..)), "a new one is closed");
    }
}
