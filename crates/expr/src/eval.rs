//! The evaluator: walks the tree within a budget.
//!
//! The values of the caller are referred to and never copied, except into the result. Every node costs one of the
//! budget, literals and variables excepted; long text, elements that are compared and elements that a macro visits
//! cost more. A fault of one side of `&&` or `||` counts only if the other side does not decide (so does a fault of
//! one element in `all` and `exists`), as CEL demands; a budget that is used up always counts.

mod budget;
mod call;
mod compare;
mod item;
mod number;
mod output;
mod text;
mod time;

use std::{collections::BTreeMap, rc::Rc};

use serde_json::Value;

use self::{
    compare::{contains, equal, order},
    item::{Item, List, Map, Text},
    number::Num,
};
use crate::{
    EvalError, Values,
    tree::{Fold, FoldKind, Kind, Node, Operator},
};

pub(crate) use budget::Budget;
pub(crate) use time::{read_span, read_time, zone_is_known};

type Result<T> = std::result::Result<T, EvalError>;

/// The value of a tree as JSON.
pub(crate) fn json(tree: &Node, values: &Values, budget: &mut Budget) -> Result<Value> {
    let item = Machine { values, budget, locals: Vec::new() }.node(tree)?;
    output::json(&item, budget)
}

/// The value of a tree as text.
pub(crate) fn text(tree: &Node, values: &Values, budget: &mut Budget) -> Result<String> {
    let item = Machine { values, budget, locals: Vec::new() }.node(tree)?;
    output::text(&item, budget)
}

/// The value of a tree, which must be a boolean.
pub(crate) fn truth(tree: &Node, values: &Values, budget: &mut Budget) -> Result<bool> {
    Machine { values, budget, locals: Vec::new() }.truth(tree, "the expression")
}

struct Machine<'a, 'b> {
    values: &'a Values,
    budget: &'b mut Budget,
    /// What the variables of the open macros stand for.
    locals: Vec<Item<'a>>,
}

/// Whether an error ends the evaluation, whatever another operand says.
fn ends(error: &EvalError) -> bool {
    matches!(error, EvalError::Budget(_) | EvalError::TooLarge(_))
}

