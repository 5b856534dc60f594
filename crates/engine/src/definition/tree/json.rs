//! JSON with places. serde_json gives no places for values, keeps the last of two equal keys, and is therefore only
//! used for the text of strings.

use std::cell::Cell;

use super::{Broken, Entry, MOST_DEPTH, MOST_VALUES, Mark, Node, Style, Text, What, small, too_many, weight};
use crate::definition::FaultCode;

/// Builds the tree of a JSON text.
pub(super) fn parse(text: &str) -> Result<Node, Broken> {
    let mut reader = Reader { text, at: 0, line: 1, line_start: 0, depth: 0, values: 0, last: Cell::new((0, 1)) };
    reader.blanks();
    let node = reader.value()?;
    reader.blanks();
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.broken("the text goes on after the end of the JSON value")),
    }
}

struct Reader<'a> {
    text: &'a str,
    /// The byte that comes next; always on a character boundary.
    at: usize,
    line: usize,
    line_start: usize,
    depth: usize,
    /// Values and keys so far.
    values: usize,
    /// An offset on the current line and its column: the last ones asked for.
    last: Cell<(usize, usize)>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn mark(&self) -> Mark {
        let (from, column) = match self.last.get() {
            (from, column) if (self.line_start..=self.at).contains(&from) => (from, column),
            _ => (self.line_start, 1),
        };
        let column = column + self.text.get(from..self.at).unwrap_or_default().chars().count();
        self.last.set((self.at, column));
        Mark { line: small(self.line), column: small(column) }
    }

    fn broken(&self, message: &str) -> Broken {
        Broken { at: self.mark(), code: FaultCode::Syntax, message: message.into() }
    }

    fn blanks(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\r' | b'\n')) = self.peek() {
            self.at += 1;
            if byte == b'\n' {
                (self.line, self.line_start) = (self.line + 1, self.at);
            }
        }
    }

    fn value(&mut self) -> Result<Node, Broken> {
        let mark = self.mark();
        self.count(1, mark)?;
        let what = match self.peek() {
            Some(b'{') => self.nested(Reader::map)?,
            Some(b'[') => self.nested(Reader::list)?,
            Some(b'"') => {
                let text = self.string()?;
                self.count(weight(&text.value) - 1, mark)?;
                What::Text(text)
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(_) => self.word()?,
            None => return Err(self.broken("the text ends where a JSON value should be")),
        };
        Ok(Node { mark, what })
    }

    fn count(&mut self, values: usize, at: Mark) -> Result<(), Broken> {
        self.values += values;
        if self.values > MOST_VALUES { Err(too_many(at)) } else { Ok(()) }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<What, Broken>) -> Result<What, Broken> {
        if self.depth == MOST_DEPTH {
            let message = format!("the values nest deeper than {MOST_DEPTH} levels");
            return Err(Broken { at: self.mark(), code: FaultCode::TooDeep, message });
        }
        self.depth += 1;
        self.at += 1;
        self.blanks();
        let what = read(self);
        self.depth -= 1;
        what
    }

    fn list(&mut self) -> Result<What, Broken> {
        let mut items = Vec::new();
        if self.ends(b']') {
            return Ok(What::List(items));
        }
        loop {
            items.push(self.value()?);
            if !self.another(b']', "`,` or `]` should follow a list's item")? {
                return Ok(What::List(items));
            }
        }
    }

    fn map(&mut self) -> Result<What, Broken> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut keys = std::collections::HashSet::new();
        if self.ends(b'}') {
            return Ok(What::Map(entries));
        }
        loop {
            let mark = self.mark();
            if self.peek() != Some(b'"') {
                return Err(self.broken("a key in double quotes should be here"));
            }
            self.count(1, mark)?;
            let key = self.string()?.value;
            if !keys.insert(key.clone()) {
                let message = format!("the key `{key}` is given twice");
                return Err(Broken { at: mark, code: FaultCode::DuplicateKey, message });
            }
            self.blanks();
            if !self.ends(b':') {
                return Err(self.broken("`:` should follow a key"));
            }
            self.blanks();
            let value = self.value()?;
            entries.push(Entry { key, mark, value });
            if !self.another(b'}', "`,` or `}` should follow a field")? {
                return Ok(What::Map(entries));
            }
        }
    }

    /// Takes `byte` if it comes next.
    fn ends(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    /// Whether another item follows; takes the comma or the end.
    fn another(&mut self, end: u8, message: &str) -> Result<bool, Broken> {
        self.blanks();
        if self.ends(end) {
            return Ok(false);
        }
        if !self.ends(b',') {
            return Err(self.broken(message));
        }
        self.blanks();
        Ok(true)
    }

    fn string(&mut self) -> Result<Text, Broken> {
        let start = self.at;
        let mut end = self.at + 1;
        loop {
            match self.text.as_bytes().get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(0..=0x1f) | None => return Err(self.broken("the string that begins here has no end on its line")),
                Some(_) => end += 1,
            }
        }
        let raw = self.text.get(start..=end).unwrap_or_default();
        let value = serde_json::from_str(raw).map_err(|_| self.broken("the string has an escape that JSON lacks"))?;
        self.at = end + 1;
        Ok(Text { value, style: Style::Double, raw: raw.to_owned() })
    }

    fn number(&mut self) -> Result<What, Broken> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let sign = |b: u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let end = rest.bytes().position(|b| !sign(b)).unwrap_or(rest.len());
        let digits = rest.get(..end).unwrap_or_default();
        if !is_number(digits) {
            return Err(self.broken("this is not a JSON number"));
        }
        self.at += end;
        Ok(What::Number(digits.to_owned()))
    }

    fn word(&mut self) -> Result<What, Broken> {
        for (word, what) in [("null", What::Null), ("true", What::Bool(true)), ("false", What::Bool(false))] {
            if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
                self.at += word.len();
                return Ok(what);
            }
        }
        Err(self.broken("a JSON value should be here"))
    }
}

/// Whether a text is a JSON number: `-?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?`.
pub(super) fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, part) = match mantissa.split_once('.') {
        Some((whole, part)) => (whole, Some(part)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && part.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}
