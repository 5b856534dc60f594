//! What an expression at some place of a definition may name, and the types of it.
//!
//! A place is a chain of layers, from the outside in: the run, scopes of which some steps are visible, items, loops.
//! Only what an expression reads is handed to its check, so that the cost of a check does not grow with the definition.

use std::{cell::OnceCell, collections::BTreeMap, collections::HashMap};

use muster_expr::{Names, Type};

use super::order::Order;
use crate::definition::{
    faults::suggestion,
    model::{Kind, Scope, Step},
};

/// The largest type that is handed over whole, in parts.
const MOST_PARTS: usize = 64;

/// A place in a definition.
pub(super) struct Env<'e> {
    pub(super) outer: Option<&'e Env<'e>>,
    pub(super) layer: Layer<'e>,
}

/// What a place adds to what its surroundings see.
pub(super) enum Layer<'e> {
    /// Names with their types.
    Values(Vec<(&'e str, Type)>),
    /// Those steps of a scope that a step needs; all of them for `None`.
    Steps(&'e Known<'e>, Option<usize>),
    /// One step: the one that the expression belongs to.
    Own(&'e Step, Type),
}

/// A scope whose steps are being checked.
pub(super) struct Known<'e> {
    pub(super) scope: &'e Scope,
    pub(super) order: &'e Order,
    pub(super) places: HashMap<&'e str, usize>,
    /// The types of the results that are known so far.
    pub(super) results: Vec<OnceCell<Type>>,
}

/// What a step is to an expression.
pub(super) enum Sight {
    /// The expression may read it.
    Visible(Type),
    /// It is in a scope around the expression, and not needed.
    NotNeeded,
    /// The expression is a part of it.
    Around,
    /// It is in no scope around the expression.
    Elsewhere,
}

impl<'e> Known<'e> {
    pub(super) fn new(scope: &'e Scope, order: &'e Order) -> Known<'e> {
        let mut places = HashMap::new();
        for (n, step) in scope.steps.iter().enumerate().filter(|(_, step)| !step.id.is_empty()) {
            places.entry(step.id.as_str()).or_insert(n);
        }
        Known { scope, order, places, results: scope.steps.iter().map(|_| OnceCell::new()).collect() }
    }
}

impl<'e> Env<'e> {
    pub(super) fn within(outer: &'e Env<'e>, layer: Layer<'e>) -> Env<'e> {
        Env { outer: Some(outer), layer }
    }

    fn layers(&self) -> impl Iterator<Item = &Layer<'e>> {
        std::iter::successors(Some(self), |env| env.outer).map(|env| &env.layer)
    }

    /// What the step `id` is to an expression here.
    pub(super) fn sight(&self, id: &str) -> Sight {
        for layer in self.layers() {
            match layer {
                Layer::Own(step, result) if step.id == id => {
                    return Sight::Visible(step_type(step, result.clone(), true));
                }
                Layer::Steps(known, from) => {
                    let Some(place) = known.places.get(id).copied() else { continue };
                    if from.is_some_and(|from| from == place) {
                        return Sight::Around;
                    }
                    if from.is_some_and(|from| !known.order.needs(from, place)) {
                        return Sight::NotNeeded;
                    }
                    let result = known.results.get(place).and_then(OnceCell::get).cloned().unwrap_or_default();
                    let Some(step) = known.scope.steps.get(place) else { continue };
                    return Sight::Visible(step_type(step, result, false));
                }
                _ => {}
            }
        }
        Sight::Elsewhere
    }

    /// The end of a sentence about an unknown step: the visible one that it may be meant to be.
    pub(super) fn hint(&self, id: &str) -> String {
        let mut ids = Vec::new();
        for layer in self.layers() {
            match layer {
                Layer::Own(step, _) => ids.push(step.id.as_str()),
                Layer::Steps(known, from) => ids.extend(
                    known
                        .places
                        .iter()
                        .filter(|(_, n)| from.is_none_or(|from| known.order.needs(from, **n)))
                        .map(|(id, _)| *id),
                ),
                Layer::Values(_) => {}
            }
        }
        ids.sort_unstable();
        suggestion(id, ids)
    }

