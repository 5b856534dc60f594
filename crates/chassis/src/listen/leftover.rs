//! The unread rest of a request's body when its answer is ready.
//!
//! A refusal that does not read the body must not break the next request on the connection, and must not be lost
//! because the client is still sending. If the rest is small and has arrived, it is read, and the connection stays
//! open. Otherwise the answer says `Connection: close` and goes out at once; the rest is read and discarded for a
//! while, so that the client gets to read the answer.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::tasks::Tasks;

/// The rest is waited for if it has at most this many bytes, and for this long.
const SMALL: usize = 64 * 1024;
const ARRIVES_WITHIN: Duration = Duration::from_millis(100);
/// How much of a longer rest is discarded, and for how long.
const THROWN_AWAY: usize = 64 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(10);

/// Receives the unread rest of a connection's current body.
#[derive(Clone, Default)]
pub(super) struct Leftover(Arc<Mutex<Option<Incoming>>>);

/// A body whose rest goes to a [`Leftover`] when it is dropped.
pub(super) struct Tracked {
    body: Option<Incoming>,
    rest: Leftover,
}

impl Leftover {
    pub(super) fn keep(&self, body: Incoming) -> Tracked {
        Tracked { body: Some(body), rest: self.clone() }
    }

    fn swap(&self, rest: Option<Incoming>) -> Option<Incoming> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), rest)
    }

    /// Handles the rest before an answer with these headers goes out. `expects`: the client waits for a `100 Continue`
    /// before it sends the body, and does not get one.
    pub(super) async fn clear(&self, tasks: &Tasks, expects: bool, headers: &mut HeaderMap) {
        let Some(mut rest) = self.swap(None) else { return };
        let small = rest.size_hint().upper().is_none_or(|n| n <= SMALL as u64);
        if !expects && small && tokio::time::timeout(ARRIVES_WITHIN, ended(&mut rest, SMALL)).await == Ok(true) {
            return;
        }
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        if !expects {
            let thrown_away = async move { tokio::time::timeout(LINGER, ended(&mut rest, THROWN_AWAY)).await };
            drop(tasks.spawn("unread body", thrown_away));
        }
    }
}

/// Reads and discards. Returns whether the body ended within this many bytes.
async fn ended(body: &mut Incoming, limit: usize) -> bool {
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > limit {
            return false;
        }
    }
    true
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        if rest.is_some() {
            self.rest.swap(rest);
        }
    }
}
