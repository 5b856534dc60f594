//! Which values a run can hold: those that can be read back from its fields.
//!
//! Knows: the parser of JSON stops at 128 levels, and a field holds its value one or two levels deep; two features of
//! the parser (`raw_value`, `arbitrary_precision`) give names that begin with [`RESERVED`] a meaning of their own.
//! Promises: what [`check`] takes is the same after it was saved and loaded; [`parse`] gives only such values, and
//! neither text nor nesting in the text of a string makes it recurse deeper than [`MOST_LEVELS`].

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// How deep a value of a run may nest. A number has no level, `[]` has one, `[[]]` has two.
pub const MOST_LEVELS: usize = 100;
/// How names begin that the parser of JSON keeps for itself.
const RESERVED: &str = "$serde_json::private::";
/// The only field of the object as which the parser hands a number over that is no integer of 64 bits.
const NUMBER: &str = "$serde_json::private::Number";

/// Why a run cannot hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// It nests too deeply.
    #[error("nests deeper than {MOST_LEVELS} levels")]
    TooDeep,
    /// An object in it has a field with a reserved name.
    #[error("has a field whose name begins with `{RESERVED}`, which is reserved")]
    ReservedName,
}

/// Why a text gives no value that a run can hold.
#[derive(Debug, thiserror::Error)]
pub enum ParseFault {
    /// A run cannot hold it.
    #[error(transparent)]
    Value(#[from] ValueFault),
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Whether a run can hold a value.
pub fn check(value: &Value) -> Result<(), ValueFault> {
    within(value, MOST_LEVELS)
}

fn within(value: &Value, levels: usize) -> Result<(), ValueFault> {
    let inner = || levels.checked_sub(1).ok_or(ValueFault::TooDeep);
    match value {
        Value::Array(items) => {
            let inner = inner()?;
            items.iter().try_for_each(|item| within(item, inner))
        }
        Value::Object(fields) => {
            let inner = inner()?;
            fields.iter().try_for_each(|(name, value)| match name.starts_with(RESERVED) {
                true => Err(ValueFault::ReservedName),
                false => within(value, inner),
            })
        }
        _ => Ok(()),
    }
}

/// Reads a value that a run is to hold.
pub fn parse(json: &[u8]) -> Result<Value, ParseFault> {
    let fault = Cell::new(None);
    let mut text = serde_json::Deserializer::from_slice(json);
    let read = Reader { levels: MOST_LEVELS, fault: &fault }.deserialize(&mut text);
    let whole = read.and_then(|value| text.end().map(|()| value));
    whole.map_err(|error| fault.get().map_or(ParseFault::Json(error), ParseFault::Value))
}

/// Reads one value within so many levels. The reader of `serde_json` would read a text in a string as a value too.
#[derive(Clone, Copy)]
struct Reader<'f> {
    levels: usize,
    fault: &'f Cell<Option<ValueFault>>,
}

impl Reader<'_> {
    fn refuse<E: Error>(&self, fault: ValueFault) -> E {
        self.fault.set(Some(fault));
        E::custom(fault)
    }

