//! YAML 1.2 (core schema) with places, from the events of `saphyr-parser`.
//!
//! Only `true` and `false` are booleans (`on`, `off`, `yes` and `no` are strings), keys are always strings, there is
//! one document, and tags other than those of the core schema are refused, as are merge keys. An alias copies what it
//! names: at most [`MOST_ALIASES`] of them, and with all copies a definition still has at most [`MOST_BYTES`].

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::{
    Broken, Entry, MOST_ALIASES, MOST_BYTES, MOST_DEPTH, Mark, Node, Style, Text, What, json::is_number, small,
};
use crate::definition::FaultCode;

/// Builds the tree of a YAML text.
pub(super) fn parse(text: &str) -> Result<Node, Broken> {
    let mut builder =
        Builder { lines: Lines::of(text), open: Vec::new(), anchors: HashMap::new(), aliases: 0, size: 0, root: None };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            // A few of the parser's sentences span lines; one line is enough.
            let words = error.info().lines().next().unwrap_or_default();
            Broken { at: mark(*error.marker()), code: FaultCode::Syntax, message: format!("this is not YAML: {words}") }
        })?;
        builder.take(event, span)?;
    }
    builder.root.ok_or_else(|| Broken {
        at: Mark::START,
        code: FaultCode::Syntax,
        message: "the definition is empty".into(),
    })
}

fn mark(marker: Marker) -> Mark {
    Mark { line: small(marker.line().max(1)), column: small(marker.col() + 1) }
}

/// The text by lines, to cut out the written form of a string.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(n, _)| n + 1);
        Lines { text, starts: std::iter::once(0).chain(breaks).collect() }
    }

    fn offset(&self, marker: Marker) -> usize {
        let Some(start) = self.starts.get(marker.line().saturating_sub(1)) else { return self.text.len() };
        let line = self.text.get(*start..).unwrap_or_default();
        start + line.char_indices().nth(marker.col()).map_or(line.len(), |(n, _)| n)
    }

    fn cut(&self, span: Span) -> &'a str {
        self.text.get(self.offset(span.start)..self.offset(span.end)).unwrap_or_default()
    }
}

/// A collection whose end has not come yet.
struct Open {
    mark: Mark,
    anchor: usize,
    /// The size of the tree before it.
    before: usize,
    what: Collection,
}

enum Collection {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, keys: HashSet<String>, key: Option<(String, Mark)> },
}

struct Builder<'a> {
    lines: Lines<'a>,
    open: Vec<Open>,
    /// What aliases may name, with its size.
    anchors: HashMap<usize, (Node, usize)>,
    aliases: usize,
    /// The bytes of the tree so far, copies included; each value counts at least one.
    size: usize,
    root: Option<Node>,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Broken> {
        let at = mark(span.start);
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(broken(at, FaultCode::Syntax, "a second YAML document begins here; a definition is one"))
            }
            Event::Scalar(value, style, anchor, tag) => {
                let what = self.scalar(&value, style, tag.as_deref(), span)?;
                self.grow(1 + value.len(), at)?;
                self.add(Node { mark: at, what }, anchor, 1 + value.len())
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", at)?;
                self.enter(anchor, at, Collection::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", at)?;
                self.enter(anchor, at, Collection::Map { entries: Vec::new(), keys: HashSet::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.leave(),
            Event::Alias(anchor) => self.alias(anchor, at),
            _ => Ok(()),
        }
    }

    fn grow(&mut self, by: usize, at: Mark) -> Result<(), Broken> {
        self.size += by;
        if self.size > 2 * MOST_BYTES {
            let message = format!("with its aliases expanded, the definition is larger than {MOST_BYTES} bytes");
            return Err(broken(at, FaultCode::TooLarge, &message));
        }
        Ok(())
    }

    fn enter(&mut self, anchor: usize, mark: Mark, what: Collection) -> Result<(), Broken> {
        if self.open.len() == MOST_DEPTH {
            return Err(broken(mark, FaultCode::TooDeep, &format!("the values nest deeper than {MOST_DEPTH} levels")));
        }
        if matches!(self.open.last(), Some(Open { what: Collection::Map { key: None, .. }, .. })) {
            return Err(broken(mark, FaultCode::Syntax, "a key must be a string, not a list or an object"));
        }
        self.open.push(Open { mark, anchor, before: self.size, what });
        self.grow(1, mark)
    }

    fn leave(&mut self) -> Result<(), Broken> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let what = match open.what {
            Collection::List(items) => What::List(items),
            Collection::Map { entries, .. } => What::Map(entries),
        };
        let size = self.size - open.before;
        self.add(Node { mark: open.mark, what }, open.anchor, size)
    }

    /// Puts a finished value where it belongs.
    fn add(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), Broken> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.open.last_mut().map(|open| &mut open.what) {
            None => self.root = Some(node),
            Some(Collection::List(items)) => items.push(node),
            Some(Collection::Map { entries, keys, key }) => match key.take() {
                Some((key, mark)) => entries.push(Entry { key, mark, value: node }),
                None => {
                    let text = key_text(&node)?;
                    if text == "<<" {
                        return Err(broken(
                            node.mark,
                            FaultCode::Syntax,
                            "merge keys (`<<`) are not taken: repeat the fields, or use an alias as a whole value",
                        ));
                    }
                    if !keys.insert(text.clone()) {
                        let message = format!("the key `{text}` is given twice");
                        return Err(broken(node.mark, FaultCode::DuplicateKey, &message));
                    }
                    *key = Some((text, node.mark));
                }
            },
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: Mark) -> Result<(), Broken> {
        self.aliases += 1;
        if self.aliases > MOST_ALIASES {
            return Err(broken(
                at,
                FaultCode::TooLarge,
                &format!("the definition has more than {MOST_ALIASES} aliases"),
            ));
        }
        let size = self.anchors.get(&anchor).map(|(_, size)| *size);
        let Some(size) = size else {
            return Err(broken(at, FaultCode::Syntax, "this alias stands inside the value that it names"));
        };
        // Refused before the copy is made.
        self.grow(size, at)?;
        let copy = self.anchors.get(&anchor).map(|(node, _)| node.clone());
        match copy {
            Some(node) if self.open.len() + depth(&node) > MOST_DEPTH => {
                Err(broken(at, FaultCode::TooDeep, &format!("the values nest deeper than {MOST_DEPTH} levels")))
            }
            Some(node) => self.add(node, 0, size),
            None => Ok(()),
        }
    }

    fn check_tag(&self, tag: Option<&Tag>, usual: &str, at: Mark) -> Result<(), Broken> {
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == usual) => {
                Err(broken(at, FaultCode::Syntax, &format!("the tag `{tag}` is not taken")))
            }
            _ => Ok(()),
        }
    }

    fn scalar(&self, value: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<What, Broken> {
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted => Style::Single,
            ScalarStyle::DoubleQuoted => Style::Double,
            ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
        };
        let at = mark(span.start);
        let text = || What::Text(Text { value: value.to_owned(), style, raw: self.lines.cut(span).to_owned() });
        match tag {
            None if style == Style::Plain => Ok(plain(value, at)?.unwrap_or_else(text)),
            None => Ok(text()),
            Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(text()),
            Some(tag) if tag.is_yaml_core_schema() && style == Style::Plain => {
                let what = plain(value, at)?;
                let fits = match (tag.suffix.as_str(), &what) {
                    ("null", Some(What::Null)) | ("bool", Some(What::Bool(_))) | ("float", Some(What::Number(_))) => {
                        true
                    }
                    ("int", Some(What::Number(digits))) => digits.bytes().all(|b| b.is_ascii_digit() || b == b'-'),
                    _ => false,
                };
                match what {
                    Some(what) if fits => Ok(what),
                    _ => Err(broken(at, FaultCode::Syntax, &format!("`{value}` is not what the tag `{tag}` says"))),
                }
            }
            Some(tag) => Err(broken(at, FaultCode::Syntax, &format!("the tag `{tag}` is not taken"))),
        }
    }
}

