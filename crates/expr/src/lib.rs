//! The expression language of Muster: CEL, parsed, checked and evaluated within bounds.
//!
//! Workflows and policy share this crate. It knows the syntax, the functions, the types and the numbers of an
//! expression, what an expression reads, and what it costs. It knows neither runs nor rules: callers say with [`Names`]
//! what may be named, and with [`Values`] what a name is worth. Nothing here reads a clock, does I/O or uses
//! randomness, and every operation is bounded: by the length of the source, by [`Limits`], or by both.

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
