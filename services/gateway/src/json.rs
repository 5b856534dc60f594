//! Reads request bodies field by field.
//!
//! Knows: how to split a JSON object into its fields without building a tree, and how to name every wrong field by
//! its JSON pointer. Promises: one pass finds all faults of a body and lists at most [`MOST_FAULTS`]; a value that is
//! kept verbatim is a slice of the body. Leaves to others: which fields exist and what they may hold.

use std::{borrow::Cow, fmt, ops::RangeInclusive};

use muster_domain::{ProblemCode, Time};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use crate::problem::{Fault, Problem};

/// The most faults of one body that the answer lists.
const MOST_FAULTS: usize = 100;

/// The faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Adds the fault that the field at `at` + `/name` has an invalid value.
    pub(crate) fn invalid(&mut self, at: &str, name: &str, detail: impl fmt::Display) {
        self.add(ProblemCode::InvalidRequest, at, name, detail);
    }

    /// Adds a fault of any kind.
    pub(crate) fn add(&mut self, code: ProblemCode, at: &str, name: &str, detail: impl fmt::Display) {
        self.note(code, join(at, name), detail);
    }

    /// Adds a fault at a complete pointer.
    pub(crate) fn note(&mut self, code: ProblemCode, pointer: String, detail: impl fmt::Display) {
        if self.0.len() < MOST_FAULTS {
            self.0.push(Fault { code, pointer, detail: detail.to_string() });
        }
    }

    /// An error with all faults, if there are any.
    pub(crate) fn into_result(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::fields(self.0)) }
    }

    /// Whether there are no faults.
    pub(crate) fn none(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) use muster_flow::admission::pointer as join;

/// The fields of an object, taken out one by one. A field that is left at the end is unknown.
pub(crate) struct Object<'a> {
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
    at: String,
}

impl<'a> Object<'a> {
    /// Reads a whole body. 400 if it is not JSON, 422 if it is not an object.
    pub(crate) fn from_body(body: &'a [u8]) -> Result<Object<'a>, Problem> {
        let not_json = |why: &dyn fmt::Display| Problem::new(ProblemCode::InvalidJson, format!("not JSON: {why}"));
        let text = std::str::from_utf8(body).map_err(|e| not_json(&e))?;
        match serde_json::from_str::<Fields<'a>>(text) {
            Ok(fields) => Ok(Object { fields: fields.0, at: String::new() }),
            Err(e) if e.classify() == Category::Data => {
                Err(Problem::field(ProblemCode::InvalidRequest, "", "must be a JSON object"))
            }
            Err(e) => Err(not_json(&e)),
        }
    }

    /// Reads a nested object.
    pub(crate) fn from_value(raw: &'a RawValue, at: String, faults: &mut Faults) -> Option<Object<'a>> {
        match serde_json::from_str::<Fields<'a>>(raw.get()) {
            Ok(fields) => Some(Object { fields: fields.0, at }),
            Err(_) => {
                faults.note(ProblemCode::InvalidRequest, at, "must be an object");
                None
            }
        }
    }

    /// The JSON pointer of this object in the body.
    pub(crate) fn at(&self) -> &str {
        &self.at
    }

    /// The number of fields that are left.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The fields that are left, with their text.
    pub(crate) fn fields(&self) -> Vec<(Cow<'a, str>, &'a str)> {
        self.fields.iter().map(|(name, raw)| (name.clone(), raw.get())).collect()
    }

    /// The fields that are left, in the order of the body.
    pub(crate) fn into_fields(self) -> impl Iterator<Item = (Cow<'a, str>, &'a RawValue)> {
        self.fields.into_iter()
    }