impl<'a> Machine<'a, '_> {
    fn node(&mut self, node: &'a Node) -> Result<Item<'a>> {
        match &node.kind {
            Kind::Null => return Ok(Item::Null),
            Kind::Bool(b) => return Ok(Item::Bool(*b)),
            Kind::Int(n) => return Ok(Item::int(*n)),
            Kind::Uint(n) => return Ok(Item::Num(Num::Uint(*n))),
            Kind::Double(n) => return Ok(Item::Num(Num::Double(*n, None))),
            Kind::Text(text) => return Ok(Item::Text(Text::Read(text))),
            Kind::Local { place, .. } => {
                // A place that is not open cannot occur: the parser counts the places of open macros only.
                return Ok(self.locals.get(*place).cloned().unwrap_or(Item::Null));
            }
            _ => self.budget.take(1)?,
        }
        match &node.kind {
            Kind::Bytes(bytes) => Ok(Item::Bytes(bytes.as_slice().into())),
            Kind::Name(name) => match self.values.get(name) {
                Some(held) => Item::held(held, || name.clone()),
                None => Err(EvalError::Missing { path: name.clone(), why: "there is no such name".to_owned() }),
            },
            Kind::Field { of, name } => {
                let item = self.node(of)?;
                self.field(&item, Item::Text(Text::Read(name)), node)
            }
            Kind::Index { of, by } => {
                let (item, by) = (self.node(of)?, self.node(by)?);
                self.field(&item, by, node)
            }
            Kind::Has { of, name } => self.has(of, name).map(Item::Bool),
            Kind::Not(of) => self.truth(of, "`!`").map(|b| Item::Bool(!b)),
            Kind::Negate(of) => match self.node(of)? {
                Item::Num(n) => n.negated().map(Item::Num),
                Item::Span(nanos) => Ok(Item::Span(-nanos)),
                other => Err(EvalError::Type(format!("`-` takes a number, and not {}", other.type_name()))),
            },
            Kind::And(a, b) => self.either(a, b, "&&", false),
            Kind::Or(a, b) => self.either(a, b, "||", true),
            Kind::If(condition, yes, no) => {
                let branch = if self.truth(condition, "the condition of `?:`")? { yes } else { no };
                self.node(branch)
            }
            Kind::Binary(operator, a, b) => {
                let (a, b) = (self.node(a)?, self.node(b)?);
                self.binary(*operator, &a, &b)
            }
            Kind::List(nodes) => nodes.iter().map(|node| self.node(node)).collect::<Result<_>>().map(Item::list),
            Kind::Map(entries) => self.map(entries),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Matches { text, pattern } => match self.node(text)? {
                Item::Text(text) => {
                    // A pattern may take several steps for each byte.
                    self.budget.take(text.len() / 8)?;
                    Ok(Item::Bool(pattern.is_match(&text)))
                }
                other => Err(EvalError::Type(format!("matches() takes a string, and not {}", other.type_name()))),
            },
            Kind::Call { function, name, args, .. } => {
                let args = args.iter().map(|arg| self.node(arg)).collect::<Result<Vec<_>>>()?;
                match function {
                    Some(function) if function.takes_count(args.len()) => call::call(function, &args, self.budget),
                    Some(_) => Err(EvalError::Type(format!("{name}() is called with a wrong number of arguments"))),
                    None => Err(EvalError::Type(format!("there is no function {name}()"))),
                }
            }
            // The kinds above.
            _ => Ok(Item::Null),
        }
    }

    fn truth(&mut self, node: &'a Node, told: &str) -> Result<bool> {
        match self.node(node)? {
            Item::Bool(b) => Ok(b),
            other => Err(EvalError::Type(format!("{told} must be a bool, and is {}", other.type_name()))),
        }
    }

    /// `&&` and `||`: the value that decides, whichever side has it.
    fn either(&mut self, a: &'a Node, b: &'a Node, sign: &str, decides: bool) -> Result<Item<'a>> {
        let told = format!("`{sign}`");
        let first = self.truth(a, &told);
        match first {
            Ok(value) if value == decides => return Ok(Item::Bool(decides)),
            Err(error) if ends(&error) => return Err(error),
            _ => {}
        }
        match (first, self.truth(b, &told)) {
            (_, Ok(value)) if value == decides => Ok(Item::Bool(decides)),
            (_, Err(error)) if ends(&error) => Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Ok(Item::Bool(!decides)),
        }
    }

    /// `item.key` and `item[key]`. `node` is told in an error.
    fn field(&mut self, item: &Item<'a>, by: Item<'a>, node: &Node) -> Result<Item<'a>> {
        let missing = |why: String| Err(EvalError::Missing { path: node.told(), why });
        match item {
            Item::Map(map) => {
                let Some(key) = by.key() else {
                    return Err(EvalError::Type(format!("a {} is no key of a map", by.type_name())));
                };
                match map.get(&key, || node.told()) {
                    Some(item) => item,
                    None => missing("there is no such field".to_owned()),
                }
            }
            Item::List(list) => match by {
                Item::Num(n) => match n.whole().and_then(|n| usize::try_from(n).ok()).and_then(|n| list.get(n)) {
                    Some(item) => item,
                    None => missing(format!("the list has {} elements and no index {}", list.len(), n.told())),
                },
                _ => Err(EvalError::Type(format!("{}: a list has no fields", node.told()))),
            },
            Item::Null => missing("what should hold it is null".to_owned()),
            _ => Err(EvalError::Type(format!("{}: a {} has no fields", node.told(), item.type_name()))),
        }
    }

    /// `has()`: false also if what should hold the field is not there.
    fn has(&mut self, of: &'a Node, name: &'a str) -> Result<bool> {
        match self.node(of) {
            Ok(Item::Map(map)) => Ok(map.has(&item::Key::Text(Text::Read(name)))),
            Ok(Item::Null) | Err(EvalError::Missing { .. }) => Ok(false),
            Ok(other) => Err(EvalError::Type(format!("has(): a {} has no fields", other.type_name()))),
            Err(error) => Err(error),
        }
    }

    fn map(&mut self, entries: &'a [(Node, Node)]) -> Result<Item<'a>> {
        let mut map = BTreeMap::new();
        for (key, value) in entries {
            let key = self.node(key)?;
            let Some(key) = key.key() else {
                return Err(EvalError::Type(format!("a {} cannot be the key of a map", key.type_name())));
            };
            let value = self.node(value)?;
            let told = key.to_string();
            if map.insert(key, value).is_some() {
                return Err(EvalError::Value(format!("a map has the key {told:?} twice")));
            }
        }
        Ok(Item::Map(Map::Made(Rc::new(map))))
    }

    fn binary(&mut self, operator: Operator, a: &Item<'a>, b: &Item<'a>) -> Result<Item<'a>> {
        let truth = |truth| Ok(Item::Bool(truth));
        match operator {
            Operator::Equal => truth(equal(a, b, self.budget)?),
            Operator::NotEqual => truth(!equal(a, b, self.budget)?),
            Operator::Less => truth(order(a, b, self.budget)?.is_some_and(|order| order.is_lt())),
            Operator::LessEqual => truth(order(a, b, self.budget)?.is_some_and(|order| order.is_le())),
            Operator::Greater => truth(order(a, b, self.budget)?.is_some_and(|order| order.is_gt())),
            Operator::GreaterEqual => truth(order(a, b, self.budget)?.is_some_and(|order| order.is_ge())),
            Operator::In => truth(contains(a, b, self.budget)?),
            _ => self.arithmetic(operator, a, b),
        }
    }

    fn arithmetic(&mut self, operator: Operator, a: &Item<'a>, b: &Item<'a>) -> Result<Item<'a>> {
        match (operator, a, b) {
            (_, Item::Num(a), Item::Num(b)) => a.compute(operator, *b).map(Item::Num),
            (Operator::Add, Item::Text(a), Item::Text(b)) => text::concat(&[a, b], self.budget),
            (Operator::Add, Item::Bytes(a), Item::Bytes(b)) => {
                self.budget.fits(a.len() + b.len())?;
                self.budget.take_text(a.len() + b.len())?;
                Ok(Item::Bytes([&**a, &**b].concat().into()))
            }
            (Operator::Add, Item::List(a), Item::List(b)) => {
                self.budget.take(a.len() + b.len())?;
                a.iter().chain(b.iter()).collect::<Result<_>>().map(Item::list)
            }
            (Operator::Add, Item::Span(a), Item::Span(b)) => time::span(a + b).map(Item::Span),
            (Operator::Subtract, Item::Span(a), Item::Span(b)) => time::span(a - b).map(Item::Span),
            (Operator::Add, at, Item::Span(span)) | (Operator::Add, Item::Span(span), at) if at.as_time().is_some() => {
                time::time(at.as_time().unwrap_or_default() + span).map(Item::Time)
            }
            (Operator::Subtract, at, Item::Span(span)) if at.as_time().is_some() => {
                time::time(at.as_time().unwrap_or_default() - span).map(Item::Time)
            }
            (Operator::Subtract, Item::Time(_), at) | (Operator::Subtract, at, Item::Time(_))
                if at.as_time().is_some() =>
            {
                let (a, b) = (a.as_time().unwrap_or_default(), b.as_time().unwrap_or_default());
                time::span(a - b).map(Item::Span)
            }
            _ => Err(EvalError::Type(format!(
                "`{}` does not take {} and {}",
                operator.sign(),
                a.type_name(),
                b.type_name()
            ))),
        }
    }

    fn fold(&mut self, fold: &'a Fold) -> Result<Item<'a>> {
        let over = match self.node(&fold.over)? {
            Item::List(list) => list,
            Item::Map(map) => {
                let keys: Vec<_> = map.keys().iter().map(item::Key::item).collect();
                self.budget.take(keys.len())?;
                List::Made(Rc::new(keys))
            }
            other => {
                let message = format!("a macro goes through a list or a map, and not {}", other.type_name());
                return Err(EvalError::Type(message));
            }
        };
        match fold.kind {
            FoldKind::All => self.quantifier(fold, &over, false),
            FoldKind::Exists => self.quantifier(fold, &over, true),
            FoldKind::ExistsOne => {
                let mut found = 0_usize;
                for element in over.iter() {
                    found += usize::from(self.with(element?, |machine| machine.truth(&fold.body, "exists_one()"))?);
                }
                Ok(Item::Bool(found == 1))
            }
            FoldKind::Map => {
                let mut out = Vec::new();
                for element in over.iter() {
                    let made = self.with(element?, |machine| match &fold.condition {
                        Some(condition) if !machine.truth(condition, "the condition of a macro")? => Ok(None),
                        _ => machine.node(&fold.body).map(Some),
                    })?;
                    out.extend(made);
                }
                Ok(Item::list(out))
            }
        }
    }

    /// `all` and `exists`: the value that decides, whichever element has it.
    fn quantifier(&mut self, fold: &'a Fold, over: &List<'a>, decides: bool) -> Result<Item<'a>> {
        let mut fault = None;
        for element in over.iter() {
            let told = if decides { "exists()" } else { "all()" };
            match element.and_then(|element| self.with(element, |machine| machine.truth(&fold.body, told))) {
                Ok(value) if value == decides => return Ok(Item::Bool(decides)),
                Ok(_) => {}
                Err(error) if ends(&error) => return Err(error),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(Item::Bool(!decides)), Err)
    }

    /// Runs the body of a macro for one element.
    fn with<T>(&mut self, element: Item<'a>, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.budget.take(1)?;
        self.locals.push(element);
        let done = body(self);
        self.locals.pop();
        done
    }
}
