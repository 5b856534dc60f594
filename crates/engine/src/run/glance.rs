//! What can be read of a stored run without its definition: enough to pick runs from a list.

use muster_domain::Time;

use super::{
    codec::Unreadable,
    records::{About, Head, RunError},
    state::RunState,
};

/// A run at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Glance {
    /// What it is.
    pub about: About,
    /// Its state.
    pub state: RunState,
    /// When it ended; [`Time::NONE`] before.
    pub ended: Time,
    /// Its error.
    pub error: Option<RunError>,
}

impl Glance {
    /// The names of the fields that are read.
    pub const FIELDS: [&str; 2] = ["about", "head"];

    /// Reads the bytes of the fields `about` and `head`; `None` is a field that does not exist.
    pub fn read(about: Option<&[u8]>, head: Option<&[u8]>) -> Result<Glance, Unreadable> {
        let about: About = field("about", about)?;
        let Head { state, ended, error, .. } = field("head", head)?;
        Ok(Glance { about, state, ended, error })
    }
}

fn field<T: serde::de::DeserializeOwned>(name: &str, bytes: Option<&[u8]>) -> Result<T, Unreadable> {
    let unreadable = |why: String| Unreadable { field: name.to_owned(), why };
    let bytes = bytes.ok_or_else(|| unreadable("it does not exist".to_owned()))?;
    serde_json::from_slice(bytes).map_err(|fault| unreadable(fault.to_string()))
}
