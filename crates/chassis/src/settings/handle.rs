//! Handles: a setting as code reads it, a constant that carries the type of its value.
//!
//! A setting without a default is an `Option`; [`Setting::or`] takes the option away.

use std::{marker::PhantomData, net::SocketAddr, ops::RangeInclusive, time::Duration};

use muster_telemetry::Secret;

use super::{Declaration, Fallback, Kind, parse::Value};

/// A setting of type `T`, read by [`super::Values::get`].
///
/// ```
/// # use muster_chassis::{Setting, Values};
/// # use std::time::Duration;
/// muster_chassis::settings! {
///     const OWN = these;
///     const PATIENCE: Setting<Duration> =
///         Setting::duration("patience", "MUSTER_PATIENCE", Duration::ZERO..=Duration::from_secs(60), "How long.").or("1s");
/// }
/// fn patience(values: &Values) -> Duration {
///     values.get(PATIENCE)
/// }
/// ```
///
/// A wrong name does not compile:
/// ```compile_fail,E0425
/// # use muster_chassis::Values;
/// fn patience(values: &Values) -> std::time::Duration {
///     values.get(PATEINCE)
/// }
/// ```
///
/// Neither does a wrong type, such as one that forgets that there may be no value:
/// ```compile_fail,E0308
/// # use muster_chassis::Setting;
/// const ADDR: Setting<std::net::SocketAddr> = Setting::addr("addr", "MUSTER_ADDR", "Where.");
/// ```
#[derive(Debug)]
pub struct Setting<T> {
    declaration: Declaration,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Setting<T> {
    fn clone(&self) -> Setting<T> {
        *self
    }
}

impl<T> Copy for Setting<T> {}

impl<T> Setting<T> {
    const fn new(key: &'static str, env: &'static str, kind: Kind, doc: &'static str) -> Setting<T> {
        let fallback = Fallback::Absent;
        Setting::of(Declaration { key, env, kind, fallback, secret: false, doc, live: false, unused: None })
    }

    const fn of(declaration: Declaration) -> Setting<T> {
        Setting { declaration, of: PhantomData }
    }

    /// The setting's declaration, for the list of settings.
    pub const fn declaration(self) -> Declaration {
        self.declaration
    }

    /// The setting's name.
    pub const fn key(self) -> &'static str {
        self.declaration.key
    }

    /// The same setting, which may be changed while the service runs.
    pub const fn live(self) -> Setting<T> {
        Setting::of(Declaration { live: true, ..self.declaration })
    }

    /// The same setting, marked as without effect yet, with what is missing.
    pub const fn not_yet_used(self, missing: &'static str) -> Setting<T> {
        Setting::of(Declaration { unused: Some(missing), ..self.declaration })
    }
}

impl<T> Setting<Option<T>> {
    /// The same setting with a default, so that there is always a value.
    pub const fn or(self, default: &'static str) -> Setting<T> {
        Setting::of(Declaration { fallback: Fallback::Text(default), ..self.declaration })
    }

    /// The same setting with the name of this host as its default.
    pub const fn or_host_name(self) -> Setting<T> {
        Setting::of(Declaration { fallback: Fallback::HostName, ..self.declaration })
    }
}

impl Setting<Option<String>> {
    /// Any text.
    pub const fn text(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Text, doc)
    }

    /// A name that labels and lock owners can carry.
    pub const fn name(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Name, doc)
    }

    /// One or more comma-separated URLs of these schemes.
    pub const fn url(
        key: &'static str,
        env: &'static str,
        schemes: &'static [&'static str],
        doc: &'static str,
    ) -> Self {
        Setting::new(key, env, Kind::Url(schemes), doc)
    }

    /// One `http://` or `https://` URL.
    pub const fn http_url(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::HttpUrl, doc)
    }

    /// A host, with or without a port.
    pub const fn host_port(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::HostPort, doc)
    }

    /// One of these values.
    pub const fn choice(
        key: &'static str,
        env: &'static str,
        words: &'static [&'static str],
        doc: &'static str,
    ) -> Self {
        Setting::new(key, env, Kind::Choice(words), doc)
    }

    /// Levels by target.
    pub const fn log_filter(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::LogFilter, doc)
    }

    /// The same setting, masked wherever it is shown; it may come from a file.
    pub const fn secret(self) -> Setting<Option<Secret>> {
        Setting::of(Declaration { secret: true, ..self.declaration })
    }
}

impl Setting<Option<usize>> {
    /// A whole number.
    pub const fn count(key: &'static str, env: &'static str, within: RangeInclusive<u32>, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Int { min: *within.start() as i64, max: *within.end() as i64 }, doc)
    }
}

