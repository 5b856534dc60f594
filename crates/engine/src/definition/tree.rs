//! The text of a definition as a tree of values, each with its place. YAML and JSON give the same tree, so that
//! everything behind it exists once.
//!
//! Promises: building a tree is bounded in bytes, depth and copies before anything else looks at it; numbers keep their
//! digits; no mapping has a key twice. Leaves to others: what the values mean.

mod json;
mod yaml;

use serde_json::{Map, Number, Value};

/// The most bytes of a definition, as text and with its aliases expanded.
pub const MOST_BYTES: usize = 256 * 1024;
/// How deep the values of a definition may nest.
pub const MOST_DEPTH: usize = 100;
/// How many values and keys a definition may have, copies included; an expression counts as [`EXPRESSION`] of them, a
/// pattern as [`PATTERN`]. This bounds the time that it takes to read one.
pub const MOST_VALUES: usize = 32_768;
/// How many values an expression counts as.
pub const EXPRESSION: usize = 5;
/// How many values a pattern (`matches`) counts as: it is compiled when a definition is read.
pub const PATTERN: usize = 200;
/// The most aliases of a YAML document.
pub const MOST_ALIASES: usize = 100;

/// A place in the text. Lines and columns (in characters) count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Mark {
    pub(super) const START: Mark = Mark { line: 1, column: 1 };
}

/// Why a text is no tree.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) at: Mark,
    pub(super) code: super::FaultCode,
    pub(super) message: String,
}

/// The two languages of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2, core schema.
    Yaml,
    /// JSON.
    Json,
    /// JSON if the text begins with `{`, YAML otherwise.
    Guess,
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) mark: Mark,
    pub(super) what: What,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum What {
    Null,
    Bool(bool),
    /// The digits, as JSON has them.
    Number(String),
    Text(Text),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) mark: Mark,
    pub(super) value: Node,
}

/// A string, and how it is written.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) value: String,
    pub(super) style: Style,
    /// The written form: from the first character, quote or block sign to the end.
    pub(super) raw: String,
}

/// How a string is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Without quotes.
    Plain,
    /// In `'`, where `''` is one quote.
    Single,
    /// In `"`, with escapes.
    Double,
    /// A YAML block, `|` or `>`.
    Block,
}

