//! What is wrong with an expression or a template, and where.

use thiserror::Error;

/// A fault in an expression. `line` and `column` count from 1, in characters, within the expression's own text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {message}")]
pub struct Fault {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What is wrong, for the person who wrote the expression.
    pub message: String,
}

impl Fault {
    /// A fault at a byte offset of `source`.
    pub(crate) fn at(source: &str, offset: usize, message: impl Into<String>) -> Fault {
        let mut end = offset.min(source.len());
        while !source.is_char_boundary(end) {
            end -= 1;
        }
        let before = &source[..end];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Fault { line: line as u32, column: column as u32, message: message.into() }
    }
}

/// A fault in a template, with the place of its string in the value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{pointer}: {fault}")]
pub struct TemplateFault {
    /// The string that holds the expression, as a JSON pointer (RFC 6901) inside the value. Empty for the value itself.
    pub pointer: String,
    /// The fault. `line` and `column` count inside that string, so that `${{` at its start stands at 1:1.
    pub fault: Fault,
}
