//! Reads scopes and steps: what every kind of step has. `kinds` has one reader for each kind.

mod job;
mod kinds;

pub(in crate::definition) use self::kinds::MOST_ITERATIONS;

use std::collections::HashMap;

use muster_domain::{
    Labels,
    job::bounds,
    topic::{MAX_LABELS, check_label},
};
use muster_expr::Expr;

use super::{
    fields::{Field, Object, listed},
    one_of, read_retry,
};
use crate::definition::{
    FaultCode,
    faults::{Faults, suggestion},
    model::{Compensate, CompensateWhen, ForEach, Kind, OnError, RunIf, Scope, Step, Tolerate},
};

/// The most steps of a definition, in all its scopes.
pub(in crate::definition) const MOST_STEPS: usize = 1_000;
/// How many steps may enclose a step.
pub(in crate::definition) const MOST_NESTING: usize = 8;
/// The most items of a for-each.
pub(in crate::definition) const MOST_ITEMS: u32 = 10_000;
/// How many items of a for-each run at once unless it says otherwise.
pub(in crate::definition) const USUAL_PARALLEL: u32 = 20;
/// The longest id of a step.
const LONGEST_ID: usize = 64;

/// Reads the definition's own scope and all that it holds.
pub(super) fn outer(field: &Field<'_>, faults: &mut Faults<'_>) -> Scope {
    let mut reader = Reader { faults, steps: 0, depth: 0, ids: HashMap::new(), unknown: Vec::new() };
    let scope = reader.scope(field);
    reader.name_unknown();
    scope
}

/// Reads steps, and knows what holds for all of them together.
struct Reader<'r, 'n> {
    faults: &'r mut Faults<'n>,
    steps: usize,
    depth: usize,
    /// The ids so far.
    ids: HashMap<String, String>,
    /// Needs that their own scope lacks: the pointer, the id, the ids of the scope.
    unknown: Vec<(String, String, Vec<String>)>,
}

impl Reader<'_, '_> {
    /// Reads a scope of the step that is being read.
    fn nested(&mut self, field: &Field<'_>) -> Scope {
        if self.depth == MOST_NESTING {
            let message = format!("steps nest deeper than {MOST_NESTING} levels");
            self.faults.add(&field.at, FaultCode::TooDeep, message);
            return Scope::default();
        }
        self.depth += 1;
        let scope = self.scope(field);
        self.depth -= 1;
        scope
    }