    /// Takes a field verbatim, also if it is `null`.
    pub(crate) fn verbatim(&mut self, name: &str) -> Option<&'a RawValue> {
        let place = self.fields.iter().position(|(key, _)| key == name)?;
        Some(self.fields.remove(place).1)
    }

    /// Takes a field; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        self.verbatim(name).filter(|raw| raw.get() != "null")
    }

    fn read<T>(
        &mut self,
        name: &str,
        faults: &mut Faults,
        must: &str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Option<T> {
        let raw = self.take(name)?;
        let value = read(raw.get());
        if value.is_none() {
            faults.invalid(&self.at, name, format_args!("must be {must}"));
        }
        value
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, name: &str, faults: &mut Faults) -> Option<Cow<'a, str>> {
        self.read(name, faults, "a string", text)
    }

    /// Takes a string and checks it by a rule. The rule's error says what is wrong.
    pub(crate) fn name<T, E: fmt::Display>(
        &mut self,
        name: &str,
        faults: &mut Faults,
        rule: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let given = self.text(name, faults)?;
        rule(&given).map_err(|why| faults.invalid(&self.at, name, why)).ok()
    }

    /// Takes one of a few fixed words.
    pub(crate) fn word<T>(
        &mut self,
        name: &str,
        faults: &mut Faults,
        words: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        self.read(name, faults, &format!("one of {words}"), |raw| parse(&text(raw)?))
    }

    /// Takes a whole number within bounds. `1.0` and `1e3` are refused: other parsers may lose digits of them.
    pub(crate) fn integer(&mut self, name: &str, faults: &mut Faults, range: RangeInclusive<u64>) -> Option<u64> {
        let raw = self.take(name)?;
        let value = integer(raw.get()).filter(|n| range.contains(n));
        if value.is_none() {
            faults.invalid(
                &self.at,
                name,
                format_args!("must be a whole number from {} to {}", range.start(), range.end()),
            );
        }
        value
    }

    /// Takes a number within bounds.
    pub(crate) fn number(&mut self, name: &str, faults: &mut Faults, range: RangeInclusive<f64>) -> Option<f64> {
        let must = format!("a number from {} to {}", range.start(), range.end());
        let is_number = |raw: &str| raw.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        self.read(name, faults, &must, |raw| {
            raw.parse::<f64>().ok().filter(|n| is_number(raw) && n.is_finite() && range.contains(n))
        })
    }

    /// Takes true or false.
    pub(crate) fn boolean(&mut self, name: &str, faults: &mut Faults) -> Option<bool> {
        self.read(name, faults, "true or false", |raw| raw.parse().ok())
    }

    /// Takes an RFC 3339 time.
    pub(crate) fn moment(&mut self, name: &str, faults: &mut Faults) -> Option<Time> {
        self.read(name, faults, "an RFC 3339 time between 1970 and 2255, like 2026-11-16T06:00:00Z", |raw| {
            Time::parse_rfc3339(&text(raw)?)
        })
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str, faults: &mut Faults) -> Option<Object<'a>> {
        let raw = self.take(name)?;
        Object::from_value(raw, join(&self.at, name), faults)
    }

    /// Takes a list of any values.
    pub(crate) fn list(&mut self, name: &str, faults: &mut Faults) -> Option<Vec<&'a RawValue>> {
        self.read(name, faults, "a list", |raw| serde_json::from_str(raw).ok())
    }

    /// Takes a list of strings and checks each by a rule.
    pub(crate) fn names<T, E: fmt::Display>(
        &mut self,
        name: &str,
        faults: &mut Faults,
        rule: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let items = self.list(name, faults)?;
        let at = join(&self.at, name);
        let mut names = Vec::with_capacity(items.len());
        for (i, raw) in items.into_iter().enumerate() {
            match text(raw.get()).map(|given| rule(&given)) {
                Some(Ok(value)) => names.push(value),
                Some(Err(why)) => faults.invalid(&at, &i.to_string(), why),
                None => faults.invalid(&at, &i.to_string(), "must be a string"),
            }
        }
        Some(names)
    }

    /// Adds a fault if the field is missing.
    pub(crate) fn require(&self, name: &str, faults: &mut Faults) {
        if !self.fields.iter().any(|(key, raw)| key == name && raw.get() != "null") {
            faults.invalid(&self.at, name, "is required");
        }
    }

    /// Ends the reading: every field that is left is an unknown field.
    pub(crate) fn finish(self, faults: &mut Faults) {
        for (name, _) in &self.fields {
            faults.add(ProblemCode::UnknownField, &self.at, name, "is not a field of this request, or is given twice");
        }
    }
}