    /// The names that these paths read, with their types. `steps` is left out: it is judged step by step.
    pub(super) fn names(&self, paths: &[&[String]]) -> Names {
        let mut names = Names::new();
        for layer in self.layers() {
            let Layer::Values(values) = layer else { continue };
            for (name, ty) in values {
                // What is further inside hides what is around it.
                if names.get(name).is_none() {
                    let below: Vec<&[String]> = paths
                        .iter()
                        .filter(|p| p.first().is_some_and(|first| first == name))
                        .map(|p| &p[1..])
                        .collect();
                    names.with_ref(name, if below.is_empty() { Type::Any } else { narrow(ty, &below) });
                }
            }
        }
        names
    }
}

/// What is known of `steps.<id>`. Seen from itself, a step with a for-each is one item.
fn step_type(step: &Step, result: Type, own: bool) -> Type {
    let mut fields = vec![
        ("result", if step.for_each.is_some() && !own { Type::Any } else { result }),
        ("state", Type::String),
        ("error", Type::Any),
        ("attempts", Type::Int),
    ];
    if step.for_each.is_some() {
        fields.push(("items", Type::list(Type::Any)));
    }
    Type::closed(fields)
}

/// What is known of the result of a step whose kind says it.
pub(super) fn result_type(kind: &Kind) -> Type {
    match kind {
        Kind::WaitSignal(step) => step.schema.as_ref().map(Type::from_schema).unwrap_or_default(),
        Kind::Workflow(step) if !step.wait => Type::closed([("run_id", Type::String)]),
        _ => Type::Any,
    }
}

/// The names that every expression has.
pub(super) fn of_the_run(input: Option<&serde_json::Value>) -> Vec<(&'static str, Type)> {
    let run = Type::closed([
        ("id", Type::String),
        ("name", Type::String),
        ("version", Type::Int),
        ("labels", Type::open([])),
        ("started_at", Type::Timestamp),
    ]);
    vec![("input", input.map(Type::from_schema).unwrap_or_default()), ("run", run), ("now", Type::Timestamp)]
}

/// The part of a type that these paths read. A path that leads to nothing keeps its surroundings whole, for the
/// message about it.
pub(super) fn narrow(ty: &Type, paths: &[&[String]]) -> Type {
    let Type::Object { fields, open } = ty else { return bounded(ty) };
    let mut by_name: BTreeMap<&String, Vec<&[String]>> = BTreeMap::new();
    for path in paths {
        match path.split_first() {
            Some((first, rest)) if fields.contains_key(first) => by_name.entry(first).or_default().push(rest),
            Some(_) if *open => {}
            _ => return bounded(ty),
        }
    }
    let read = by_name.into_iter().filter_map(|(name, below)| Some((name.clone(), narrow(fields.get(name)?, &below))));
    Type::Object { fields: read.collect(), open: *open }
}

/// The type, or anything if it is large; of a large object the outer fields remain.
fn bounded(ty: &Type) -> Type {
    if parts(ty, MOST_PARTS) <= MOST_PARTS {
        return ty.clone();
    }
    match ty {
        Type::Object { fields, open } if fields.len() <= MOST_PARTS => {
            let shallow =
                fields.iter().map(|(name, ty)| (name.clone(), if parts(ty, 1) > 1 { Type::Any } else { ty.clone() }));
            Type::Object { fields: shallow.collect(), open: *open }
        }
        Type::Object { fields, open: false } => {
            let names = fields.keys().map(|name| (name.clone(), Type::Any));
            Type::Object { fields: names.collect(), open: false }
        }
        _ => Type::Any,
    }
}

/// How many parts a type has; counts no further than just beyond `most`.
fn parts(ty: &Type, most: usize) -> usize {
    match ty {
        Type::List(of) => 1 + parts(of, most),
        Type::Object { fields, .. } => {
            let mut sum = 1;
            for ty in fields.values() {
                if sum > most {
                    break;
                }
                sum += parts(ty, most);
            }
            sum
        }
        _ => 1,
    }
}
