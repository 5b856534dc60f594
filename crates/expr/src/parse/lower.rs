//! From the tree of the parser to ours.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SourceInfo, operators},
};
use regex::{Regex, RegexBuilder};

use crate::{
    Fault,
    functions::{Function, What},
    tree::{Fold, FoldKind, Kind, Node, Operator},
};

/// How deeply macros may nest in each other's conditions and bodies.
const MAX_FOLDS: usize = 3;
/// How many regular expressions one expression may have.
const MAX_PATTERNS: usize = 8;
/// The largest compiled regular expression, in bytes.
const MAX_PATTERN_SIZE: usize = 256 * 1024;

/// Turns the tree of a source into ours.
pub(super) fn lower(source: &str, places: &SourceInfo, tree: &IdedExpr) -> Result<Node, Fault> {
    Lower { source, places, open: Vec::new(), patterns: 0 }.node(tree)
}

struct Lower<'a> {
    source: &'a str,
    places: &'a SourceInfo,
    /// The variables of the macros around the node, the outermost first.
    open: Vec<&'a str>,
    patterns: usize,
}

type Lowered = Result<Node, Fault>;

impl<'a> Lower<'a> {
    fn node(&mut self, tree: &'a IdedExpr) -> Lowered {
        let at = self.places.offset_for(tree.id).map_or(0, |(start, _)| start as usize);
        let kind = match &tree.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Null => Kind::Null,
                LiteralValue::Boolean(b) => Kind::Bool(*b.inner()),
                LiteralValue::Int(n) => Kind::Int(*n.inner()),
                LiteralValue::UInt(n) => Kind::Uint(*n.inner()),
                LiteralValue::Double(n) => Kind::Double(*n.inner()),
                LiteralValue::String(text) => Kind::Text(text.inner().to_owned()),
                LiteralValue::Bytes(bytes) => Kind::Bytes(bytes.inner().to_vec()),
            },
            Expr::Ident(name) => match name.strip_prefix('.') {
                Some(name) => Kind::Name(name.to_owned()),
                None => match self.open.iter().rposition(|open| open == name) {
                    Some(place) => Kind::Local { place, name: name.clone() },
                    None => Kind::Name(name.clone()),
                },
            },
            Expr::Select(select) => {
                let (of, name) = (Box::new(self.node(&select.operand)?), select.field.clone());
                // The place of the node is its dot, and that of `has` its bracket.
                let at = if select.test { of.at } else { self.after(at + 1) };
                return Ok(Node {
                    at,
                    kind: if select.test { Kind::Has { of, name } } else { Kind::Field { of, name } },
                });
            }
            Expr::List(list) => Kind::List(self.all(&list.elements)?),
            Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::MapEntry(entry) => entries.push((self.node(&entry.key)?, self.node(&entry.value)?)),
                        EntryExpr::StructField(_) => return Err(self.fault(at, "messages are not supported")),
                    }
                }
                Kind::Map(entries)
            }
            Expr::Struct(of) => {
                return Err(self.fault(at, format!("messages such as `{}` are not supported", of.type_name)));
            }
            Expr::Comprehension(fold) => return self.fold(at, fold),
            Expr::Call(call) => return self.call(at, call),
            Expr::Unspecified => return Err(self.fault(at, "the expression cannot be read")),
        };
        Ok(Node { at, kind })
    }

    fn all(&mut self, trees: &'a [IdedExpr]) -> Result<Vec<Node>, Fault> {
        trees.iter().map(|tree| self.node(tree)).collect()
    }

    fn boxed(&mut self, tree: &'a IdedExpr) -> Result<Box<Node>, Fault> {
        self.node(tree).map(Box::new)
    }

    /// A macro. The parser has written it out as a loop; its parts are taken from there.
    fn fold(&mut self, at: usize, fold: &'a ComprehensionExpr) -> Lowered {
        let at = self.before(at, &["exists_one", "existsOne", "exists", "all", "map", "filter"]);
        let over = self.node(&fold.iter_range)?;
        if fold.iter_var.starts_with('.') {
            return Err(self.fault(at, "the variable of a macro must be a simple name"));
        }
        if self.open.len() >= MAX_FOLDS {
            return Err(self.fault(at, format!("macros nest too deeply: at most {MAX_FOLDS} levels are allowed")));
        }
        self.open.push(&fold.iter_var);
        let parts = self.fold_parts(at, fold);
        self.open.pop();
        let (kind, condition, body) = parts?;
        let fold = Fold { kind, over, condition, body };
        Ok(Node { at, kind: Kind::Fold(Box::new(fold)) })
    }

    fn fold_parts(&mut self, at: usize, fold: &'a ComprehensionExpr) -> Result<(FoldKind, Option<Node>, Node), Fault> {
        let unknown = |lower: &Self| lower.fault(at, "the macro cannot be read");
        let Expr::Call(step) = &fold.loop_step.expr else { return Err(unknown(self)) };
        // `@result + [element]`
        let element = |step: &'a CallExpr| match step.args.get(1).map(|arg| &arg.expr) {
            Some(Expr::List(list)) if step.func_name == operators::ADD => list.elements.first(),
            _ => None,
        };
        match (&fold.accu_init.expr, step.args.as_slice()) {
            (Expr::Literal(LiteralValue::Boolean(all)), [_, body]) => {
                let kind = if *all.inner() { FoldKind::All } else { FoldKind::Exists };
                Ok((kind, None, self.node(body)?))
            }
            (Expr::Literal(LiteralValue::Int(_)), [body, ..]) => Ok((FoldKind::ExistsOne, None, self.node(body)?)),
            (Expr::List(_), [condition, taken, _]) => {
                let condition = self.node(condition)?;
                let Expr::Call(taken) = &taken.expr else { return Err(unknown(self)) };
                let body = element(taken).ok_or_else(|| unknown(self))?;
                Ok((FoldKind::Map, Some(condition), self.node(body)?))
            }
            (Expr::List(_), [_, _]) => {
                let body = element(step).ok_or_else(|| unknown(self))?;
                Ok((FoldKind::Map, None, self.node(body)?))
            }
            _ => Err(unknown(self)),
        }
    }

    fn call(&mut self, at: usize, call: &'a CallExpr) -> Lowered {
        let name = call.func_name.as_str();
        if call.target.is_none() {
            if let Some(kind) = self.operator(name, &call.args)? {
                return Ok(Node { at, kind });
            }
        }
        let (name, method) = (name.strip_prefix('.').unwrap_or(name), call.target.is_some());
        let at = if method { self.before(at, &[name]) } else { at };
        let mut args = Vec::with_capacity(call.args.len() + 1);
        if let Some(target) = &call.target {
            args.push(self.node(target)?);
        }
        args.extend(self.all(&call.args)?);
        let function = Function::find(name, method);
        if function.is_some_and(|function| function.what == What::Matches) && args.len() == 2 {
            if let Kind::Text(pattern) = &args[1].kind {
                let pattern = self.pattern(args[1].at, pattern)?;
                let text = Box::new(args.swap_remove(0));
                return Ok(Node { at, kind: Kind::Matches { text, pattern } });
            }
        }
        Ok(Node { at, kind: Kind::Call { function, name: name.to_owned(), method, args } })
    }

    fn operator(&mut self, name: &str, args: &'a [IdedExpr]) -> Result<Option<Kind>, Fault> {
        let binary = match name {
            operators::ADD => Operator::Add,
            operators::SUBSTRACT => Operator::Subtract,
            operators::MULTIPLY => Operator::Multiply,
            operators::DIVIDE => Operator::Divide,
            operators::MODULO => Operator::Remainder,
            operators::EQUALS => Operator::Equal,
            operators::NOT_EQUALS => Operator::NotEqual,
            operators::LESS => Operator::Less,
            operators::LESS_EQUALS => Operator::LessEqual,
            operators::GREATER => Operator::Greater,
            operators::GREATER_EQUALS => Operator::GreaterEqual,
            operators::IN => Operator::In,
            _ => {
                return Ok(match (name, args) {
                    (operators::LOGICAL_NOT, [of]) => Some(Kind::Not(self.boxed(of)?)),
                    (operators::NEGATE, [of]) => Some(Kind::Negate(self.boxed(of)?)),
                    (operators::LOGICAL_AND, [a, b]) => Some(Kind::And(self.boxed(a)?, self.boxed(b)?)),
                    (operators::LOGICAL_OR, [a, b]) => Some(Kind::Or(self.boxed(a)?, self.boxed(b)?)),
                    (operators::INDEX, [of, by]) => Some(Kind::Index { of: self.boxed(of)?, by: self.boxed(by)? }),
                    (operators::CONDITIONAL, [a, b, c]) => {
                        Some(Kind::If(self.boxed(a)?, self.boxed(b)?, self.boxed(c)?))
                    }
                    _ => None,
                });
            }
        };
        match args {
            [a, b] => Ok(Some(Kind::Binary(binary, self.boxed(a)?, self.boxed(b)?))),
            _ => Ok(None),
        }
    }

    fn pattern(&mut self, at: usize, pattern: &str) -> Result<Regex, Fault> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(self.fault(at, format!("at most {MAX_PATTERNS} regular expressions are allowed")));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.size_limit(MAX_PATTERN_SIZE).dfa_size_limit(MAX_PATTERN_SIZE).nest_limit(32);
        builder.build().map_err(|error| {
            let why = match error {
                regex::Error::CompiledTooBig(limit) => format!("it compiles to more than {limit} bytes"),
                regex::Error::Syntax(text) => {
                    let last = text.lines().last().unwrap_or_default();
                    last.strip_prefix("error: ").unwrap_or(last).to_owned()
                }
                other => other.to_string(),
            };
            self.fault(at, format!("the regular expression cannot be used: {why}"))
        })
    }

    fn fault(&self, at: usize, message: impl Into<String>) -> Fault {
        Fault::at(self.source, at, message)
    }

    /// The offset of what follows the white space at `at`.
    fn after(&self, at: usize) -> usize {
        let rest = self.source.get(at..).unwrap_or_default();
        at + rest.len() - rest.trim_start().len()
    }

    /// The offset of the name before the bracket at `at`.
    fn before(&self, at: usize, names: &[&str]) -> usize {
        let text = self.source.get(..at).unwrap_or_default().trim_end();
        names.iter().find(|name| text.ends_with(**name)).map_or(at, |name| text.len() - name.len())
    }
}
