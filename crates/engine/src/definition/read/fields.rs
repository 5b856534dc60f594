//! Reads the fields of one object: each by name, with its type and its bounds. What nobody asked for is unknown.

use std::{fmt::Display, ops::RangeInclusive};

use muster_expr::{Expr, Template};
use serde_json::Value;

use crate::{
    definition::{
        FaultCode,
        faults::{Faults, join, suggestion},
        tree::{Entry, Node, What},
    },
    value,
};

/// A value and the pointer to it.
#[derive(Clone)]
pub(super) struct Field<'n> {
    pub(super) node: &'n Node,
    pub(super) at: String,
}

/// An object whose fields are taken one by one.
pub(super) struct Object<'n> {
    entries: &'n [Entry],
    at: String,
    asked: Vec<&'static str>,
}

impl<'n> Field<'n> {
    pub(super) fn wrong<T>(&self, faults: &mut Faults<'_>, wanted: impl Display) -> Option<T> {
        let message = format!("`{}` must be {wanted}, not {}", self.name(), self.node.noun());
        faults.add(&self.at, FaultCode::WrongType, message);
        None
    }

    pub(super) fn invalid<T>(&self, faults: &mut Faults<'_>, words: impl Display) -> Option<T> {
        faults.add(&self.at, FaultCode::InvalidValue, format!("`{}` {words}", self.name()));
        None
    }

