//! Values with expressions in their strings.

use serde_json::Value;

use crate::{EvalError, Expr, Limits, Names, TemplateFault, Values};

/// A JSON value whose strings may hold `${{ … }}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    value: Value,
    found: Vec<(String, Expr)>,
}

impl Template {
    /// Reads a template, or says every fault of its expressions.
    pub fn parse(value: &Value) -> Result<Template, Vec<TemplateFault>> {
        Ok(Template { value: value.clone(), found: Vec::new() })
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
        self.found.iter().map(|(pointer, expr)| (pointer.as_str(), expr))
    }

    /// Every fault of its expressions.
    pub fn check(&self, _names: &Names) -> Result<(), Vec<TemplateFault>> {
        Ok(())
    }

    /// The value with every expression replaced by what it is worth. A string that is nothing but one expression takes
    /// the value with its type; others take it as text.
    pub fn evaluate(&self, _values: &Values, _limits: &Limits) -> Result<Value, EvalError> {
        Ok(self.value.clone())
    }
}
