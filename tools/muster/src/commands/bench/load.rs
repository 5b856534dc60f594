//! The closed-loop load of a bench: a number of connections, each with one request in flight, as fast as answers
//! come. If a gateway asks to wait, the load waits; any other refusal, or a broken connection, ends the bench,
//! because then it is unknown what was accepted.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::try_join_all;
use muster_domain::JobId;

use super::{
    keep_alive::{Answer, KeepAlive},
    requests::{Submits, job_ids},
};
use crate::{outcome::Failure, target::Door};

/// The wait if a gateway asks for one without a time.
const PAUSE: Duration = Duration::from_millis(100);
/// Part of the answer of a gateway whose store did not answer.
const STORE_AWAY: &[u8] = br#""code":"store_unavailable""#;

/// The result of a load.
#[derive(Debug, Default)]
pub(super) struct Submitted {
    /// The accepted jobs, in the order of their answers.
    pub(super) jobs: Vec<JobId>,
    /// The number of answers that asked to retry later.
    pub(super) put_off: u64,
}

/// The addresses of the gateways.
pub(super) async fn addresses(door: &Door) -> anyhow::Result<Vec<SocketAddr>> {
    let mut addrs = Vec::new();
    for url in &door.urls {
        let host = url.strip_prefix("http://").ok_or_else(|| {
            Failure::usage(format!("a bench uses plain HTTP only, and {url} is not plain HTTP"))
                .hint("use a local stack")
        })?;
        let mut found =
            tokio::net::lookup_host(host).await.with_context(|| format!("the host of {url} cannot be resolved"))?;
        addrs.push(found.next().with_context(|| format!("{url} has no address"))?);
    }
    Ok(addrs)
}

/// Opens this many connections, spread over the gateways.
pub(super) async fn connect(addrs: &[SocketAddr], connections: usize) -> anyhow::Result<Vec<KeepAlive>> {
    let open = |addr: &SocketAddr| {
        let addr = *addr;
        async move { KeepAlive::open(addr).await.with_context(|| format!("cannot connect to {addr}")) }
    };
    try_join_all(addrs.iter().cycle().take(connections).map(open)).await
}

/// Submits by `count` requests over these connections; calls `seen` with the number of accepted jobs.
pub(super) async fn submit(
    connections: &mut [KeepAlive],
    submits: &Submits,
    count: u64,
    seen: impl Fn(u64),
) -> anyhow::Result<Submitted> {
    let jobs = usize::try_from(count * submits.batch)?;
    let (next, put_off, accepted) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::with_capacity(jobs)));
    let (next, put_off_ref, accepted_ref, seen) = (&next, &put_off, &accepted, &seen);
    let each = connections.iter_mut().map(|connection| async move {
        loop {
            let n = next.get();
            if n >= count {
                return anyhow::Ok(());
            }
            next.set(n + 1);
            let request = submits.nth(n);
            loop {
                let answer = connection.exchange(request).await.context("a connection broke")?;
                if let Some(pause) = asked_to_wait(&answer) {
                    put_off_ref.set(put_off_ref.get() + 1);
                    tokio::time::sleep(pause).await;
                    continue;
                }
                let mut jobs = accepted_ref.borrow_mut();
                let before = jobs.len();
                if answer.status < 300 {
                    jobs.extend(job_ids(answer.body));
                }
                if (jobs.len() - before) as u64 != submits.batch {
                    return Err(refused(&answer).into());
                }
                seen(jobs.len() as u64);
                break;
            }
        }
    });
    try_join_all(each).await?;
    Ok(Submitted { jobs: accepted.into_inner(), put_off: put_off.get() })
}

/// How long to wait before the same request may be sent again, if the answer asks for that. A store that did not
/// answer in time may have stored the jobs all the same, so after that nothing is repeated: requests of a bench have
/// no key by which a repeat would find the jobs.
pub(super) fn asked_to_wait(answer: &Answer<'_>) -> Option<Duration> {
    let unknown = || answer.body.windows(STORE_AWAY.len()).any(|window| window == STORE_AWAY);
    (matches!(answer.status, 429 | 503) && !unknown()).then(|| answer.retry_after.unwrap_or(PAUSE))
}

fn refused(answer: &Answer<'_>) -> Failure {
    let text = String::from_utf8_lossy(answer.body);
    // In the answer to a batch, the first failed item says why.
    let text: String = text.find(r#""error":"#).map_or(&*text, |at| &text[at..]).chars().take(600).collect();
    Failure::new(format!("not every job was accepted ({}): {text}", answer.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_was_not_accepted_is_sent_again() {
        let wait = |status, body: &'static str, seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            asked_to_wait(&Answer { status, retry_after, body: body.as_bytes() })
        };
        assert_eq!(wait(429, r#"{"code":"rate_limited"}"#, 3), Some(Duration::from_secs(3)));
        assert_eq!(wait(503, r#"{"code":"overloaded"}"#, 1), Some(Duration::from_secs(1)));
        assert_eq!(wait(503, r#"{"code":"store_unavailable"}"#, 1), None);
        assert_eq!(wait(202, "{}", 1), None);
    }
}
