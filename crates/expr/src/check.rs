//! What can be said against an expression before it runs.
//!
//! A value of type [`Type::Any`] is never refused. Numbers are one family: a JSON integer is an int or a uint by its
//! value, and a number may be either or a double, so only what no number can do is refused.

use crate::{
    Fault, Names, Type,
    eval::{read_span, read_time, zone_is_known},
    functions::{Arg, FUNCTIONS, Function, What},
    tree::{Fold, FoldKind, Kind, Node, Operator},
};

/// The type of a tree, or its faults.
pub(crate) fn check(source: &str, tree: &Node, names: &Names) -> Result<Type, Vec<Fault>> {
    let mut checker = Checker { source, names, locals: Vec::new(), faults: Vec::new() };
    let ty = checker.node(tree);
    if checker.faults.is_empty() {
        return Ok(ty);
    }
    checker.faults.sort_by_key(|fault| (fault.line, fault.column));
    Err(checker.faults)
}

struct Checker<'a> {
    source: &'a str,
    names: &'a Names,
    /// The types of the variables of the open macros.
    locals: Vec<Type>,
    faults: Vec<Fault>,
}

impl Checker<'_> {
    /// Notes a fault. The type is unknown then, so that one fault is told once.
    fn fault(&mut self, at: usize, message: impl Into<String>) -> Type {
        self.faults.push(Fault::at(self.source, at, message));
        Type::Any
    }

    fn node(&mut self, node: &Node) -> Type {
        match &node.kind {
            Kind::Null => Type::Null,
            Kind::Bool(_) => Type::Bool,
            Kind::Int(_) => Type::Int,
            Kind::Uint(_) => Type::Uint,
            Kind::Double(_) => Type::Double,
            Kind::Text(_) => Type::String,
            Kind::Bytes(_) => Type::Bytes,
            Kind::Name(name) => match self.names.get(name) {
                Some(ty) => ty.clone(),
                None => {
                    let known = near(name, self.names.iter().map(|(name, _)| name));
                    self.fault(node.at, format!("the name `{name}` is not known{known}"))
                }
            },
            Kind::Local { place, .. } => self.locals.get(*place).cloned().unwrap_or_default(),
            Kind::Field { of, name } => {
                let ty = self.node(of);
                self.field(node.at, of, &ty, name)
            }
            Kind::Has { of, name } => {
                let ty = self.node(of);
                self.field(node.at, of, &ty, name);
                Type::Bool
            }
            Kind::Index { of, by } => self.index(node.at, of, by),
            Kind::Not(of) => self.truth(of, "`!`"),
            Kind::Negate(of) => match self.node(of) {
                Type::Uint | Type::Int => Type::Int,
                ty @ (Type::Any | Type::Double | Type::Duration) => ty,
                other => self.fault(node.at, format!("`-` takes a number, and not {other}")),
            },
            Kind::And(a, b) => {
                self.truth(a, "`&&`");
                self.truth(b, "`&&`")
            }
            Kind::Or(a, b) => {
                self.truth(a, "`||`");
                self.truth(b, "`||`")
            }
            Kind::If(condition, yes, no) => {
                self.truth(condition, "the condition of `?:`");
                let yes = self.node(yes);
                yes.joined(self.node(no))
            }
            Kind::Binary(operator, a, b) => {
                let (a, b) = (self.node(a), self.node(b));
                self.binary(node.at, *operator, &a, &b)
            }
            Kind::List(nodes) => {
                let types = nodes.iter().map(|node| self.node(node));
                Type::list(types.reduce(Type::joined).unwrap_or_default())
            }
            Kind::Map(entries) => self.map(entries),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Matches { text, .. } => {
                let ty = self.node(text);
                self.argument(text, "matches", Arg::Text, &ty);
                Type::Bool
            }
            Kind::Call { function, name, method, args } => self.call(node.at, *function, name, *method, args),
        }
    }

    fn truth(&mut self, node: &Node, told: &str) -> Type {
        let ty = self.node(node);
        if !ty.may_be(&Type::Bool) {
            self.fault(node.at, format!("{told} takes a bool, and not {ty}"));
        }
        Type::Bool
    }

    fn field(&mut self, at: usize, of: &Node, ty: &Type, name: &str) -> Type {
        match ty {
            Type::Any => Type::Any,
            Type::Object { fields, open } => match fields.get(name) {
                Some(ty) => ty.clone(),
                None if *open => Type::Any,
                None => {
                    let known = near(name, fields.keys().map(String::as_str));
                    self.fault(at, format!("{} has no field `{name}`{known}", of.told()))
                }
            },
            other => self.fault(at, format!("{} is of type {other} and has no fields", of.told())),
        }
    }

    fn index(&mut self, at: usize, of: &Node, by: &Node) -> Type {
        let (ty, key) = (self.node(of), self.node(by));
        match (&ty, &by.kind) {
            (Type::Object { .. }, Kind::Text(name)) => self.field(by.at, of, &ty, name),
            (Type::Object { .. }, _) if key.may_be(&Type::String) => Type::Any,
            (Type::Object { .. }, _) => self.fault(by.at, format!("the key of a map is a string, and not {key}")),
            (Type::List(of), _) if key.may_be(&Type::Int) => (**of).clone(),
            (Type::List(_), _) => self.fault(by.at, format!("the index of a list is an int, and not {key}")),
            (Type::Any, _) => Type::Any,
            _ => self.fault(at, format!("{} is of type {ty} and has no elements", of.told())),
        }
    }

    fn map(&mut self, entries: &[(Node, Node)]) -> Type {
        let (mut fields, mut open) = (std::collections::BTreeMap::new(), false);
        for (key, value) in entries {
            let ty = self.node(key);
            if matches!(
                ty,
                Type::Null | Type::List(_) | Type::Object { .. } | Type::Bytes | Type::Timestamp | Type::Duration
            ) {
                self.fault(key.at, format!("the key of a map is a string, an int or a bool, and not {ty}"));
            }
            let value = self.node(value);
            match &key.kind {
                Kind::Text(name) => {
                    if fields.insert(name.clone(), value).is_some() {
                        self.fault(key.at, format!("the map has the key `{name}` twice"));
                    }
                }
                _ => open = true,
            }
        }
        Type::Object { fields, open }
    }

    fn fold(&mut self, fold: &Fold) -> Type {
        let element = match self.node(&fold.over) {
            Type::Any => Type::Any,
            Type::List(of) => *of,
            // The keys of a map that the expression itself makes may be of another type.
            Type::Object { open: true, .. } => Type::Any,
            Type::Object { .. } => Type::String,
            other => self.fault(fold.over.at, format!("a macro goes through a list or a map, and not {other}")),
        };
        self.locals.push(element);
        if let Some(condition) = &fold.condition {
            self.truth(condition, "the condition of a macro");
        }
        let ty = match fold.kind {
            FoldKind::Map => Type::list(self.node(&fold.body)),
            FoldKind::All => self.truth(&fold.body, "all()"),
            FoldKind::Exists => self.truth(&fold.body, "exists()"),
            FoldKind::ExistsOne => self.truth(&fold.body, "exists_one()"),
        };
        self.locals.pop();
        ty
    }

    fn binary(&mut self, at: usize, operator: Operator, a: &Type, b: &Type) -> Type {
        let done = match operator {
            Operator::Equal | Operator::NotEqual => {
                (a.may_be(b) || *a == Type::Null || *b == Type::Null).then_some(Type::Bool)
            }
            Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
                let ordered = |ty: &Type| !matches!(ty, Type::Null | Type::List(_) | Type::Object { .. });
                (a.may_be(b) && ordered(a) && ordered(b)).then_some(Type::Bool)
            }
            Operator::In => match b {
                Type::Any => Some(Type::Bool),
                Type::List(of) => (a.may_be(of) || *a == Type::Null).then_some(Type::Bool),
                Type::Object { .. } => Some(Type::Bool),
                _ => None,
            },
            _ => arithmetic(operator, a, b),
        };
        done.unwrap_or_else(|| self.fault(at, format!("`{}` does not take {a} and {b}", operator.sign())))
    }

    fn call(&mut self, at: usize, function: Option<&Function>, name: &str, method: bool, args: &[Node]) -> Type {
        let types: Vec<_> = args.iter().map(|arg| self.node(arg)).collect();
        let Some(function) = function else {
            let message = match Function::find(name, !method) {
                Some(_) if method => format!("{name}() is no method: write {name}(…)"),
                Some(_) => format!("{name}() is a method: write x.{name}(…)"),
                None => {
                    let names = FUNCTIONS.iter().map(|f| f.name);
                    format!("the function {name}() is not known{}", near(name, names.chain(MACROS.iter().copied())))
                }
            };
            return self.fault(at, message);
        };
        if !function.takes_count(args.len()) {
            let receiver = usize::from(method);
            let (most, given) = (function.args.len() - receiver, args.len().saturating_sub(receiver));
            let least = most - function.optional;
            let takes = match (function.repeated, least == most) {
                (true, _) => format!("at least {least}"),
                (_, true) => most.to_string(),
                _ => format!("{least} to {most}"),
            };
            return self.fault(at, format!("{name}() takes {takes} arguments, and not {given}"));
        }
        for (place, (arg, ty)) in args.iter().zip(&types).enumerate() {
            self.argument(arg, name, function.arg(place), ty);
        }
        self.literals(function, &types, args);
        match function.what {
            What::Min | What::Max => {
                let numbers = types.into_iter().map(|ty| if let Type::List(of) = ty { *of } else { ty });
                numbers.reduce(Type::joined).unwrap_or_default()
            }
            _ => (function.gives)(),
        }
    }

    fn argument(&mut self, node: &Node, name: &str, arg: Arg, ty: &Type) {
        if !arg.takes(ty) {
            self.fault(node.at, format!("{name}() takes {} here, and not {ty}", arg.told()));
        } else if arg == Arg::Pattern {
            self.fault(node.at, "the pattern of matches() must be a string literal");
        }
    }

    /// What is wrong with arguments that are written out.
    fn literals(&mut self, function: &Function, types: &[Type], args: &[Node]) {
        let Some((last, Kind::Text(text))) = args.last().map(|last| (last, &last.kind)) else { return };
        match function.what {
            What::Timestamp if read_time(text).is_none() => {
                self.fault(last.at, "this is no timestamp of RFC 3339, such as 2026-01-31T12:00:00Z");
            }
            What::Duration if read_span(text).is_none() => {
                self.fault(last.at, "this is no duration, such as 1h30m, 1.5s or 250ms");
            }
            What::Get(_) if args.len() == 2 && types[0] == Type::Duration => {
                self.fault(last.at, "a duration has no time zone");
            }
            What::Get(_) if args.len() == 2 && !zone_is_known(text) => {
                self.fault(last.at, format!("the time zone {text:?} is not known"));
            }
            _ => {}
        }
    }
}