fn broken(at: Mark, code: FaultCode, message: &str) -> Broken {
    Broken { at, code, message: message.into() }
}

fn depth(node: &Node) -> usize {
    match &node.what {
        What::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        What::Map(entries) => 1 + entries.iter().map(|entry| depth(&entry.value)).max().unwrap_or(0),
        _ => 0,
    }
}

/// The text of a key: what is written, so that `1:` and `on:` are keys too.
fn key_text(node: &Node) -> Result<String, Broken> {
    match &node.what {
        What::Text(text) => Ok(text.value.clone()),
        What::Number(digits) => Ok(digits.clone()),
        What::Bool(given) => Ok(given.to_string()),
        What::Null => Ok("null".into()),
        What::List(_) | What::Map(_) => {
            Err(broken(node.mark, FaultCode::Syntax, "a key must be a string, not a list or an object"))
        }
    }
}

/// The value of a scalar without quotes, by the core schema; `None` is a string. A number that JSON lacks, or that
/// readers would take for text, is refused rather than guessed.
fn plain(text: &str, at: Mark) -> Result<Option<What>, Broken> {
    Ok(Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => What::Null,
        "true" | "True" | "TRUE" => What::Bool(true),
        "false" | "False" | "FALSE" => What::Bool(false),
        _ if is_number(text) => What::Number(text.to_owned()),
        _ => return number(text, at),
    }))
}

fn number(text: &str, at: Mark) -> Result<Option<What>, Broken> {
    let radix = |digits: &str, radix: u32| {
        let number =
            u64::from_str_radix(digits, radix).ok().filter(|_| digits.bytes().all(|b| b.is_ascii_alphanumeric()));
        number.map(|n| What::Number(n.to_string()))
    };
    if let Some(what) = text.strip_prefix("0x").and_then(|digits| radix(digits, 16)) {
        return Ok(Some(what));
    }
    if let Some(what) = text.strip_prefix("0o").and_then(|digits| radix(digits, 8)) {
        return Ok(Some(what));
    }
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    if [".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"].contains(&bare) {
        let message = format!("JSON has no number `{text}`; write it in quotes if it is text");
        return Err(broken(at, FaultCode::BadNumber, &message));
    }
    let mantissa = bare.split_once(['e', 'E']).map_or(bare, |(mantissa, _)| mantissa);
    let exponent = bare.get(mantissa.len()..).unwrap_or_default();
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !all(whole) || !all(part) || (whole.is_empty() && part.is_empty()) || !is_number(&format!("0{exponent}")) {
        return Ok(None);
    }
    if whole.len() > 1 && whole.starts_with('0') {
        let message = format!(
            "`{text}` begins with a zero: write it in quotes if it is text, without the zero if it is a number"
        );
        return Err(broken(at, FaultCode::BadNumber, &message));
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if mantissa.contains('.') { if part.is_empty() { ".0" } else { "." } } else { "" };
    Ok(Some(What::Number(format!("{sign}{whole}{point}{part}{exponent}"))))
}