    fn scope(&mut self, field: &Field<'_>) -> Scope {
        let Some(items) = field.list(self.faults) else { return Scope::default() };
        if items.is_empty() {
            self.faults.add(&field.at, FaultCode::InvalidValue, "at least one step should be here");
        }
        let mut scope = Scope::default();
        let mut needs = Vec::new();
        for item in items {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                let message = format!("the definition has more than {MOST_STEPS} steps");
                // Once: the place of the first step too many.
                if self.steps == MOST_STEPS + 1 {
                    self.faults.add(&item.at, FaultCode::TooManySteps, message);
                }
                break;
            }
            // An item that is no step keeps its place, so that the pointers of those behind it are right.
            let (step, its) = match item.object(self.faults) {
                Some(o) => self.step(o),
                None => (stand_in(), Vec::new()),
            };
            scope.steps.push(step);
            needs.push(its);
        }
        self.resolve(&mut scope, needs);
        scope
    }

    /// Turns the ids of needs into places.
    fn resolve(&mut self, scope: &mut Scope, needs: Vec<Vec<(String, String)>>) {
        let ids: Vec<String> = scope.steps.iter().map(|step| step.id.clone()).collect();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (n, id) in ids.iter().enumerate() {
            places.entry(id).or_insert(n);
        }
        for (n, its) in needs.into_iter().enumerate() {
            let Some(step) = scope.steps.get_mut(n) else { continue };
            for (at, id) in its {
                match places.get(id.as_str()) {
                    Some(place) if *place == n || id == step.id => {
                        self.faults.add(&at, FaultCode::Cycle, format!("the step `{id}` needs itself"));
                    }
                    Some(place) if step.needs.contains(place) => {
                        self.faults.add(&at, FaultCode::InvalidValue, format!("`needs` names `{id}` twice"));
                    }
                    Some(place) => step.needs.push(*place),
                    None => self.unknown.push((at, id, ids.clone())),
                }
            }
            step.needs.sort_unstable();
        }
    }

    /// Notes the needs that no scope, or another one, has.
    fn name_unknown(&mut self) {
        for (at, id, scope) in std::mem::take(&mut self.unknown) {
            let (code, message) = match self.ids.contains_key(&id) {
                true => (
                    FaultCode::StepNotVisible,
                    format!("the step `{id}` is in another scope; `needs` names steps of the same list"),
                ),
                false => {
                    let hint = suggestion(&id, scope.iter().map(String::as_str));
                    (FaultCode::UnknownStep, format!("there is no step `{}`{hint}", super::fields::short(&id)))
                }
            };
            self.faults.add(&at, code, message);
        }
    }

    fn step(&mut self, mut o: Object<'_>) -> (Step, Vec<(String, String)>) {
        let id = o.require("id", self.faults).and_then(|field| self.id(&field)).unwrap_or_default();
        let needs = o.take("needs").map(|field| self.needs(&field)).unwrap_or_default();
        let f = &mut *self.faults;
        let mut step = Step { id, ..stand_in() };
        let run_if = o.take("run_if").and_then(|x| x.word(f, &["success", "failure", "always"], RunIf::parse));
        step.run_if = run_if.unwrap_or_default();
        step.when = o.take("when").and_then(|field| field.expr(f));
        step.retry = o.take("retry").and_then(|field| read_retry(field, f));
        step.timeout_ms = o.take("timeout_ms").and_then(|field| field.integer(f, bounds::SPAN_MS));
        let on_error = o.take("on_error").and_then(|x| x.word(f, &["fail", "continue"], OnError::parse));
        step.on_error = on_error.unwrap_or_default();
        step.labels = o.take("labels").map(|field| labels(&field, MAX_LABELS, f)).unwrap_or_default();
        step.for_each = o.take("for_each").and_then(|field| for_each(field, f));
        let compensation = o.take("compensate");
        if let Some(kind) = self.kind(&mut o) {
            step.kind = kind;
        }
        step.compensate = compensation.and_then(|field| compensate(field, &step.kind, self.faults));
        o.finish(self.faults);
        (step, needs)
    }

    fn id(&mut self, field: &Field<'_>) -> Option<String> {
        let id = field.literal(self.faults)?;
        if !is_name(id) {
            let words = "must begin with a letter and consist of letters, digits and `_`, 64 at most";
            return field.invalid(self.faults, words);
        }
        // Words of the expression language cannot be written behind a dot.
        if Expr::parse(&format!("steps.{id}.state")).is_err() {
            return field.invalid(self.faults, format_args!("must not be `{id}`, a word of the expression language"));
        }
        if let Some(first) = self.ids.get(id) {
            let message =
                format!("the id `{id}` is taken by the step at {first}; ids are unique in the whole definition");
            self.faults.add(&field.at, FaultCode::DuplicateId, message);
        } else {
            let step = field.at.strip_suffix("/id").unwrap_or(&field.at);
            self.ids.insert(id.to_owned(), step.to_owned());
        }
        Some(id.to_owned())
    }

    fn needs(&mut self, field: &Field<'_>) -> Vec<(String, String)> {
        let items = field.list(self.faults).unwrap_or_default();
        let id = |item: Field<'_>| item.literal(self.faults).map(|id| (item.at.clone(), id.to_owned()));
        items.into_iter().filter_map(id).collect()
    }

    /// Reads the one field that says what the step does.
    fn kind(&mut self, o: &mut Object<'_>) -> Option<Kind> {
        let given: Vec<_> = kinds::KINDS.iter().filter_map(|kind| Some((kind, o.verbatim(kind.name)?))).collect();
        if given.is_empty() {
            let names: Vec<&str> = kinds::KINDS.iter().map(|kind| kind.name).collect();
            let message = format!("the step does nothing: one of {} is missing", listed(&names));
            self.faults.add(o.at(), FaultCode::StepKind, message);
        }
        if let [(first, _), rest @ ..] = given.as_slice() {
            for (kind, field) in rest {
                let message = format!("a step does one thing: `{}` or `{}`", first.name, kind.name);
                self.faults.add_key(&field.at, FaultCode::StepKind, message);
            }
        }
        // All are read for the sake of their faults.
        let read: Vec<_> = given.into_iter().map(|(kind, field)| (kind.read)(self, field)).collect();
        read.into_iter().next().flatten()
    }
}