const MACROS: &[&str] = &["has", "all", "exists", "exists_one", "map", "filter"];

/// The type of a computation, if there is one for these types.
fn arithmetic(operator: Operator, a: &Type, b: &Type) -> Option<Type> {
    use Type::{Any, Bytes, Double, Duration, Int, List, String, Timestamp, Uint};
    let number = |ty: &Type| matches!(ty, Int | Uint | Double);
    let fits = |ty: &Type| match operator {
        Operator::Add => number(ty) || matches!(ty, Any | String | Bytes | List(_) | Timestamp | Duration),
        Operator::Subtract => number(ty) || matches!(ty, Any | Timestamp | Duration),
        Operator::Remainder => matches!(ty, Any | Int | Uint),
        _ => number(ty) || *ty == Any,
    };
    if !fits(a) || !fits(b) {
        return None;
    }
    match (a, b) {
        (Any, _) | (_, Any) => Some(Any),
        (Uint, Uint) => Some(Uint),
        (Double, _) | (_, Double) if number(a) && number(b) => Some(Double),
        _ if number(a) && number(b) => Some(Int),
        (Timestamp, Timestamp) => (operator == Operator::Subtract).then_some(Duration),
        (Timestamp, Duration) => Some(Timestamp),
        (Duration, Timestamp) => (operator == Operator::Add).then_some(Timestamp),
        (Duration, Duration) => Some(Duration),
        (String, String) => Some(String),
        (Bytes, Bytes) => Some(Bytes),
        (List(a), List(b)) => Some(Type::list((**a).clone().joined((**b).clone()))),
        _ => None,
    }
}

/// What the author may have meant, for the end of a message.
fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|other| strsim::damerau_levenshtein(name, other));
    match known.first() {
        Some(first) if strsim::damerau_levenshtein(name, first) <= 2 => format!("; did you mean `{first}`?"),
        Some(_) if known.len() <= 8 => {
            known.sort_unstable();
            format!("; known are {}", known.join(", "))
        }
        _ => String::new(),
    }
}
