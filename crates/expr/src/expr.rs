//! An expression, from its text to its value.

use serde_json::Value;

use crate::{EvalError, Fault, Limits, Names, Reads, Type, Values};

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expr {
    source: String,
    reads: Reads,
}

impl Expr {
    /// Reads an expression. Fails on a fault of syntax, an unknown function, and on whatever is over a bound.
    pub fn parse(source: &str) -> Result<Expr, Fault> {
        Ok(Expr { source: source.to_owned(), reads: Reads::default() })
    }

    /// The text, as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What it reads.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The type of its value, or every fault: unknown names and fields, wrong counts and types of arguments.
    pub fn check(&self, _names: &Names) -> Result<Type, Vec<Fault>> {
        Ok(Type::Any)
    }

    /// How many nodes an evaluation visits at least, if each list has ten elements.
    pub fn cost(&self) -> u64 {
        1
    }

    /// Its value.
    pub fn evaluate(&self, _values: &Values, _limits: &Limits) -> Result<Value, EvalError> {
        Ok(Value::Null)
    }

    /// Its value, which must be a boolean.
    pub fn evaluate_bool(&self, _values: &Values, _limits: &Limits) -> Result<bool, EvalError> {
        Ok(false)
    }
}

impl PartialEq for Expr {
    fn eq(&self, other: &Expr) -> bool {
        self.source == other.source
    }
}
