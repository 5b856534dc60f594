//! How fields of the gateways' documents are read and written: ids as text, times that a newer gateway may write in
//! another way, and JSON values that stay as they were sent.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::error::ClientError;

/// A field that is present, even if it is `null`: a result may be `null`.
pub(super) fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Reads a value that was kept as text; one that is absent is `null`.
pub(super) fn read<T: DeserializeOwned>(json: Option<&RawValue>, what: &str) -> Result<T, ClientError> {
    serde_json::from_str(json.map_or("null", RawValue::get))
        .map_err(|error| ClientError::Unexpected(format!("the {what} does not fit: {error}")))
}

/// An id as its text.
pub(super) mod as_text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::client) fn serialize<T: Display, S: Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(in crate::client) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An id that may be absent. One that cannot be read becomes none, so that the document itself stays readable.
pub(super) mod maybe_text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::client) fn serialize<T: Display, S: Serializer>(id: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => to.collect_str(id),
            None => to.serialize_none(),
        }
    }

    pub(in crate::client) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.and_then(|text| text.parse().ok()))
    }
}

/// A time in RFC 3339.
pub(super) mod moment {
    use muster_domain::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::client) fn serialize<S: Serializer>(moment: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
        match moment {
            Some(moment) => to.serialize_str(&moment.rfc3339()),
            None => to.serialize_none(),
        }
    }

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
        // A moment that cannot be read becomes none, so that the document itself stays readable.
        Ok(Option::<String>::deserialize(from)?.as_deref().and_then(Time::parse_rfc3339))
    }
}