/// Builds the tree of a text.
pub(super) fn parse(text: &[u8], format: Format) -> Result<Node, Broken> {
    let whole = |code, message: String| Broken { at: Mark::START, code, message };
    if text.len() > MOST_BYTES {
        let message = format!("the definition has {} bytes; at most {MOST_BYTES} are taken", text.len());
        return Err(whole(super::FaultCode::TooLarge, message));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let before = text.get(..error.valid_up_to()).unwrap_or_default();
        Broken { at: end_of(before), code: super::FaultCode::Syntax, message: "the text is not UTF-8".into() }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match format {
        Format::Json => json::parse(text),
        Format::Guess if text.trim_start().starts_with('{') => json::parse(text),
        Format::Yaml | Format::Guess => yaml::parse(text),
    }
}

/// How many values a string counts as.
fn weight(text: &str) -> usize {
    1 + (EXPRESSION - 1) * text.matches("${{").count() + PATTERN * text.matches("matches").count()
}

/// Why a text with too many values is refused.
fn too_many(at: Mark) -> Broken {
    let message = format!("the definition has more than {MOST_VALUES} values and keys");
    Broken { at, code: super::FaultCode::TooLarge, message }
}

fn end_of(bytes: &[u8]) -> Mark {
    let text = String::from_utf8_lossy(bytes);
    let line = text.matches('\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Mark { line: small(line), column: small(column) }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Node {
    /// What the value is, for messages.
    pub(super) fn noun(&self) -> &'static str {
        match self.what {
            What::Null => "null",
            What::Bool(_) => "true or false",
            What::Number(_) => "a number",
            What::Text(_) => "a string",
            What::List(_) => "a list",
            What::Map(_) => "an object",
        }
    }

    /// The value as JSON; numbers keep their digits.
    pub(super) fn to_json(&self) -> Value {
        match &self.what {
            What::Null => Value::Null,
            What::Bool(given) => Value::Bool(*given),
            // A number's digits were checked when it was read.
            What::Number(digits) => digits.parse::<Number>().map_or(Value::Null, Value::Number),
            What::Text(text) => Value::String(text.value.clone()),
            What::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            What::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// The deepest value on the way to `pointer`, and the key that leads to it, if one does.
    pub(super) fn find(&self, pointer: &str) -> (&Node, Option<&Entry>) {
        let (mut node, mut entry) = (self, None);
        for part in pointer.split('/').skip(1) {
            let key = part.replace("~1", "/").replace("~0", "~");
            match &node.what {
                What::Map(entries) => match entries.iter().find(|entry| entry.key == key) {
                    Some(found) => (node, entry) = (&found.value, Some(found)),
                    None => break,
                },
                What::List(items) => match key.parse::<usize>().ok().and_then(|n| items.get(n)) {
                    Some(found) => (node, entry) = (found, None),
                    None => break,
                },
                _ => break,
            }
        }
        (node, entry)
    }
}

impl Text {
    /// The place of the character at byte `offset` of the value, in a text that begins at `start`.
    pub(super) fn place(&self, start: Mark, offset: usize) -> Mark {
        match self.style {
            Style::Block => self.place_in_block(start, offset),
            style => self.place_in_flow(start, style, offset),
        }
    }

    /// Walks along the written form and the value together. A line break in the written form ends the walk: folding
    /// changes blanks, and the start of the text is then the best known place.
    fn place_in_flow(&self, start: Mark, style: Style, offset: usize) -> Mark {
        let mut raw = self.raw.chars().peekable();
        let mut column = start.column;
        let mut next = |raw: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            column += 1;
            raw.next()
        };
        if style != Style::Plain {
            next(&mut raw);
        }
        for (at, _) in self.value.char_indices() {
            if at >= offset {
                break;
            }
            match next(&mut raw) {
                None | Some('\n') => return start,
                Some('\'') if style == Style::Single => {
                    next(&mut raw);
                }
                Some('\\') if style == Style::Double => {
                    let digits = match next(&mut raw) {
                        Some('x') => 2,
                        Some('u') => 4,
                        Some('U') => 8,
                        Some('\n') => return start,
                        _ => 0,
                    };
                    let high = digits == 4 && raw.peek().is_some_and(|d| matches!(d, 'd' | 'D'));
                    for _ in 0..digits {
                        next(&mut raw);
                    }
                    // Two escapes make one character beyond the basic plane.
                    if high && raw.peek() == Some(&'\\') {
                        for _ in 0..6 {
                            next(&mut raw);
                        }
                    }
                }
                Some(_) => {}
            }
        }
        Mark { line: start.line, column }
    }

    /// Finds the line of a block that holds the offset: the lines of the value are those of the block without their
    /// indentation. A folded line is found by the text before the offset.
    fn place_in_block(&self, start: Mark, offset: usize) -> Mark {
        let before = self.value.get(..offset).unwrap_or_default();
        let own = before.rsplit('\n').next().unwrap_or_default();
        let line = self.value.get(offset - own.len()..).unwrap_or_default();
        let line = line.split('\n').next().unwrap_or_default();
        let skip = before.matches('\n').count();
        let candidates = self.raw.lines().enumerate().skip(1 + skip);
        for (n, raw) in candidates {
            if let Some(at) = raw.find(line).filter(|_| !line.trim().is_empty()) {
                let column = raw.get(..at).unwrap_or_default().chars().count() + own.chars().count() + 1;
                return Mark { line: start.line + small(n), column: small(column) };
            }
        }
        start
    }
}
