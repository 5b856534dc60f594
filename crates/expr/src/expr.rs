//! An expression, from its text to its value.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    EvalError, Fault, Limits, Names, Reads, Type, Values, check,
    eval::{self, Budget},
    parse,
    tree::Node,
};

/// How many elements [`Expr::cost`] assumes in every collection.
const ASSUMED_ELEMENTS: u64 = 10;

/// A parsed expression. Copies share the tree.
#[derive(Clone, Debug)]
pub struct Expr(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    source: String,
    tree: Node,
    reads: Reads,
}

impl Expr {
    /// Reads an expression. Fails on a fault of syntax, on a regular expression that cannot be compiled, and on
    /// whatever is over a bound: 4 KiB of source, the depth of brackets and operators, macros nested in macros.
    pub fn parse(source: &str) -> Result<Expr, Fault> {
        let tree = parse::parse(source)?;
        let reads = Reads::of(&tree);
        Ok(Expr(Arc::new(Parsed { source: source.to_owned(), tree, reads })))
    }

    /// The text, as written.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// What it reads. An evaluation looks at no other values.
    pub fn reads(&self) -> &Reads {
        &self.0.reads
    }

    /// The type of its value, or every fault: unknown names, functions and fields, wrong counts and types of arguments.
    pub fn check(&self, names: &Names) -> Result<Type, Vec<Fault>> {
        check::check(self.source(), &self.0.tree, names)
    }

    /// As [`check`](Expr::check), and the value must be of this type too, as far as its type is known.
    pub fn check_as(&self, names: &Names, expected: &Type) -> Result<(), Vec<Fault>> {
        let ty = self.check(names)?;
        if ty.may_be(expected) {
            return Ok(());
        }
        Err(vec![Fault::at(self.source(), 0, format!("the value must be of type {expected}, and is of type {ty}"))])
    }

    /// A static estimate of how many nodes an evaluation visits, with ten elements in every collection.
    pub fn cost(&self) -> u64 {
        self.0.tree.cost(ASSUMED_ELEMENTS)
    }

    /// Its value as JSON. Timestamps and durations become text, bytes become base64.
    pub fn evaluate(&self, values: &Values, limits: &Limits) -> Result<Value, EvalError> {
        self.evaluate_within(values, &mut Budget::new(limits))
    }

    /// Its value, which must be a boolean.
    pub fn evaluate_bool(&self, values: &Values, limits: &Limits) -> Result<bool, EvalError> {
        eval::truth(&self.0.tree, values, &mut Budget::new(limits))
    }

    pub(crate) fn evaluate_within(&self, values: &Values, budget: &mut Budget) -> Result<Value, EvalError> {
        eval::json(&self.0.tree, values, budget)
    }

    pub(crate) fn text_within(&self, values: &Values, budget: &mut Budget) -> Result<String, EvalError> {
        eval::text(&self.0.tree, values, budget)
    }
}

impl PartialEq for Expr {
    fn eq(&self, other: &Expr) -> bool {
        self.0.source == other.0.source
    }
}

impl Eq for Expr {}
