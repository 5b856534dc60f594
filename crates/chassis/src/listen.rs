//! Serves HTTP/1 on a port and drains it.
//!
//! Knows: sockets and connections. Promises: keep-alive, no Nagle delay, a limit on how long
//! a request's head or an idle connection may take, and on how long a client may take nothing of
//! what it is sent; on drain no new connection is taken, idle ones close at once, busy ones after
//! their answer, and the rest at the limit. The peer's address is there as
//! `ConnectInfo<SocketAddr>`. Leaves to others: the routes.

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo};
use hyper::{Request, body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::tasks::Tasks;

/// How long a client may take for a request's head, idle time before it included.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
/// How long a client may take nothing of what waits to be sent to it.
#[cfg(target_os = "linux")]
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Connections that may wait to be taken, as far as the system allows. A client whose first packet finds no
/// place knocks again after one second, then two, then four: for up to a minute nobody would answer it.
const BACKLOG: u32 = 4096;
/// After a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that is being served.
pub struct Serving {
    addr: SocketAddr,
    tasks: Tasks,
}

/// Takes the port, so that a start fails early when it is taken.
pub async fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    listen(addr).map_err(|fault| io::Error::new(fault.kind(), format!("cannot listen on {addr}: {fault}")))
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Or a service that comes back could not take its own port for a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves `app` until drained, or until `tasks` is. `name` is what a late drain names.
pub fn serve(tasks: &Tasks, name: &'static str, listener: TcpListener, app: Router) -> io::Result<Serving> {
    let addr = listener.local_addr()?;
    let tasks = tasks.group();
    let connections = tasks.clone();
    tasks.spawn(name, async move {
        let stop = connections.stopping();
        let app = TowerToHyperService::new(app.into_service::<Body>());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(name, connection(stream, peer, app.clone(), stop.clone()));
                }
                Err(fault) => {
                    warn!(event = "accept_failed", listener = name, detail = %fault, "cannot take a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(Serving { addr, tasks })
}

type App = TowerToHyperService<axum::routing::RouterIntoService<Body>>;

async fn connection(stream: TcpStream, peer: SocketAddr, app: App, stop: CancellationToken) {
    if let Err(fault) = stream.set_nodelay(true) {
        debug!(%peer, %fault, "no TCP_NODELAY");
    }
    // An answer asks for more to send only when the last was sent: it would not notice itself.
    #[cfg(target_os = "linux")]
    if let Err(fault) = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STALL_LIMIT)) {
        debug!(%peer, %fault, "no TCP_USER_TIMEOUT");
    }
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(fault) = ended {
        debug!(%peer, %fault, "connection ended badly");
    }
}

impl Serving {
    /// Where it listens; tells the port when 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes no more, answers what is in flight, and cuts off the rest at `limit`. Tells
    /// whether everything ended in time.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.tasks.drain(limit).await.is_empty()
    }
}
