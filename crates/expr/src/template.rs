//! Values with expressions in their strings.

mod reading;

use serde_json::Value;

use crate::{EvalError, Expr, Fault, Limits, Names, Reads, TemplateFault, Values, eval::Budget};

/// The value of a template may be so many times as large as one result.
const RESULTS: usize = 4;

/// A JSON value whose strings may hold `${{ … }}`. Keys hold no expressions. To write `${{` itself: `${{ '${{' }}`.
#[derive(Clone, Debug)]
pub struct Template {
    value: Value,
    found: Vec<Found>,
    shape: Shape,
}

/// An expression and where it stands.
#[derive(Clone, Debug)]
struct Found {
    pointer: String,
    /// The string that holds it, and its byte offset there.
    text: String,
    offset: usize,
    expr: Expr,
}

/// The value with its expressions cut out.
#[derive(Clone, Debug)]
enum Shape {
    /// Holds no expression.
    Constant(Value),
    /// A string that is nothing but one expression, by its place in `found`.
    Whole(usize),
    Text(Vec<Piece>),
    List(Vec<Shape>),
    Map(Vec<(String, Shape)>),
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Expr(usize),
}

impl Template {
    /// Reads a template, or says every fault of its expressions.
    pub fn parse(value: &Value) -> Result<Template, Vec<TemplateFault>> {
        let (shape, found) = reading::read(value)?;
        Ok(Template { value: value.clone(), found, shape })
    }

    /// The value, as written.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Whether it holds no expression.
    pub fn is_constant(&self) -> bool {
        self.found.is_empty()
    }

    /// Every expression, with the JSON pointer of the string that holds it.
    pub fn expressions(&self) -> impl Iterator<Item = (&str, &Expr)> {
        self.found.iter().map(|found| (found.pointer.as_str(), &found.expr))
    }

    /// What its expressions read.
    pub fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        self.found.iter().for_each(|found| reads.extend(found.expr.reads()));
        reads
    }

    /// Every fault of its expressions.
    pub fn check(&self, names: &Names) -> Result<(), Vec<TemplateFault>> {
        let mut faults = Vec::new();
        for found in &self.found {
            for fault in found.expr.check(names).err().unwrap_or_default() {
                let fault = within(&found.text, found.offset, fault);
                faults.push(TemplateFault { pointer: found.pointer.clone(), fault });
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// The value with every expression replaced by what it is worth. A string that is nothing but one expression takes
    /// the value with its type; others take it as text. All expressions share one budget of nodes. Each result is
    /// bounded by [`Limits::result_bytes`], and all of them together by four times as much.
    pub fn evaluate(&self, values: &Values, limits: &Limits) -> Result<Value, EvalError> {
        let left = limits.result_bytes.saturating_mul(RESULTS);
        let mut filling = Filling { found: &self.found, values, budget: Budget::new(limits), left, limit: left };
        filling.value(&self.shape)
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Template) -> bool {
        self.value == other.value
    }
}

/// A fault of an expression at a byte offset of a text, with the line and column in that text.
fn within(text: &str, offset: usize, fault: Fault) -> Fault {
    let start = Fault::at(text, offset, "");
    let column = if fault.line == 1 { start.column + fault.column - 1 } else { fault.column };
    Fault { line: start.line + fault.line - 1, column, message: fault.message }
}

struct Filling<'a> {
    found: &'a [Found],
    values: &'a Values,
    budget: Budget,
    left: usize,
    limit: usize,
}

impl Filling<'_> {
    fn value(&mut self, shape: &Shape) -> Result<Value, EvalError> {
        Ok(match shape {
            Shape::Constant(value) => value.clone(),
            Shape::Whole(place) => {
                let value = self.found[*place].expr.evaluate_within(self.values, &mut self.budget)?;
                self.take(size(&value))?;
                value
            }
            Shape::Text(pieces) => {
                let mut out = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Text(text) => out.push_str(text),
                        Piece::Expr(place) => {
                            let text = self.found[*place].expr.text_within(self.values, &mut self.budget)?;
                            self.take(text.len())?;
                            out.push_str(&text);
                        }
                    }
                }
                Value::String(out)
            }
            Shape::List(shapes) => {
                Value::Array(shapes.iter().map(|shape| self.value(shape)).collect::<Result<_, _>>()?)
            }
            Shape::Map(shapes) => {
                let filled = shapes.iter().map(|(name, shape)| Ok((name.clone(), self.value(shape)?)));
                Value::Object(filled.collect::<Result<_, EvalError>>()?)
            }
        })
    }

    fn take(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.left = self.left.checked_sub(bytes).ok_or(EvalError::TooLarge(self.limit))?;
        Ok(())
    }
}

/// About the bytes of a value as JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(number) => number.as_str().len(),
        Value::String(text) => text.len() + 2,
        Value::Array(list) => list.iter().map(|value| size(value) + 1).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + 4 + size(value)).sum::<usize>() + 2,
    }
}