    fn inner<E: Error>(&self) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1).ok_or_else(|| self.refuse(ValueFault::TooDeep))?;
        Ok(Reader { levels, ..*self })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<Value, E> {
        Ok(Value::Bool(given))
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<Value, E> {
        Ok(Value::from(given))
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<Value, E> {
        Ok(Value::from(given))
    }

    fn visit_f64<E: Error>(self, given: f64) -> Result<Value, E> {
        Ok(Value::from(given))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let (inner, mut items) = (self.inner()?, Vec::new());
        while let Some(item) = list.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut name = map.next_key::<String>()?;
        if name.as_deref() == Some(NUMBER) {
            // A number: a field of this name in the text is the same to the parser, and has to hold digits.
            let digits = map.next_value::<String>().ok().and_then(|digits| digits.parse::<Number>().ok());
            return match (digits, map.next_key::<String>()?) {
                (Some(number), None) => Ok(Value::Number(number)),
                _ => Err(self.refuse(ValueFault::ReservedName)),
            };
        }
        let (inner, mut fields) = (self.inner()?, Map::new());
        while let Some(given) = name {
            if given.starts_with(RESERVED) {
                return Err(self.refuse(ValueFault::ReservedName));
            }
            let value = map.next_value_seed(inner)?;
            fields.insert(given, value);
            name = map.next_key()?;
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    fn fault(json: &str) -> Option<ValueFault> {
        match parse(json.as_bytes()) {
            Ok(value) => {
                assert_eq!(check(&value), Ok(()), "{json}");
                None
            }
            Err(ParseFault::Value(fault)) => Some(fault),
            Err(other) => panic!("{json}: {other}"),
        }
    }

    #[test]
    fn values_of_the_most_levels_are_read_and_deeper_ones_are_named() {
        for wrap in [("", ""), (r#"{"a":"#, "}"), (r#"[1,{"a":[],"b":"#, "}]")] {
            let levels = MOST_LEVELS - wrap.1.len();
            assert_eq!(fault(&format!("{}{}{}", wrap.0, nested(levels), wrap.1)), None);
            for deeper in [levels + 1, 127, 128, 100_000] {
                let json = format!("{}{}{}", wrap.0, nested(deeper), wrap.1);
                assert_eq!(fault(&json), Some(ValueFault::TooDeep), "{deeper}");
            }
        }
        assert_eq!(check(&parse(nested(MOST_LEVELS).as_bytes()).unwrap()), Ok(()));
        assert_eq!(check(&json!([parse(nested(MOST_LEVELS).as_bytes()).unwrap()])), Err(ValueFault::TooDeep));
    }

    #[test]
    fn text_in_a_string_stays_text_and_reserved_names_are_refused() {
        let raw = format!("{RESERVED}RawValue");
        for json in [
            format!(r#"{{"x":{{"{raw}":"{}"}}}}"#, nested(127)),
            format!(r#"{{"{raw}":"[1]"}}"#),
            format!(r#"[{{"a":1,"{raw}":"[1]"}}]"#),
            format!(r#"{{"\u0024{}":"[1]"}}"#, &raw[1..]),
            format!(r#"{{"a":1,"{NUMBER}":"2"}}"#),
            format!(r#"{{"{NUMBER}":"2x"}}"#),
            format!(r#"{{"{NUMBER}":2}}"#),
            format!(r#"{{"{NUMBER}":"2","a":1}}"#),
            format!(r#"{{"{RESERVED}New":1}}"#),
        ] {
            assert_eq!(fault(&json), Some(ValueFault::ReservedName), "{json}");
        }
        assert_eq!(check(&json!({"a": [{NUMBER: "2"}]})), Err(ValueFault::ReservedName));
        assert_eq!(parse(format!(r#"{{"{NUMBER}":"2"}}"#).as_bytes()).unwrap(), json!(2), "as the parser has it");
        assert_eq!(parse(br#"["$serde_json::private::RawValue"]"#).unwrap(), json!(["$serde_json::private::RawValue"]));
    }

    #[test]
    fn what_is_not_json_is_told_from_what_cannot_be_held() {
        for json in ["", "[", "[1] 2", "{\"a\":}", "nul", "\"\u{1}\"", "01", "{\"a\":1,}", "'a'"] {
            assert!(matches!(parse(json.as_bytes()), Err(ParseFault::Json(_))), "{json}");
        }
        assert!(matches!(parse(b"\"\xff\""), Err(ParseFault::Json(_))));
    }

    fn values() -> impl Strategy<Value = Value> {
        let number = prop_oneof![
            Just("0"),
            Just("-0"),
            Just("1.50"),
            Just("1e+400"),
            Just("-7"),
            Just("123456789012345678901234567890")
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            number.prop_map(|digits| Value::Number(digits.parse().unwrap())),
            any::<String>().prop_map(Value::String),
        ];
        leaf.prop_recursive(6, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_are_read_as_serde_json_reads_them(value in values()) {
            let text = value.to_string();
            let read = parse(text.as_bytes()).unwrap();
            prop_assert_eq!(read.to_string(), text);
            prop_assert_eq!(read, value);
        }
    }
}