    /// The name for messages: the last part of the pointer; an item of a list has the list's name too.
    pub(super) fn name(&self) -> String {
        let mut parts = self.at.rsplit('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
        let last = parts.next().unwrap_or_default();
        match parts.next() {
            Some(list) if last.bytes().all(|b| b.is_ascii_digit()) => format!("{list}[{last}]"),
            _ if self.at.is_empty() => "the definition".into(),
            _ => last,
        }
    }

    pub(super) fn object(self, faults: &mut Faults<'_>) -> Option<Object<'n>> {
        match &self.node.what {
            What::Map(entries) => Some(Object { entries, at: self.at, asked: Vec::new() }),
            _ => self.wrong(faults, "an object"),
        }
    }

    /// The entries of an object whose keys are the user's.
    pub(super) fn pairs(&self, faults: &mut Faults<'_>) -> Option<Vec<(&'n str, Field<'n>)>> {
        match &self.node.what {
            What::Map(entries) => {
                let field = |entry: &'n Entry| Field { node: &entry.value, at: join(&self.at, &entry.key) };
                Some(entries.iter().map(|entry| (entry.key.as_str(), field(entry))).collect())
            }
            _ => self.wrong(faults, "an object"),
        }
    }

    pub(super) fn list(&self, faults: &mut Faults<'_>) -> Option<Vec<Field<'n>>> {
        match &self.node.what {
            What::List(items) => {
                let field = |(n, node): (usize, &'n Node)| Field { node, at: join(&self.at, &n.to_string()) };
                Some(items.iter().enumerate().map(field).collect())
            }
            _ => self.wrong(faults, "a list"),
        }
    }

    pub(super) fn text(&self, faults: &mut Faults<'_>) -> Option<&'n str> {
        match &self.node.what {
            What::Text(text) => Some(&text.value),
            _ => self.wrong(faults, "a string"),
        }
    }

    /// A string that is no expression, because what a definition can start must be known when it is stored.
    pub(super) fn literal(&self, faults: &mut Faults<'_>) -> Option<&'n str> {
        let text = self.text(faults)?;
        if text.contains("${{") {
            let message = format!("`{}` must be a fixed text, without `${{{{ … }}}}`", self.name());
            faults.add(&self.at, FaultCode::NotLiteral, message);
            return None;
        }
        Some(text)
    }

    pub(super) fn parsed<T, E: Display>(
        &self,
        faults: &mut Faults<'_>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.literal(faults)?;
        parse(text).map_err(|why| self.invalid::<T>(faults, format_args!("is not allowed: {why}"))).ok()
    }

    /// One of several words.
    pub(super) fn word<T>(
        &self,
        faults: &mut Faults<'_>,
        words: &[&str],
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.literal(faults)?;
        let found = parse(text);
        if found.is_none() {
            let hint = suggestion(text, words.iter().copied());
            return self.invalid(faults, format_args!("must be one of {}, not `{}`{hint}", listed(words), short(text)));
        }
        found
    }

    pub(super) fn integer(&self, faults: &mut Faults<'_>, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        let What::Number(digits) = &self.node.what else { return self.wrong(faults, wanted) };
        let whole = |n: f64| n.fract() == 0.0 && (0.0..9e15).contains(&n);
        let given = digits.parse().ok().or_else(|| digits.parse().ok().filter(|n| whole(*n)).map(|n: f64| n as u64));
        match given.filter(|n| range.contains(n)) {
            Some(given) => Some(given),
            None => self.invalid(faults, format_args!("must be {wanted}, not {}", short(digits))),
        }
    }

    /// As [`integer`](Field::integer), for ranges that fit 32 bits.
    pub(super) fn small(&self, faults: &mut Faults<'_>, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.integer(faults, wide).and_then(|n| u32::try_from(n).ok())
    }

    pub(super) fn number(&self, faults: &mut Faults<'_>, range: RangeInclusive<f64>) -> Option<f64> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        let What::Number(digits) = &self.node.what else { return self.wrong(faults, wanted) };
        match digits.parse().ok().filter(|n| range.contains(n)) {
            Some(given) => Some(given),
            None => self.invalid(faults, format_args!("must be {wanted}, not {}", short(digits))),
        }
    }

    pub(super) fn boolean(&self, faults: &mut Faults<'_>) -> Option<bool> {
        match self.node.what {
            What::Bool(given) => Some(given),
            _ => self.wrong(faults, "true or false"),
        }
    }

    /// A bare expression. `true` and `false` are expressions too.
    pub(super) fn expr(&self, faults: &mut Faults<'_>) -> Option<Expr> {
        let text = match &self.node.what {
            What::Text(text) => text.value.trim_end(),
            What::Bool(true) => "true",
            What::Bool(false) => "false",
            _ => return self.wrong(faults, "an expression, written as a string"),
        };
        if text.trim_start().starts_with("${{") {
            let words = "is an expression by itself: leave out `${{` and `}}`";
            return self.invalid(faults, words);
        }
        Expr::parse(text).map_err(|fault| faults.add_expr(&self.at, &fault)).ok()
    }

    /// Any value, with expressions in its strings.
    pub(super) fn template(&self, faults: &mut Faults<'_>) -> Option<Template> {
        let json = self.node.to_json();
        if let Err(fault) = value::check(&json) {
            return self.invalid(faults, fault);
        }
        match Template::parse(&json) {
            Ok(template) => Some(template),
            Err(wrong) => {
                wrong.iter().for_each(|fault| faults.add_template(&self.at, fault));
                None
            }
        }
    }

    /// A string with expressions in it.
    pub(super) fn text_template(&self, faults: &mut Faults<'_>) -> Option<Template> {
        self.text(faults)?;
        self.template(faults)
    }

    /// A JSON Schema: its form, its words and its references, which must lead into itself.
    pub(super) fn schema(&self, faults: &mut Faults<'_>) -> Option<Value> {
        let What::Map(_) = self.node.what else { return self.wrong(faults, "a JSON Schema: an object") };
        let schema = self.node.to_json();
        let built = jsonschema::options().offline().build(&schema);
        match built {
            Ok(_) => Some(schema),
            Err(error) => {
                let at = format!("{}{}", self.at, error.instance_path());
                let words = error.to_string();
                let mut end = words.len().min(300);
                while !words.is_char_boundary(end) {
                    end -= 1;
                }
                let words = words.get(..end).unwrap_or_default();
                faults.add(&at, FaultCode::InvalidSchema, format!("`{}` is not a JSON Schema: {words}", self.name()));
                None
            }
        }
    }
}

impl<'n> Object<'n> {
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// Takes a field, also if it is `null`.
    pub(super) fn verbatim(&mut self, name: &'static str) -> Option<Field<'n>> {
        self.asked.push(name);
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(Field { node: &entry.value, at: join(&self.at, name) })
    }

    /// Takes a field; `null` counts as absent.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Field<'n>> {
        self.verbatim(name).filter(|field| !matches!(field.node.what, What::Null))
    }

    /// Takes a field that must be there.
    pub(super) fn require(&mut self, name: &'static str, faults: &mut Faults<'_>) -> Option<Field<'n>> {
        let field = self.take(name);
        if field.is_none() {
            faults.add(&self.at, FaultCode::MissingField, format!("`{name}` is missing"));
        }
        field
    }

    /// The fields that nobody has asked for so far.
    pub(super) fn unasked(&self) -> impl Iterator<Item = &'n str> + '_ {
        self.entries.iter().map(|entry| entry.key.as_str()).filter(|key| !self.asked.contains(key))
    }

    /// Notes a fault for every field that nobody asked for.
    pub(super) fn finish(self, faults: &mut Faults<'_>) {
        for key in self.unasked() {
            if faults.full() {
                return;
            }
            let hint = suggestion(key, self.asked.iter().copied());
            let message = format!("`{}` is not a field here{hint}", short(key));
            faults.add_key(&join(&self.at, key), FaultCode::UnknownField, message);
        }
    }
}

/// Words as a list for people.
pub(super) fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// A text of the user's for a message: not too much of it, on one line.
pub(super) fn short(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
    if line.len() < text.len() { format!("{line}…") } else { line }
}
