//! Finds the expressions of a value.

use serde_json::Value;

use super::{Found, Piece, Shape, within};
use crate::{Expr, Fault, TemplateFault, parse};

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// The shape of a value and its expressions, or every fault.
pub(super) fn read(value: &Value) -> Result<(Shape, Vec<Found>), Vec<TemplateFault>> {
    let mut reader = Reader { found: Vec::new(), faults: Vec::new(), pointer: String::new() };
    let shape = reader.value(value);
    if reader.faults.is_empty() { Ok((shape, reader.found)) } else { Err(reader.faults) }
}

struct Reader {
    found: Vec<Found>,
    faults: Vec<TemplateFault>,
    pointer: String,
}

impl Reader {
    fn value(&mut self, value: &Value) -> Shape {
        let before = self.found.len();
        let shape = match value {
            Value::String(text) => self.text(text),
            Value::Array(list) => {
                Shape::List(list.iter().enumerate().map(|(n, value)| self.below(&n.to_string(), value)).collect())
            }
            Value::Object(map) => {
                let mut shapes = Vec::with_capacity(map.len());
                for (name, value) in map {
                    if name.contains(OPEN) {
                        self.fault(Fault::at(name, 0, format!("the key {name:?}: a key holds no expression")));
                    }
                    shapes.push((name.clone(), self.below(name, value)));
                }
                Shape::Map(shapes)
            }
            other => Shape::Constant(other.clone()),
        };
        if self.found.len() == before { Shape::Constant(value.clone()) } else { shape }
    }

    fn below(&mut self, name: &str, value: &Value) -> Shape {
        let length = self.pointer.len();
        self.pointer.push('/');
        self.pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
        let shape = self.value(value);
        self.pointer.truncate(length);
        shape
    }

    fn fault(&mut self, fault: Fault) {
        self.faults.push(TemplateFault { pointer: self.pointer.clone(), fault });
    }

    fn text(&mut self, text: &str) -> Shape {
        let (mut pieces, mut at) = (Vec::new(), 0);
        while let Some(open) = text[at..].find(OPEN).map(|n| at + n) {
            if open > at {
                pieces.push(Piece::Text(text[at..open].to_owned()));
            }
            let start = open + OPEN.len();
            let end = match parse::end_of_expression(&text[start..]) {
                Ok(Some(end)) => start + end,
                Ok(None) => {
                    let longest = parse::MAX_SOURCE;
                    let message = format!("`${{{{` is not closed by `}}}}` within {longest} bytes");
                    self.fault(Fault::at(text, open, message));
                    break;
                }
                Err((n, message)) => {
                    self.fault(Fault::at(text, start + n, message));
                    break;
                }
            };
            let inner = &text[start..end];
            let offset = start + inner.len() - inner.trim_start().len();
            match Expr::parse(inner.trim()) {
                Ok(expr) => {
                    pieces.push(Piece::Expr(self.found.len()));
                    self.found.push(Found { pointer: self.pointer.clone(), text: text.to_owned(), offset, expr });
                }
                Err(fault) => self.fault(within(text, offset, fault)),
            }
            at = end + CLOSE.len();
        }
        if at < text.len() {
            pieces.push(Piece::Text(text[at..].to_owned()));
        }
        match pieces.as_slice() {
            [Piece::Expr(place)] => Shape::Whole(*place),
            _ => Shape::Text(pieces),
        }
    }
}
