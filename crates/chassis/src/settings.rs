//! What a service can be told, and how: file < environment < flags < run time.
//!
//! Knows: the declaration of a setting ([`Setting`], [`Kind`]) and the list that every
//! service shares ([`COMMON`]). Promises: nothing starts on a bad value; every fault is
//! found before the first is reported, each with where it stands and, where one is near, a
//! suggestion; secrets are masked wherever settings are shown. Leaves to others: what the
//! values mean. [`load`](load()) is pure over the arguments and the environment it is given,
//! apart from the files that these name.

mod baseline;
mod faults;
mod load;
mod parse;
mod reference;
mod values;

use std::time::Duration;

pub use baseline::{
    COMMON, admin_addr, loop_interval, redis_call_timeout, redis_connect_timeout, redis_response_timeout,
};
pub use faults::{Fault, Faults, Warning};
pub use load::{Ask, Loaded, asked, load};
pub use parse::{duration_text, mask_url};
pub(crate) use reference::usual;
pub use reference::{help, reference};
pub use values::{Origin, Shown, Values};

/// What a setting's text must look like.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// One or more comma-separated URLs of these schemes. Passwords in them are masked.
    Url(&'static [&'static str]),
    /// One `http://` or `https://` URL, without a login or a query.
    HttpUrl,
    /// A whole number within bounds.
    Int {
        /// The least that is accepted.
        min: i64,
        /// The most that is accepted.
        max: i64,
    },
    /// A number within bounds, whole or not.
    Number {
        /// The least that is accepted.
        min: f64,
        /// The most that is accepted.
        max: f64,
    },
    /// One or more comma-separated secrets that a header can carry, none shorter than this.
    Keys {
        /// So many characters each has at least.
        min: usize,
    },
    /// `true`, `false`, `1`, `0`, `yes` or `no`.
    Bool,
    /// `30s`, `250ms`, `5m`, `1h`, within bounds.
    Duration {
        /// The least that is accepted.
        min: Duration,
        /// The most that is accepted.
        max: Duration,
    },
    /// `ip:port`, `localhost:port`, or `:port` for all interfaces.
    Addr,
    /// Comma-separated texts.
    List,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A name that labels and lock owners can carry: `[A-Za-z0-9._-]{1,128}`.
    Name,
    /// Levels by target, as [`muster_telemetry::LogSettings`] reads them.
    LogFilter,
    /// A switch that exists for clarity and cannot be turned off.
    OnlyTrue {
        /// Why not.
        why: &'static str,
    },
}

/// What holds when nobody says anything.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// The setting is then absent.
    Absent,
    /// This text, read like any other.
    Text(&'static str),
    /// The name of this host.
    HostName,
}

/// One thing a service can be told.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in the settings file, and, with dashes and `--`, as a flag.
    pub key: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// What its text must look like.
    pub kind: Kind,
    /// What holds when nobody says anything.
    pub fallback: Fallback,
    /// Masked wherever it is shown; may come from a file.
    pub secret: bool,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// May be changed while the service runs.
    pub live: bool,
    /// Promised and without effect so far: what is missing. Whoever gives it is warned.
    pub unused: Option<&'static str>,
}

impl Setting {
    /// A setting that is absent unless somebody gives it.
    pub const fn new(key: &'static str, env: &'static str, kind: Kind, doc: &'static str) -> Setting {
        Setting { key, env, kind, fallback: Fallback::Absent, secret: false, doc, live: false, unused: None }
    }

    /// The same, with a default.
    pub const fn or(self, default: &'static str) -> Setting {
        Setting { fallback: Fallback::Text(default), ..self }
    }

    /// The same, masked wherever it is shown.
    pub const fn secret(self) -> Setting {
        Setting { secret: true, ..self }
    }

    /// The same, and it may be changed while the service runs.
    pub const fn live(self) -> Setting {
        Setting { live: true, ..self }
    }

    /// The same, and it has no effect yet, because of what is missing.
    pub const fn not_yet_used(self, missing: &'static str) -> Setting {
        Setting { unused: Some(missing), ..self }
    }

    /// Its flag: the key with dashes.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }

    /// Whether `<ENV>_FILE`, `<key>_file` and `--<key>-file` may name a file that holds it.
    pub fn may_be_file(&self) -> bool {
        self.secret || matches!(self.kind, Kind::Url(_) | Kind::HttpUrl)
    }
}

/// The service's own list, then what every service has; a service's entry replaces the shared
/// one of the same key.
pub fn with_common(own: &[Setting]) -> Vec<Setting> {
    let shared = COMMON.iter().filter(|shared| own.iter().all(|s| s.key != shared.key));
    own.iter().chain(shared).copied().collect()
}
