//! Serves HTTP/1 on a port and drains it.
//!
//! During a drain the port accepts no new connection. Connections that wait to be accepted still get an answer, idle
//! ones close at once, busy ones close after their answer, and the rest are cut off at the limit. Idle unauthenticated
//! connections never take all descriptors (`crowd`). Every request carries its [`Client`]. `connection` handles one
//! connection, and the service brings the routes.

mod connection;
mod crowd;
mod heads;
mod leftover;
mod turns;

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, body::Body};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::warn;

use crate::{descriptors, tasks::Tasks};
use connection::Connections;
pub use crowd::Client;
use crowd::Crowd;
use turns::Turns;

/// How many connections may wait to be accepted, as far as the system allows. A client whose first packet finds no room
/// tries again after one second, then two, then four: it could get no answer for up to a minute.
const BACKLOG: u32 = 4096;
/// The pause after a failed accept, for example when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that is being served.
pub struct Serving {
    addr: SocketAddr,
    tasks: Tasks,
}

/// Binds the port, so that a start fails early if the port is taken.
pub async fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    listen(addr).map_err(|fault| io::Error::new(fault.kind(), format!("cannot listen on {addr}: {fault}")))
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without this, a restarted service could not bind its own port for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves `app` until drained, or until `tasks` is. `name` appears in the log if a drain is late.
pub fn serve(tasks: &Tasks, name: &'static str, listener: TcpListener, app: Router) -> io::Result<Serving> {
    serve_strangers(tasks, name, listener, app, descriptors::share_of_strangers())
}

/// [`serve`], with at most this many connections on which no client has authenticated yet.
pub fn serve_strangers(
    tasks: &Tasks,
    name: &'static str,
    listener: TcpListener,
    app: Router,
    most_strangers: usize,
) -> io::Result<Serving> {
    let addr = listener.local_addr()?;
    let tasks = tasks.group();
    let connections = Connections {
        turns: Turns::start(&tasks, name),
        tasks: tasks.clone(),
        app: TowerToHyperService::new(app.into_service::<Body>()),
        crowd: Crowd::new(most_strangers),
    };
    tasks.spawn(name, async move {
        let stop = connections.tasks.stopping();
        let take = |stream, peer| connections.take(stream, peer);
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => take(stream, peer),
                Err(fault) => {
                    warn!(event = "accept_failed", listener = name, detail = %fault, "cannot accept a connection");
                    connections.crowd.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        waiting(listener).into_iter().for_each(|(stream, peer)| take(stream, peer));
    });
    Ok(Serving { addr, tasks })
}

/// Closes the port. Returns the connections that the system has already accepted: their clients do not know that the
/// port is closing, and would be reset.
fn waiting(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG as usize)
        .filter_map(|(stream, peer)| {
            stream.set_nonblocking(true).ok()?;
            Some((TcpStream::from_std(stream).ok()?, peer))
        })
        .collect()
}

impl Serving {
    /// The address that the port listens on, with the actual port if 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts no more connections, answers the requests in flight, and cuts off the rest at `limit`. Returns whether
    /// everything ended in time.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.tasks.drain(limit).await.is_empty()
    }
}
