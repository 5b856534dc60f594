//! One connection: its requests in order, and its end.
//!
//! It has keep-alive and no Nagle delay. It limits how long a request's head or an idle connection may take, and how
//! long a client may accept no data. An answer that ends the connection says so (`leftover`).
//!
//! hyper does the protocol. The connection is driven here and not by `axum::serve` or the automatic server of
//! `hyper-util` with its graceful shutdown, because those close a connection after its current answer, but cannot limit
//! how long a client accepts no data, cannot let go of the idle connections of strangers first (`crowd`), never see the
//! bytes of a head (`heads`), and do not know that a body was left unread (`leftover`).

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderValue, header};
use hyper::{
    Request,
    body::{Body as _, Incoming},
    server::conn::http1,
    service::Service,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};
use tracing::debug;

use super::{
    crowd::{Client, Crowd},
    heads::Heads,
    leftover::Leftover,
    turns::Turns,
};
use crate::tasks::Tasks;

/// How long a client may take to send a request's head, including the idle time before it.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
/// How long a client may accept no data while some waits to be sent.
#[cfg(target_os = "linux")]
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// How long a drain waits for the first request of a connection: the client has connected to send one.
const FIRST_REQUEST: Duration = Duration::from_millis(200);

type App = TowerToHyperService<axum::routing::RouterIntoService<Body>>;

/// The state that all connections of a port share.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) turns: Turns,
    pub(super) tasks: Tasks,
    pub(super) app: App,
    pub(super) crowd: Arc<Crowd>,
}

impl Connections {
    /// Serves this connection.
    pub(super) fn take(&self, stream: TcpStream, peer: SocketAddr) {
        self.turns.take(self.clone().serve(stream, peer));
    }

    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        if let Err(fault) = stream.set_nodelay(true) {
            debug!(%peer, %fault, "no TCP_NODELAY");
        }
        // Set a timeout in the kernel: an answer is polled for more data only after the last data was sent, so it would
        // not notice a stall itself.
        #[cfg(target_os = "linux")]
        if let Err(fault) = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STALL_LIMIT)) {
            debug!(%peer, %fault, "no TCP_USER_TIMEOUT");
        }
        let stop = self.tasks.stopping();
        let place = self.crowd.enter(peer);
        let client = &place.0;
        let asked = Arc::new(Asked::default());
        let heads = Arc::<Mutex<Heads>>::default();
        let requests = Requests {
            asked: asked.clone(),
            heads: heads.clone(),
            client: client.clone(),
            leftover: Leftover::default(),
            shared: self,
        };
        let service = hyper::service::service_fn(move |request| requests.answer(request));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(Followed { stream, heads }), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = client.cut() => return,
            () = stop.cancelled() => {
                // hyper closes a connection without a request at once, and a request on its way would be lost.
                let ended = tokio::select! {
                    ended = connection.as_mut() => Some(ended),
                    () = asked.once() => None,
                    () = tokio::time::sleep(FIRST_REQUEST) => None,
                };
                match ended {
                    Some(ended) => ended,
                    None => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
            }
        };
        if let Err(fault) = ended {
            debug!(%peer, %fault, "a connection ended with an error");
        }
    }
}

/// Answers the requests of one connection.
struct Requests {
    shared: Connections,
    client: Client,
    asked: Arc<Asked>,
    heads: Arc<Mutex<Heads>>,
    leftover: Leftover,
}

impl Requests {
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<axum::response::Response, std::convert::Infallible>> + use<> {
        self.asked.note();
        let heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner).begin(request.headers());
        let (ambiguous, client) = (heads.are_ambiguous(), self.client.clone());
        client.begin(ambiguous);
        let expects = request.headers().contains_key(header::EXPECT);
        let (leftover, tasks) = (self.leftover.clone(), self.shared.tasks.clone());
        let mut request = request.map(|body| match body.is_end_stream() {
            true => Body::empty(),
            false => Body::new(leftover.keep(body)),
        });
        request.extensions_mut().insert(client.clone());
        let answer = self.shared.app.call(request);
        async move {
            let mut response = answer.await?;
            leftover.clear(&tasks, expects, response.headers_mut()).await;
            if ambiguous {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            client.answered();
            Ok(response)
        }
    }
}

/// Whether a connection has received a request.
#[derive(Default)]
struct Asked {
    yes: AtomicBool,
    news: Notify,
}

impl Asked {
    fn note(&self) {
        if !self.yes.swap(true, Ordering::Relaxed) {
            self.news.notify_one();
        }
    }

    /// Returns once the connection has received a request.
    async fn once(&self) {
        if !self.yes.load(Ordering::Relaxed) {
            self.news.notified().await;
        }
    }
}

/// A stream that passes the bytes it reads to `heads`.
struct Followed {
    stream: TcpStream,
    heads: Arc<Mutex<Heads>>,
}

impl AsyncRead for Followed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.heads.lock().unwrap_or_else(PoisonError::into_inner).read(&buffer.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for Followed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