impl Setting<Option<f64>> {
    /// A number, whole or not.
    pub const fn number(key: &'static str, env: &'static str, within: RangeInclusive<f64>, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Number { min: *within.start(), max: *within.end() }, doc)
    }
}

impl Setting<Option<bool>> {
    /// A boolean.
    pub const fn flag(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Bool, doc)
    }

    /// A switch that exists for clarity and cannot be turned off.
    pub const fn only_true(key: &'static str, env: &'static str, why: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::OnlyTrue { why }, doc)
    }
}

impl Setting<Option<Duration>> {
    /// A duration, written `30s` or `250ms`.
    pub const fn duration(
        key: &'static str,
        env: &'static str,
        within: RangeInclusive<Duration>,
        doc: &'static str,
    ) -> Self {
        Setting::new(key, env, Kind::Duration { min: *within.start(), max: *within.end() }, doc)
    }

    /// A duration, written as a number of milliseconds.
    pub const fn millis(key: &'static str, env: &'static str, within: RangeInclusive<u32>, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Int { min: *within.start() as i64, max: *within.end() as i64 }, doc)
    }
}

impl Setting<Option<SocketAddr>> {
    /// An address to listen on.
    pub const fn addr(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::Addr, doc)
    }
}

impl Setting<Vec<String>> {
    /// Comma-separated texts; none when absent.
    pub const fn list(key: &'static str, env: &'static str, doc: &'static str) -> Self {
        Setting::new(key, env, Kind::List, doc)
    }
}

impl Setting<Vec<Secret>> {
    /// Comma-separated secrets, each with at least this many characters; none when absent.
    pub const fn keys(key: &'static str, env: &'static str, min: usize, doc: &'static str) -> Self {
        let plain: Setting<Vec<Secret>> = Setting::new(key, env, Kind::Keys { min }, doc);
        Setting::of(Declaration { secret: true, ..plain.declaration })
    }
}

/// A type that a setting can have.
pub trait Typed {
    /// The type that reading the setting gives.
    type Read<'v>;

    /// Reads the value; none if that is not possible, which only a programming error can cause.
    fn read(value: Option<&Value>) -> Option<Self::Read<'_>>;
}

impl<T: Typed> Typed for Option<T> {
    type Read<'v> = Option<T::Read<'v>>;

    fn read(value: Option<&Value>) -> Option<Self::Read<'_>> {
        match value {
            None => Some(None),
            value => T::read(value).map(Some),
        }
    }
}

macro_rules! typed {
    ($($type:ty => $read:ty, $value:pat => $out:expr;)+) => {$(
        impl Typed for $type {
            type Read<'v> = $read;

            fn read(value: Option<&Value>) -> Option<Self::Read<'_>> {
                match value {
                    $value => Some($out),
                    _ => None,
                }
            }
        }
    )+};
}

typed! {
    String => &'v str, Some(Value::Text(text)) => text;
    Secret => Secret, Some(Value::Text(text)) => Secret::new(text);
    usize => usize, Some(Value::Int(n)) => usize::try_from(*n).ok()?;
    f64 => f64, Some(Value::Number(n)) => *n;
    bool => bool, Some(Value::Bool(answer)) => *answer;
    SocketAddr => SocketAddr, Some(Value::Addr(addr)) => *addr;
}

impl Typed for Duration {
    type Read<'v> = Duration;

    fn read(value: Option<&Value>) -> Option<Duration> {
        match value {
            Some(Value::Duration(span)) => Some(*span),
            Some(Value::Int(millis)) => u64::try_from(*millis).ok().map(Duration::from_millis),
            _ => None,
        }
    }
}

impl Typed for Vec<String> {
    type Read<'v> = &'v [String];

    fn read(value: Option<&Value>) -> Option<&[String]> {
        match value {
            None => Some(&[]),
            Some(Value::List(items)) => Some(items),
            _ => None,
        }
    }
}

impl Typed for Vec<Secret> {
    type Read<'v> = Vec<Secret>;

    fn read(value: Option<&Value>) -> Option<Vec<Secret>> {
        <Vec<String> as Typed>::read(value).map(|items| items.iter().map(Secret::new).collect())
    }
}

/// Makes handles and the list of their declarations, so that every handle is in the list. See [`Setting`].
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])* $list_vis:vis const $list:ident = these;
        $($(#[$doc:meta])* $vis:vis const $name:ident: $type:ty = $value:expr;)+
    ) => {
        $($(#[$doc])* $vis const $name: $type = $value;)+
        $(#[$about])*
        $list_vis const $list: &[$crate::settings::Declaration] = &[$($name.declaration()),+];
    };
}