/// A step that does nothing, in place of one that could not be read. Its fault is noted.
fn stand_in() -> Step {
    Step {
        id: String::new(),
        needs: Vec::new(),
        when: None,
        run_if: RunIf::default(),
        retry: None,
        timeout_ms: None,
        on_error: OnError::default(),
        compensate: None,
        labels: Labels::new(),
        for_each: None,
        kind: Kind::Steps(Scope::default()),
    }
}

/// Whether a text can be the id of a step, the name of a branch, or of an item.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_ID
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Labels without expressions.
fn labels(field: &Field<'_>, most: usize, faults: &mut Faults<'_>) -> Labels {
    let pairs = field.pairs(faults).unwrap_or_default();
    if pairs.len() > most {
        field.invalid::<()>(faults, format_args!("has {} labels; at most {most} are taken", pairs.len()));
        return Labels::new();
    }
    let mut labels = Labels::new();
    for (key, value) in pairs {
        let Some(text) = value.literal(faults) else { continue };
        if let Err(why) = check_label(key, text) {
            value.invalid::<()>(faults, format_args!("is not allowed: {why}"));
        }
        labels.insert(key.to_owned(), text.to_owned());
    }
    labels
}

fn for_each(field: Field<'_>, faults: &mut Faults<'_>) -> Option<ForEach> {
    let mut o = field.object(faults)?;
    let items = o.require("items", faults).and_then(|field| field.expr(faults));
    let name = o.take("as").and_then(|field| item_name(&field, faults));
    let count = |field: Option<Field<'_>>, faults: &mut Faults<'_>| field?.small(faults, 1..=MOST_ITEMS);
    let max_parallel = count(o.take("max_parallel"), faults);
    let tolerate = o.take("tolerate").and_then(|field| tolerate(field, faults));
    let min_success = count(o.take("min_success"), faults);
    let collect = o.take("collect").and_then(|field| field.expr(faults));
    o.finish(faults);
    Some(ForEach {
        // The stand-in is never used: the fault is noted.
        items: items.or_else(|| Expr::parse("[]").ok())?,
        name: name.unwrap_or_else(|| "item".into()),
        max_parallel: max_parallel.unwrap_or(USUAL_PARALLEL),
        tolerate: tolerate.unwrap_or(Tolerate::Count(0)),
        min_success,
        collect,
    })
}

fn item_name(field: &Field<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let name = field.literal(faults)?;
    if !is_name(name) || Expr::parse(name).is_err() {
        return field.invalid(faults, "must be a name: a letter, then letters, digits and `_`, 64 at most");
    }
    if ["input", "steps", "run", "now", "state", "index"].contains(&name) {
        return field.invalid(faults, format_args!("must not be `{name}`, which means something else in expressions"));
    }
    Some(name.to_owned())
}

fn tolerate(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Tolerate> {
    let mut o = field.object(faults)?;
    let tolerate = match one_of(&mut o, ["count", "percent"], faults) {
        Some(("count", field)) => field.small(faults, 0..=MOST_ITEMS).map(Tolerate::Count),
        Some((_, field)) => field.small(faults, 0..=100).map(Tolerate::Percent),
        None => None,
    };
    o.finish(faults);
    tolerate
}

fn compensate(field: Field<'_>, kind: &Kind, faults: &mut Faults<'_>) -> Option<Compensate> {
    if let crate::definition::tree::What::Text(text) = &field.node.what {
        return match (text.value.as_str(), kind) {
            ("self", Kind::Workflow(step)) if step.wait => {
                Some(Compensate { job: None, when: CompensateWhen::Succeeded, retry: None })
            }
            ("self", Kind::Workflow(_)) => {
                field.invalid(faults, "can be `self` only if the step waits for the sub-run")
            }
            ("self", _) => field.invalid(faults, "can be `self` only on a `workflow` step"),
            _ => field.invalid(faults, "must be an object with a `job`, or `self` on a `workflow` step"),
        };
    }
    let mut o = field.object(faults)?;
    let job = o.require("job", faults).and_then(|field| job::read(field, faults));
    let when = o.take("when").and_then(|x| x.word(faults, &["succeeded", "started"], CompensateWhen::parse));
    let retry = o.take("retry").and_then(|field| read_retry(field, faults));
    o.finish(faults);
    Some(Compensate { job: Some(job?), when: when.unwrap_or_default(), retry })
}
