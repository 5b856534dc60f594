//! The connection to NATS: one per process, shared by all its clones.
//!
//! This module knows addresses and credentials, whether NATS is reachable, and the clock that stamps envelopes. It
//! comes up while NATS is away and keeps trying forever. A call that waits for an answer fails at once when the
//! connection breaks. Credentials stay out of addresses that the client library might log. Other modules decide what is
//! sent.

pub(crate) mod answerers;

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock, atomic::AtomicBool},
    time::Duration,
};

use async_nats::{
    ConnectOptions, Event, HeaderMap, Message, PublishError, ServerAddr, StatusCode, client::PublishErrorKind,
};
use bytes::Bytes;
use muster_domain::{Time, TraceParent};
use muster_telemetry::events::{BusAway, Emit};
use muster_wire::{Body, encode, seal};
use tokio::{
    sync::{Mutex, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use answerers::Schedulers;

use crate::{
    answers::{Answers, Expected},
    error::BusError,
};

/// How many publishes may await their acks at one time; further ones wait.
const IN_FLIGHT: usize = 1_024;
/// Room for the envelope and the headers within the server's limit.
const HEADROOM: usize = 4 * 1_024;

/// The source of envelope times: an estimate of Redis time.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// How to reach NATS.
#[derive(Clone)]
pub struct BusSettings {
    /// One server or several, comma-separated: `nats://host:4222`, `tls://…`, with
    /// `user:password@` or `token@` where the server asks for it.
    pub url: String,
    /// The number of copies of each stream that a cluster keeps.
    pub replicas: usize,
    /// The name of this process, in envelopes and in the server's list of connections.
    pub instance: String,
    /// How long one request may stay unanswered. A publish asks again until its own limit.
    pub request_timeout: Duration,
    /// How often a silent server is pinged. After three pings without any data from the server, the client tries the
    /// next server.
    pub ping_interval: Duration,
}

impl BusSettings {
    /// One server, one copy, a request timeout of two seconds, and silence that is noticed within two seconds.
    pub fn new(url: impl Into<String>, instance: impl Into<String>) -> BusSettings {
        BusSettings {
            url: url.into(),
            replicas: 1,
            instance: instance.into(),
            request_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_millis(600),
        }
    }
}

impl fmt::Debug for BusSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusSettings").field("replicas", &self.replicas).field("instance", &self.instance).finish()
    }
}

/// The connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Bus {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) client: async_nats::Client,
    answers: Answers,
    pub(crate) schedulers: Schedulers,
    pub(crate) settings: BusSettings,
    pub(crate) in_flight: Semaphore,
    /// When streams were last recreated during a call, and the result; see [`Bus::heal`].
    pub(crate) healed: Mutex<Option<(Instant, Result<(), BusError>)>>,
    /// Whether the streams existed once: a stream that is missing after that was deleted.
    pub(crate) had_streams: AtomicBool,
    /// Grows with every break, so that a waiting caller knows that its answer will not come.
    breaks: watch::Sender<u64>,
    up: watch::Sender<bool>,
    clock: RwLock<Option<Clock>>,
}

impl Bus {
    /// Begins to connect and returns at once: NATS may come later. Fails only for an address that cannot be parsed.
    pub async fn connect(settings: BusSettings) -> Result<Bus, BusError> {
        // If another part of the process has installed a provider already, that one is just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Addresses { servers, user, password } = addresses(&settings.url)?;
        let (breaks, up) = (watch::Sender::new(0), watch::Sender::new(false));
        let mut options = ConnectOptions::new()
            .name(&settings.instance)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(Duration::from_secs(2))
            .ping_interval(settings.ping_interval)
            .request_timeout(Some(settings.request_timeout))
            .reconnect_delay_callback(before_attempt)
            .event_callback({
                let (breaks, up) = (breaks.clone(), up.clone());
                move |event| {
                    note(&event, &breaks, &up);
                    async {}
                }
            });
        options = match (user, password) {
            (Some(user), Some(password)) => options.user_and_password(user, password),
            (Some(token), None) => options.token(token),
            (None, _) => options,
        };
        let client = options.connect(servers).await.map_err(|e| BusError::Address(e.to_string()))?;
        let answers = Answers::open(&client).await?;
        let inner = Inner {
            client,
            answers,
            schedulers: Schedulers::default(),
            settings,
            in_flight: Semaphore::new(IN_FLIGHT),
            healed: Mutex::new(None),
            had_streams: AtomicBool::new(false),
            breaks,
            up,
            clock: RwLock::new(None),
        };
        Ok(Bus { inner: Arc::new(inner) })
    }