/// The content of a JSON string; borrowed if the string has no escapes.
pub(crate) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(raw).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
}

/// A JSON whole number that is not negative.
pub(crate) fn integer(raw: &str) -> Option<u64> {
    raw.bytes().all(|b| b.is_ascii_digit()).then(|| raw.parse().ok())?
}

struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(Key(key)) = map.next_key()? {
                    fields.push((key, map.next_value::<&'de RawValue>()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(body: &str, read: impl Fn(&mut Object<'_>, &mut Faults)) -> Vec<(String, ProblemCode)> {
        let mut faults = Faults::default();
        let mut object = Object::from_body(body.as_bytes()).unwrap();
        read(&mut object, &mut faults);
        object.finish(&mut faults);
        faults.0.into_iter().map(|f| (f.pointer, f.code)).collect()
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let found = faults_of(r#"{"a":"x","b":-1,"c":1.5,"d":null,"e/f~":1,"a":2}"#, |o, f| {
            o.text("a", f);
            o.integer("b", f, 0..=9);
            o.integer("c", f, 0..=9);
            assert!(o.integer("d", f, 0..=9).is_none(), "null is absent");
        });
        let invalid = ProblemCode::InvalidRequest;
        let unknown = ProblemCode::UnknownField;
        let expected =
            [("/b", invalid), ("/c", invalid), ("/e~1f~0", unknown), ("/a", unknown)].map(|(p, c)| (p.to_owned(), c));
        assert_eq!(found, expected);
    }

    #[test]
    fn text_that_is_not_json_is_told_from_json_that_is_not_an_object() {
        let code = |body: &[u8]| Object::from_body(body).map(|_| ()).unwrap_err().code;
        for bad in [&b""[..], b"{", b"{\"a\":}", b"{\"a\":1,}", b"\xff\xfe", b"{\"a\":\"\0\"}", b"{} {}", b"{\"a\":01}"]
        {
            assert_eq!(code(bad), ProblemCode::InvalidJson, "{}", String::from_utf8_lossy(bad));
        }
        for bad in [&b"[]"[..], b"1", b"null", b"\"x\""] {
            assert_eq!(code(bad), ProblemCode::InvalidRequest, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn a_storm_of_faults_is_cut() {
        let body: Vec<String> = (0..5_000).map(|i| format!("\"f{i}\":1")).collect();
        assert_eq!(faults_of(&format!("{{{}}}", body.join(",")), |_, _| ()).len(), MOST_FAULTS);
    }

    #[test]
    fn values_stay_as_they_were_sent() {
        let body = br#"{"payload": {"big":123456789012345678901234567890, "e":1.50e+3, "s":"\u0000\ud83d"} }"#;
        let mut object = Object::from_body(body).unwrap();
        let raw = object.verbatim("payload").unwrap();
        assert_eq!(raw.get(), r#"{"big":123456789012345678901234567890, "e":1.50e+3, "s":"\u0000\ud83d"}"#);
    }

    #[test]
    fn nested_fields_point_into_their_parents() {
        let found = faults_of(r#"{"retry":{"x":1,"y":"n"},"list":["a",1],"other":3}"#, |o, f| {
            let mut retry = o.object("retry", f).unwrap();
            retry.integer("y", f, 0..=1);
            retry.finish(f);
            o.names("list", f, |s| if s == "a" { Ok(()) } else { Err("no") });
            assert!(o.object("other", f).is_none());
        });
        let pointers: Vec<&str> = found.iter().map(|(p, _)| p.as_str()).collect();
        assert_eq!(pointers, ["/retry/y", "/retry/x", "/list/1", "/other"]);
    }
}
