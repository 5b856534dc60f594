//! From text to a tree.
//!
//! The syntax is read by the Pratt parser of `cel`. Its other parser, generated from an ANTLR grammar, needs minutes
//! for 125 bytes of brackets and is never called here. Three things are done around the Pratt parser:
//!
//! - [`guard`] looks at the tokens first and refuses what would nest too deeply for a stack, or repeat too often;
//! - the parser gives no positions with a tree, only with an error. So a good source is parsed once more with an error
//!   appended: both parses number the nodes alike, and the second one says where each node stands;
//! - [`lower`] turns its tree into ours: macros and functions resolved, regular expressions compiled.

mod guard;
mod lower;

use std::sync::Arc;

use cel::{
    common::ast::SourceInfo,
    parser::{ParseError, ParseErrors, PrattParser},
};

use crate::{Fault, tree::Node};

pub(crate) use guard::end_of_expression;

/// The longest source, in bytes.
pub(crate) const MAX_SOURCE: usize = 4096;

/// Reads an expression.
pub(crate) fn parse(source: &str) -> Result<Node, Fault> {
    guard::check(source)?;
    let tree = parser().parse(source).map_err(|errors| first(source, &errors))?;
    let places = places(source).ok_or_else(|| Fault::at(source, 0, "the expression cannot be read"))?;
    lower::lower(source, &places, &tree)
}

fn parser() -> PrattParser {
    PrattParser::new().enable_ident_escape_syntax(true)
}

/// Where every node of a source without faults stands.
fn places(source: &str) -> Option<Arc<SourceInfo>> {
    let errors = parser().parse(&format!("{source}\n)")).err()?.errors;
    errors.into_iter().find_map(|error| error.source_info)
}

fn first(source: &str, errors: &ParseErrors) -> Fault {
    let Some(error) = errors.errors.iter().find(|error| error.pos.0 > 0).or(errors.errors.first()) else {
        return Fault::at(source, 0, "the expression cannot be read");
    };
    let message = error.msg.strip_prefix("Syntax error: ").unwrap_or(&error.msg);
    Fault::at(source, offset(source, error), message.replace("<EOF>", "the end").replace("mismatched input", "found"))
}

/// The byte offset of an error, which has a line and a column in bytes.
fn offset(source: &str, error: &ParseError) -> usize {
    let (line, column) = error.pos;
    let before: usize = source.split_inclusive('\n').take(usize::try_from(line - 1).unwrap_or(0)).map(str::len).sum();
    before + usize::try_from(column - 1).unwrap_or(0)
}