    /// The name of this process.
    pub fn instance(&self) -> &str {
        &self.inner.settings.instance
    }

    /// Sets the clock for envelopes. Without a clock they carry no time, as those of workers do.
    pub fn set_clock(&self, clock: Clock) {
        *self.inner.clock.write().unwrap_or_else(PoisonError::into_inner) = Some(clock);
    }

    /// Whether there is a connection at this moment.
    pub fn is_connected(&self) -> bool {
        self.inner.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Waits for the connection, as long as it takes.
    pub async fn connected(&self) {
        let mut up = self.watch_state();
        while !self.is_connected() {
            // The library may drop an event when many come at once, so check the state as well.
            let _ = timeout(Duration::from_millis(100), up.changed()).await;
        }
    }

    /// A receiver that is `true` while connected, and wakes on every change.
    pub fn watch_state(&self) -> watch::Receiver<bool> {
        self.inner.up.subscribe()
    }

    /// The most bytes that the items of one message may have together.
    pub fn max_message(&self) -> usize {
        self.inner.client.max_payload().saturating_sub(HEADROOM).max(HEADROOM)
    }

    /// Waits until everything passed to the connection has been written out. For a graceful stop: acks and naks are
    /// fire-and-forget. Gives up after `limit`.
    pub async fn flush(&self, limit: Duration) {
        if self.is_connected() {
            let _ = timeout(limit, self.inner.client.flush()).await;
        }
    }

    /// Wraps a body in an envelope.
    pub(crate) fn sealed(&self, trace: Option<TraceParent>, body: Body) -> Bytes {
        let clock = self.inner.clock.read().unwrap_or_else(PoisonError::into_inner).clone();
        let now = clock.map_or(Time::NONE, |clock| clock());
        encode(&seal(self.instance(), trace, now, body))
    }

    /// A receiver of the number of connection breaks so far.
    pub(crate) fn breaks(&self) -> watch::Receiver<u64> {
        self.inner.breaks.subscribe()
    }

    /// Waits for the connection until `deadline`.
    pub(crate) async fn connected_by(&self, deadline: Instant, what: &str) -> Result<(), BusError> {
        if self.is_connected() {
            return Ok(());
        }
        tokio::time::timeout_at(deadline, self.connected()).await.map_err(|_| {
            BusAway { detail: what }.emit();
            BusError::away(what)
        })
    }

    /// Sends one request and waits for its answer. Ends early when the connection breaks: the answer is then lost.
    pub(crate) async fn ask(
        &self,
        subject: async_nats::Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        wait: Duration,
    ) -> Result<Message, BusError> {
        let deadline = Instant::now() + wait;
        self.connected_by(deadline, &subject).await?;
        let mut breaks = self.breaks();
        let before = *breaks.borrow();
        let size = payload.len();
        let asked = async {
            let mut expected = self.inner.answers.expect();
            let (client, reply) = (&self.inner.client, expected.reply.clone());
            let sent = match headers {
                Some(headers) => client.publish_with_reply_and_headers(subject.clone(), reply, headers, payload).await,
                None => client.publish_with_reply(subject.clone(), reply, payload).await,
            };
            sent.map_err(|e| self.unsent(&e, size))?;
            expected.heard().await.ok_or_else(|| BusError::away("the connection was closed"))
        };
        let answer = tokio::select! {
            answer = asked => answer?,
            () = tokio::time::sleep_until(deadline) => {
                BusAway { detail: &subject }.emit();
                return Err(BusError::Timeout { what: subject.to_string(), after: wait });
            }
            _ = breaks.wait_for(|now| *now != before) => {
                BusAway { detail: &subject }.emit();
                return Err(BusError::away(format!("the connection broke during {subject}")));
            }
        };
        match answer.status {
            Some(StatusCode::NO_RESPONDERS) => Err(BusError::NoResponders { subject: subject.to_string() }),
            _ => Ok(answer),
        }
    }

    /// Sends a message and waits only for room in the connection's queue. While NATS is away it fails at once, so that
    /// messages do not pile up.
    pub(crate) async fn tell(&self, subject: async_nats::Subject, payload: Bytes) -> Result<(), BusError> {
        self.tell_with(HeaderMap::new(), subject, payload).await
    }

    /// [`Bus::tell`] with headers.
    pub(crate) async fn tell_with(
        &self,
        headers: HeaderMap,
        subject: async_nats::Subject,
        payload: Bytes,
    ) -> Result<(), BusError> {
        if !self.is_connected() {
            return Err(BusError::away(subject.as_str()));
        }
        let size = payload.len();
        let wait = self.inner.settings.request_timeout;
        let (client, to) = (&self.inner.client, subject.clone());
        let sent = async {
            match headers.is_empty() {
                true => client.publish(to, payload).await,
                false => client.publish_with_headers(to, headers, payload).await,
            }
        };
        match timeout(wait, sent).await {
            Ok(sent) => sent.map_err(|e| self.unsent(&e, size)),
            Err(_) => Err(BusError::Timeout { what: subject.to_string(), after: wait }),
        }
    }

    /// Reserves a place for one answer.
    pub(crate) fn expect_answer(&self) -> Expected {
        self.inner.answers.expect()
    }

    pub(crate) fn unsent(&self, fault: &PublishError, size: usize) -> BusError {
        match fault.kind() {
            PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge { size, limit: self.inner.client.max_payload() },
            PublishErrorKind::InvalidSubject | PublishErrorKind::Send => BusError::away(fault.to_string()),
        }
    }

    /// A short pause between tries, longer with each try.
    pub(crate) async fn rest(tries: u32) {
        sleep(Duration::from_millis(25 << tries.min(4))).await;
    }
}

/// The pause before a connection attempt: none at first, then growing up to a second.
fn before_attempt(attempt: usize) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        n => Duration::from_millis((10_u64 << n.min(7)).min(1_000)),
    }
}

