//! The settings of a service and their sources: file < environment < flags < run time.
//!
//! This module has the declaration of a setting ([`Setting`], [`Kind`]) and the list that every service shares
//! ([`COMMON`]). Code reads a setting by its handle, a constant that carries the type of its value, so a wrong name or
//! type does not compile; [`settings!`](crate::settings!) makes handles and list in one. Nothing starts with a bad
//! value. Every fault is found before the first is reported, each with its place and, if a known name is close, a
//! suggestion. Secrets are masked wherever settings are shown. The services decide what the values mean.
//! [`load`](load()) is pure over the arguments and the environment it is given, apart from the files that these name.

pub mod baseline;
mod faults;
mod handle;
mod load;
mod parse;
mod reference;
mod values;

use std::time::Duration;

pub use baseline::{
    COMMON, admin_addr, loop_interval, redis_call_timeout, redis_connect_timeout, redis_response_timeout,
};
pub use faults::{Fault, Faults, Warning};
pub use handle::{Setting, Typed};
pub use load::{Ask, Loaded, asked, load};
pub use parse::{duration_text, mask_url};
pub(crate) use reference::usual;
pub use reference::{help, reference};
pub use values::{Origin, Shown, Values};

/// The form that a setting's text must have.
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
        /// The least number of characters of each secret.
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
    /// A host name or an IP address, with or without `:port`.
    HostPort,
    /// Comma-separated texts.
    List,
    /// One of these values.
    Choice(&'static [&'static str]),
    /// A name that labels and lock owners can carry: `[A-Za-z0-9._-]{1,128}`.
    Name,
    /// Levels by target, as [`muster_telemetry::LogSettings`] reads them.
    LogFilter,
    /// A switch that exists for clarity and cannot be turned off.
    OnlyTrue {
        /// The reason why it cannot be turned off.
        why: &'static str,
    },
}

/// The value of a setting that no source gives.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// The setting is absent.
    Absent,
    /// This text, parsed like any other.
    Text(&'static str),
    /// The name of this host.
    HostName,
}

/// One setting as files, flags, the environment and the docs know it.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// The setting's name in the settings file and, with dashes and `--`, as a flag.
    pub key: &'static str,
    /// The setting's environment variable.
    pub env: &'static str,
    /// The form that the setting's text must have.
    pub kind: Kind,
    /// The value if no source gives the setting.
    pub fallback: Fallback,
    /// Whether the value is masked wherever it is shown; it may come from a file.
    pub secret: bool,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// Whether the setting may be changed while the service runs.
    pub live: bool,
    /// Set if the setting is announced but has no effect yet: what is missing. A user who gives it gets a warning.
    pub unused: Option<&'static str>,
}

impl Declaration {
    /// The setting's flag: the key with dashes.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }

    /// Whether `<ENV>_FILE`, `<key>_file` and `--<key>-file` may name a file that holds the value.
    pub fn may_be_file(&self) -> bool {
        self.secret || matches!(self.kind, Kind::Url(_) | Kind::HttpUrl)
    }
}

/// The service's own list, then what every service has; a service's entry replaces the shared
/// one of the same key.
pub fn with_common(own: &[Declaration]) -> Vec<Declaration> {
    let shared = COMMON.iter().filter(|shared| own.iter().all(|s| s.key != shared.key));
    own.iter().chain(shared).copied().collect()
}
