//! The expression language of Muster: CEL, parsed, checked and evaluated within bounds.
//!
//! Workflows and policy share this crate. It knows the syntax, the functions, the types and the numbers of an
//! expression, what an expression reads, and what it costs. It knows neither runs nor rules: callers say with [`Names`]
//! what may be named, and with [`Values`] what a name is worth. Nothing here reads a clock, does I/O or uses
//! randomness, and every operation is bounded: by the length of the source, by [`Limits`], or by both. A condition
//! parses in some 10 µs and evaluates in about 1 µs; the worst source within the bounds parses in 26 ms, and a bomb uses
//! up its budget in 20 ms (`docs/adr/2026-11-18-expressions.md` has the figures and the reasons).
//!
//! ```
//! use muster_expr::{Expr, Limits, Names, Type, Values};
//! use serde_json::json;
//!
//! let expr = Expr::parse("input.total > 1000.0 && input.tags.exists(t, t == 'vip')").unwrap();
//! let names = Names::new().with("input", Type::from_schema(&json!({"type": "object"})));
//! assert_eq!(expr.check(&names), Ok(Type::Bool));
//!
//! let mut values = Values::new();
//! values.set("input", json!({"total": 1200, "tags": ["vip"]}));
//! assert_eq!(expr.evaluate_bool(&values, &Limits::default()), Ok(true));
//! ```

mod check;
mod error;
mod eval;
mod expr;
mod fault;
mod functions;
mod names;
mod parse;
mod reads;
mod template;
mod tree;
mod values;

pub use error::{EvalError, Limits};
pub use expr::Expr;
pub use fault::{Fault, TemplateFault};
pub use names::{Names, Type};
pub use reads::Reads;
pub use template::Template;
pub use values::{Absent, Values};