fn note(event: &Event, breaks: &watch::Sender<u64>, up: &watch::Sender<bool>) {
    match event {
        Event::Connected => {
            info!("connected to NATS");
            up.send_replace(true);
        }
        Event::Disconnected | Event::Closed => {
            warn!("the connection to NATS is gone");
            breaks.send_modify(|breaks| *breaks += 1);
            up.send_replace(false);
        }
        Event::SlowConsumer(_) => warn!("a subscription is too slow: NATS messages were dropped"),
        // Failed connection attempts come by the dozen; the waiting caller reports the fault itself.
        Event::ClientError(_) | Event::ServerError(_) | Event::LameDuckMode | Event::Draining => {}
    }
}

struct Addresses {
    servers: Vec<ServerAddr>,
    user: Option<String>,
    password: Option<String>,
}

/// Parses the addresses and takes the credentials out of them: the library does not use credentials in an address, and
/// would show them in its debug lines.
fn addresses(list: &str) -> Result<Addresses, BusError> {
    let mut found = Addresses { servers: Vec::new(), user: None, password: None };
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        // Errors name the position, not the text, because the text may contain a password.
        let nth = found.servers.len() + 1;
        let bad = || BusError::Address(format!("address {nth} of the list is not like nats://host:4222"));
        let mut url = text.parse::<ServerAddr>().map_err(|_| bad())?.into_inner();
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad());
        }
        if found.user.is_none() && !url.username().is_empty() {
            found.user = Some(percent_decoded(url.username()));
            found.password = url.password().map(percent_decoded);
        }
        url.set_password(None).and_then(|()| url.set_username("")).map_err(|()| bad())?;
        found.servers.push(ServerAddr::from_url(url).map_err(|_| bad())?);
    }
    if found.servers.is_empty() {
        return Err(BusError::Address("no address was given".to_owned()));
    }
    Ok(found)
}

fn percent_decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code {
            Some(byte) if first == b'%' => {
                out.push(byte);
                rest = &tail[2..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_and_their_credentials_taken_out() {
        let found = addresses("nats://bob:p%40ss@one:4222, tls://two:4333,three").unwrap();
        assert_eq!((found.user.as_deref(), found.password.as_deref()), (Some("bob"), Some("p@ss")));
        let shown: Vec<_> = found.servers.iter().map(|s| (s.host(), s.port(), s.tls_required())).collect();
        assert_eq!(shown, [("one", 4222, false), ("two", 4333, true), ("three", 4222, false)]);
        assert!(found.servers.iter().all(|s| s.username().is_none() && s.password().is_none()));
    }

    #[test]
    fn a_lone_user_is_a_token() {
        let found = addresses("nats://s3cret@one").unwrap();
        assert_eq!((found.user.as_deref(), found.password), (Some("s3cret"), None));
    }

    #[test]
    fn a_bad_address_is_refused_without_showing_it() {
        for bad in ["", " , ", "http://x", "nats://", "nats://bob:hunter2@:x"] {
            let Err(fault) = addresses(bad) else { panic!("{bad:?} was taken") };
            assert!(!fault.to_string().contains("hunter2"), "{fault}");
        }
    }
}
