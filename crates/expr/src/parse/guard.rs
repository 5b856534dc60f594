//! What is refused before the parser sees it: a source that is too long or nests too deeply, and what is no token.
//!
//! The bound on depth is taken from the tokens alone. It is never below the depth of the tree that the parser builds,
//! and at most a little above it.

use cel::parser::pratt_parser::{Lexer, Token, TokenKind};

use super::MAX_SOURCE;
use crate::Fault;

/// How deeply brackets may nest.
const MAX_BRACKETS: usize = 32;
/// How deep the tree may be: brackets, operators in a row, conditions in a row.
const MAX_DEPTH: usize = 200;

pub(super) fn check(source: &str) -> Result<(), Fault> {
    if source.len() > MAX_SOURCE {
        let message = format!("the expression has {} bytes; at most {MAX_SOURCE} are allowed", source.len());
        return Err(Fault::at(source, 0, message));
    }
    if source.trim().is_empty() {
        return Err(Fault::at(source, 0, "the expression is empty"));
    }
    let mut levels = vec![Level::default()];
    for token in Tokens::new(source) {
        let token = token.map_err(|(at, message)| Fault::at(source, at, message))?;
        match token.kind {
            TokenKind::TokLeftParen | TokenKind::TokLeftBracket | TokenKind::TokLeftBrace => {
                if levels.len() > MAX_BRACKETS {
                    let message = format!("brackets nest too deeply: at most {MAX_BRACKETS} levels are allowed");
                    return Err(Fault::at(source, token.start, message));
                }
                levels.push(Level::default());
            }
            TokenKind::TokRightParen | TokenKind::TokRightBracket | TokenKind::TokRightBrace if levels.len() > 1 => {
                let depth = levels.pop().map_or(0, |level| level.depth());
                if let Some(outer) = levels.last_mut() {
                    outer.within = outer.within.max(depth);
                    outer.row += 1;
                }
            }
            kind => {
                if let Some(level) = levels.last_mut() {
                    level.token(kind);
                }
            }
        }
        if levels.iter().map(Level::depth).sum::<usize>() > MAX_DEPTH {
            let message =
                format!("the expression nests too deeply: at most {MAX_DEPTH} operators in a row are allowed");
            return Err(Fault::at(source, token.start, message));
        }
    }
    Ok(())
}

/// What was seen inside of one pair of brackets.
#[derive(Default)]
struct Level {
    /// Operators in a row since the last `&&`, `||`, `?`, `:` or comma: each is one level of the tree.
    row: usize,
    /// The deepest pair of brackets in that row.
    within: usize,
    /// The deepest row since the last comma.
    rows: usize,
    /// `&&` and `||` since the last comma. The parser balances them.
    logical: usize,
    /// Conditions since the last comma: each may be inside of the one before.
    conditions: usize,
    /// The deepest part between commas.
    parts: usize,
}

impl Level {
    fn token(&mut self, kind: TokenKind) {
        use TokenKind::*;
        match kind {
            TokComma => {
                self.parts = self.depth();
                (self.row, self.within, self.rows, self.logical, self.conditions) = (0, 0, 0, 0, 0);
            }
            TokLogicalAnd | TokLogicalOr => {
                self.end_row();
                self.logical += 1;
            }
            TokQuestion => {
                self.end_row();
                self.conditions += 1;
            }
            TokColon => self.end_row(),
            TokDot | TokMinus | TokPlus | TokAsterisk | TokSlash | TokPercent | TokExclamation | TokEqualEqual
            | TokExclamationEqual | TokLess | TokLessEqual | TokGreater | TokGreaterEqual | TokIn => self.row += 1,
            _ => {}
        }
    }

    fn end_row(&mut self) {
        self.rows = self.rows.max(self.row + self.within);
        (self.row, self.within) = (0, 0);
    }

    fn depth(&self) -> usize {
        let logical = self.logical.min(12) * (self.conditions + 1);
        let part = self.rows.max(self.row + self.within) + logical + 2 * self.conditions + 1;
        self.parts.max(part)
    }
}

/// The tokens of a source, or the first that is none, with its offset.
struct Tokens<'a> {
    lexer: Lexer<'a>,
}

impl Tokens<'_> {
    fn new(source: &str) -> Tokens<'_> {
        Tokens { lexer: Lexer::new(source) }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Token, (usize, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let token = self.lexer.lex();
        match token.kind {
            TokenKind::TokEnd => None,
            TokenKind::TokError => {
                let message = self.lexer.get_error().map_or("unexpected character", |error| &error.message);
                Some(Err((token.start, message.to_owned())))
            }
            _ => Some(Ok(token)),
        }
    }
}

/// Where the expression that `text` begins with ends: the offset of the first `}}` that is neither inside of a string
/// literal nor closes a map of the expression. `None` if there is no end within the longest source.
pub(crate) fn end_of_expression(text: &str) -> Result<Option<usize>, (usize, String)> {
    let (mut open, mut last) = (0_usize, None);
    for token in Tokens::new(text) {
        let token = token?;
        if token.start > MAX_SOURCE {
            return Ok(None);
        }
        match token.kind {
            TokenKind::TokLeftBrace => open += 1,
            TokenKind::TokRightBrace if open > 0 => open -= 1,
            TokenKind::TokRightBrace if last == Some(token.start) => return Ok(Some(token.start - 1)),
            TokenKind::TokRightBrace => {
                last = Some(token.end);
                continue;
            }
            _ => {}
        }
        last = None;
    }
    Ok(None)
}
