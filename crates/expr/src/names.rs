//! What an expression may name, and what is known of it before it runs.

mod schema;

use std::{collections::BTreeMap, fmt};

/// The type of a value, as far as it is known before the expression runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Type {
    /// Anything.
    #[default]
    Any,
    /// Only `null`.
    Null,
    /// A boolean.
    Bool,
    /// A whole number. A JSON integer is an int or a uint, by its value.
    Int,
    /// A whole number that is not negative.
    Uint,
    /// Any number.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A span of time.
    Duration,
    /// A list with elements of one type.
    List(Box<Type>),
    /// A map with text as keys.
    Object {
        /// The fields that are known.
        fields: BTreeMap<String, Type>,
        /// Whether there may be others.
        open: bool,
    },
}

impl Type {
    /// A list.
    pub fn list(of: Type) -> Type {
        Type::List(Box::new(of))
    }

    /// An object with these fields and no others.
    pub fn closed<'a>(fields: impl IntoIterator<Item = (&'a str, Type)>) -> Type {
        let fields = fields.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
        Type::Object { fields, open: false }
    }

    /// An object that may have any field, and these among them.
    pub fn open<'a>(fields: impl IntoIterator<Item = (&'a str, Type)>) -> Type {
        let fields = fields.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
        Type::Object { fields, open: true }
    }

    /// What a JSON Schema says of a value. What the schema leaves open, or says with a word that is not looked at, is
    /// [`Type::Any`], so that nothing is ruled out that the schema allows.
    pub fn from_schema(schema: &serde_json::Value) -> Type {
        schema::read(schema)
    }

    /// Whether a value of this type may also be of the other one. All numbers are one family here: which of the types
    /// of numbers a JSON number gets depends on its value.
    pub fn may_be(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Any, _) | (_, Type::Any) => true,
            (Type::List(a), Type::List(b)) => a.may_be(b),
            (Type::Object { .. }, Type::Object { .. }) => true,
            (a, b) => a == b || a.is_number() && b.is_number(),
        }
    }

    /// The narrowest type that both are.
    pub(crate) fn joined(self, other: Type) -> Type {
        match (self, other) {
            (a, b) if a == b => a,
            (a, b) if a.is_number() && b.is_number() => Type::Double,
            (Type::List(a), Type::List(b)) => Type::list(a.joined(*b)),
            (Type::Object { .. }, Type::Object { .. }) => Type::open([]),
            _ => Type::Any,
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Any => "any value",
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            Type::List(_) => "list",
            Type::Object { .. } => "map",
        })
    }
}

/// The names that an expression may use, each with its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<String, Type>);

impl Names {
    /// No names.
    pub fn new() -> Names {
        Names::default()
    }

    /// These names and one more.
    #[must_use]
    pub fn with(mut self, name: &str, ty: Type) -> Names {
        self.with_ref(name, ty);
        self
    }

    /// Adds a name, or replaces its type.
    pub fn with_ref(&mut self, name: &str, ty: Type) -> &mut Names {
        self.0.insert(name.to_owned(), ty);
        self
    }

    /// The type of a name.
    pub fn get(&self, name: &str) -> Option<&Type> {
        self.0.get(name)
    }

    /// All names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Type)> {
        self.0.iter().map(|(name, ty)| (name.as_str(), ty))
    }
}
