//! An expression as a tree: what the parser makes, and what the checker and the evaluator walk.
//!
//! Macros are nodes of their own ([`Fold`]), and the variable of a macro is its place among the open macros, so that
//! no name is looked up twice. The parser bounds the depth, so that every walk may recurse.

use regex::Regex;

use crate::functions::Function;

/// A node, with its byte offset in the source.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// A name that the caller knows.
    Name(String),
    /// The variable of a macro around this node: the place counts from the outermost.
    Local {
        place: usize,
        name: String,
    },
    Field {
        of: Box<Node>,
        name: String,
    },
    Has {
        of: Box<Node>,
        name: String,
    },
    Index {
        of: Box<Node>,
        by: Box<Node>,
    },
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    If(Box<Node>, Box<Node>, Box<Node>),
    Binary(Operator, Box<Node>, Box<Node>),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Fold(Box<Fold>),
    /// A function; the receiver is the first argument. `None` for one that is not known.
    Call {
        function: Option<&'static Function>,
        name: String,
        method: bool,
        args: Vec<Node>,
    },
    /// `matches` with its compiled pattern.
    Matches {
        text: Box<Node>,
        pattern: Regex,
    },
}

/// A macro that goes through a collection.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) over: Node,
    /// Which elements a `map` takes; `filter` is a `map` of the element itself.
    pub(crate) condition: Option<Node>,
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

impl Operator {
    /// As it is written.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterEqual => ">=",
            Operator::In => "in",
        }
    }
}

impl Node {
    /// The direct parts, in the order of evaluation.
    pub(crate) fn parts(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Field { of, .. } | Kind::Has { of, .. } => vec![of],
            Kind::Not(of) | Kind::Negate(of) | Kind::Matches { text: of, .. } => vec![of],
            Kind::Index { of: a, by: b } | Kind::And(a, b) | Kind::Or(a, b) | Kind::Binary(_, a, b) => vec![a, b],
            Kind::If(a, b, c) => vec![a, b, c],
            Kind::List(nodes) | Kind::Call { args: nodes, .. } => nodes.iter().collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).collect(),
            Kind::Fold(fold) => {
                [Some(&fold.over), fold.condition.as_ref(), Some(&fold.body)].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The path that this node is, if it is nothing but a name and fields that are written out.
    pub(crate) fn path(&self) -> Option<Vec<&str>> {
        match &self.kind {
            Kind::Name(name) => Some(vec![name]),
            Kind::Field { of, name } => {
                let mut path = of.path()?;
                path.push(name);
                Some(path)
            }
            Kind::Index { of, by } => match &by.kind {
                Kind::Text(name) => {
                    let mut path = of.path()?;
                    path.push(name);
                    Some(path)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// What a message calls this node: its path, as far as it is one.
    pub(crate) fn told(&self) -> String {
        match &self.kind {
            Kind::Name(name) | Kind::Local { name, .. } => name.clone(),
            Kind::Field { of, name } | Kind::Has { of, name } => format!("{}.{name}", of.told()),
            Kind::Index { of, by } => match &by.kind {
                Kind::Text(key) => format!("{}[{key:?}]", of.told()),
                Kind::Int(n) => format!("{}[{n}]", of.told()),
                _ => format!("{}[…]", of.told()),
            },
            _ => "(…)".to_owned(),
        }
    }

    /// How many nodes an evaluation visits, if every collection has `elements` elements.
    pub(crate) fn cost(&self, elements: u64) -> u64 {
        let below = match &self.kind {
            Kind::Fold(fold) => {
                let each = fold.body.cost(elements) + fold.condition.as_ref().map_or(0, |node| node.cost(elements));
                fold.over.cost(elements).saturating_add(elements.saturating_mul(each.saturating_add(1)))
            }
            _ => self.parts().iter().fold(0, |sum: u64, node| sum.saturating_add(node.cost(elements))),
        };
        below.saturating_add(1)
    }
}
