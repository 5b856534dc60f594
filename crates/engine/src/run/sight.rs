//! What an expression sees: the values of the names that it reads, and of no others.

use std::{collections::BTreeSet, sync::Arc};

use muster_domain::Time;
use muster_expr::{Absent, EvalError, Expr, Limits, Template, Values};
use serde_json::{Value, json};

use super::{
    document::Lack,
    field::Field,
    place::Place,
    plan::{Node, repeats},
    records::{PAGE, RunError, StepRecord},
    state::StepState,
    work::{Done, Work},
};
use crate::{definition::Kind, value};

/// Where an expression stands.
#[derive(Clone, Debug)]
pub(crate) struct Sight<'s> {
    /// The step that it belongs to; `None` for the run's output.
    node: Option<usize>,
    /// Items, attempts and iterations around it, from the outside in.
    at: Vec<u32>,
    /// The step itself as it ended, where the expression may see it.
    own: Option<&'s Own>,
    /// The state of the loop, where it is not the stored one.
    state: Option<Arc<Value>>,
    /// `now`, where it is not that of the event.
    now: Option<Time>,
}

/// How the step itself ended.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) place: Place,
    pub(crate) state: StepState,
    pub(crate) attempts: u32,
    pub(crate) result: Option<Arc<Value>>,
    pub(crate) truncated: bool,
    pub(crate) error: Option<RunError>,
}

impl<'s> Sight<'s> {
    /// From a step or item.
    pub(crate) fn of(place: &Place) -> Sight<'s> {
        Sight { node: Some(place.node), at: place.at.clone(), own: None, state: None, now: None }
    }

    /// From the outermost scope, after its end.
    pub(crate) fn outside() -> Sight<'s> {
        Sight { node: None, at: Vec::new(), own: None, state: None, now: None }
    }

    /// From inside the scope that a step or item holds.
    pub(crate) fn within(mut self, at: &[u32]) -> Sight<'s> {
        self.at = at.to_vec();
        self
    }

    pub(crate) fn own(mut self, own: &'s Own) -> Sight<'s> {
        self.own = Some(own);
        self
    }

    pub(crate) fn state(mut self, state: Arc<Value>) -> Sight<'s> {
        self.state = Some(state);
        self
    }

    pub(crate) fn at_time(mut self, now: Time) -> Sight<'s> {
        self.now = now.some();
        self
    }
}

/// An evaluation: a value, or the error that the step fails with.
pub(crate) type Evaluated<T> = Done<Result<T, RunError>>;

fn failed(error: &EvalError) -> RunError {
    RunError::new(error.code(), error.to_string())
}

/// A value that was computed, if the run can hold it.
fn held(value: Value) -> Result<Value, RunError> {
    match value::check(&value) {
        Ok(()) => Ok(value),
        Err(fault) => Err(RunError::new("expression_error", format!("the value {fault}"))),
    }
}

impl Work<'_> {
    /// The value of a template.
    pub(crate) fn template(&self, template: &Template, sight: &Sight<'_>) -> Evaluated<Value> {
        if template.is_constant() {
            return Ok(held(template.value().clone()));
        }
        let values = self.values(template.expressions().map(|(_, expr)| expr), sight)?;
        Ok(template.evaluate(&values, &Limits::default()).map_err(|e| failed(&e)).and_then(held))
    }

    /// The value of a template that may be absent.
    pub(crate) fn maybe(&self, template: Option<&Template>, sight: &Sight<'_>) -> Evaluated<Option<Value>> {
        template.map_or(Ok(Ok(None)), |template| Ok(self.template(template, sight)?.map(Some)))
    }

    /// The value of an expression.
    pub(crate) fn expr(&self, expr: &Expr, sight: &Sight<'_>) -> Evaluated<Value> {
        let values = self.values([expr], sight)?;
        Ok(expr.evaluate(&values, &Limits::default()).map_err(|e| failed(&e)).and_then(held))
    }

    /// The value of a condition.
    pub(crate) fn condition(&self, expr: &Expr, sight: &Sight<'_>) -> Evaluated<bool> {
        let values = self.values([expr], sight)?;
        Ok(expr.evaluate_bool(&values, &Limits::default()).map_err(|e| failed(&e)))
    }

    fn values<'e>(&self, exprs: impl IntoIterator<Item = &'e Expr>, sight: &Sight<'_>) -> Done<Values> {
        let mut values = Values::new();
        let paths: BTreeSet<&[String]> = exprs.into_iter().flat_map(|expr| expr.reads().paths()).collect();
        for path in paths {
            let Some(name) = path.first() else { continue };
            match name.as_str() {
                "input" => values.set_shared(&["input"], self.json(&Field::Input)?.unwrap_or_default()),
                "now" => values.set_time(&["now"], millis(sight.now.unwrap_or(self.now))),
                "run" => self.see_run(&mut values),
                "steps" => {
                    if let Some(id) = path.get(1) {
                        self.see_step(&mut values, id, path.get(2).map(String::as_str), sight)?;
                    }
                }
                "index" => self.index(sight).into_iter().for_each(|index| values.set("index", json!(index))),
                name => {
                    let found = if name == "state" { self.loop_state(sight)? } else { self.item(name, sight)? };
                    found.into_iter().for_each(|value| values.set_shared(&[name], value));
                }
            }
        }
        Ok(values)
    }

    fn see_run(&self, values: &mut Values) {
        values.set_at(&["run", "id"], json!(self.about.run.to_string()));
        values.set_at(&["run", "name"], json!(self.about.workflow));
        values.set_at(&["run", "version"], json!(self.about.version));
        values.set_at(&["run", "labels"], json!(self.about.labels));
        values.set_time(&["run", "started_at"], millis(self.head.started));
    }

    /// The steps around an expression that repeat it, from the inside out.
    fn around(&self, sight: &Sight<'_>) -> impl Iterator<Item = (usize, &Node)> {
        let plan = self.plan;
        let outer = move |node: usize| plan.scope(plan.node(node).scope).owner.map(|(owner, _)| owner);
        std::iter::successors(sight.node, move |&node| outer(node)).map(move |node| (node, plan.node(node)))
    }

    /// The number of the iteration of a loop around an expression, and where in the address it stands.
    fn iteration(&self, node: usize, sight: &Sight<'_>) -> Option<(usize, u32)> {
        let step = self.plan.step(node);
        let body = self.plan.levels(node) + usize::from(step.for_each.is_some());
        let number = sight.at.get(body + usize::from(repeats(step)))?;
        matches!(step.kind, Kind::Loop(_)).then_some((body, *number))
    }

    fn index(&self, sight: &Sight<'_>) -> Option<u32> {
        self.around(sight).find_map(|(node, plan)| {
            let item = || plan.step().for_each.as_ref().and_then(|_| sight.at.get(self.plan.levels(node)).copied());
            self.iteration(node, sight).map(|(_, number)| number).or_else(item)
        })
    }

    fn item(&self, name: &str, sight: &Sight<'_>) -> Done<Option<Arc<Value>>> {
        for (node, plan) in self.around(sight) {
            let Some(each) = plan.step().for_each.as_ref() else { continue };
            let levels = self.plan.levels(node);
            let Some(&item) = sight.at.get(levels) else { continue };
            if name == "item" || each.name == name {
                return self.item_value(&Place::new(node, &sight.at[..levels]), item).map(Some);
            }
        }
        Ok(None)
    }

    fn loop_state(&self, sight: &Sight<'_>) -> Done<Option<Arc<Value>>> {
        if let Some(state) = &sight.state {
            return Ok(Some(state.clone()));
        }
        let around = self.around(sight).find_map(|(node, _)| Some((node, self.iteration(node, sight)?.0)));
        let Some((node, body)) = around else { return Ok(None) };
        let holder = Place::new(node, &sight.at[..body]);
        Ok(Some(self.json(&Field::LoopState(holder))?.unwrap_or_default()))
    }

    fn see_step(&self, values: &mut Values, id: &str, field: Option<&str>, sight: &Sight<'_>) -> Done {
        let Some(node) = self.plan.find(id) else { return Ok(()) };
        let wants = |name: &str| field.is_none_or(|field| field == name);
        let levels = self.plan.levels(node);
        let Some(at) = sight.at.get(..levels) else { return Ok(()) };
        let own = sight.own.filter(|own| own.place.node == node && own.place.at.starts_with(at));
        let place = Place::new(node, at);
        let (state, attempts, error) = match own {
            Some(own) => (own.state, own.attempts, own.error.clone()),
            None => {
                let record = self.step(&place)?;
                (record.state, record.attempt, record.error.as_deref().cloned())
            }
        };
        let path = |name| ["steps", id, name];
        let missing = |what: &str| Absent::Missing(format!("the step `{id}` is {state}{what}"));
        if wants("state") {
            values.set_at(&path("state"), json!(state.as_str()));
        }
        if wants("attempts") {
            values.set_at(&path("attempts"), json!(attempts));
        }
        if wants("error") {
            match &error {
                Some(error) => values.set_at(&path("error"), shown(error)),
                None => values.set_absent(&path("error"), missing("")),
            }
        }
        let each = own.is_none() && self.plan.is_each(&place);
        if wants("items") && each {
            values.set_at(&path("items"), self.items(&place)?);
        }
        if !wants("result") {
            return Ok(());
        }
        let result = match own {
            Some(own) => known(own.state, own.truncated, own.result.clone()),
            None if each => self.results(&place)?,
            None => {
                let record = self.step(&place)?;
                known(record.state, record.truncated, self.result(&place, record)?)
            }
        };
        match result {
            Ok(value) => values.set_shared(&path("result"), value),
            Err(Unknown::Failed) => values.set_absent(&path("result"), missing(", and only a success has a result")),
            Err(Unknown::InJobs) => {
                let why = ": the results of its items stay in their jobs, and only `collect` keeps something of them";
                values.set_absent(&path("result"), missing(why));
            }
            Err(Unknown::Truncated) => {
                let why = format!(
                    "the result is larger than 256 KiB, nests deeper than {} levels or has a reserved name; see its job",
                    value::MOST_LEVELS
                );
                values.set_absent(&path("result"), Absent::Truncated(why));
            }
        }
        Ok(())
    }

    /// The result of a step or item, if one is kept.
    pub(crate) fn result(&self, place: &Place, record: &StepRecord) -> Done<Option<Arc<Value>>> {
        if !record.kept {
            return Ok(None);
        }
        self.json(&Field::Result(place.clone()))
    }

    /// The results of a for-each's items, in their order.
    fn results(&self, each: &Place) -> Done<Result<Arc<Value>, Unknown>> {
        let record = self.step(each)?;
        if record.state != StepState::Succeeded {
            return Ok(Err(Unknown::Failed));
        }
        let by_hand = self.result(each, record)?;
        if let Some(result) = by_hand {
            return Ok(Ok(result));
        }
        let step = self.plan.step(each.node);
        let total = record.each.as_ref().map_or(0, |e| e.total);
        let collects = step.for_each.as_ref().is_some_and(|e| e.collect.is_some());
        if total > 0 && !collects && matches!(step.kind, Kind::Job(_)) {
            return Ok(Err(Unknown::InJobs));
        }
        let values = (0..total).map(|item| Ok(self.kept_of(&each.with(item))?.as_deref().cloned().unwrap_or_default()));
        Ok(Ok(Arc::new(Value::Array(values.collect::<Result<_, Lack>>()?))))
    }

    /// What is kept of an item: what `collect` kept, or the result of what is not a job.
    pub(crate) fn kept_of(&self, item: &Place) -> Done<Option<Arc<Value>>> {
        let record = self.step(item)?;
        if record.state != StepState::Succeeded {
            return Ok(None);
        }
        match self.plan.step(item.node).for_each.as_ref().is_some_and(|e| e.collect.is_some()) {
            true => self.json(&Field::Collected(item.clone())),
            false => self.result(item, record),
        }
    }

    /// The items of a for-each as expressions see them.
    fn items(&self, each: &Place) -> Done<Value> {
        let total = self.step(each)?.each.as_ref().map_or(0, |e| e.total);
        let mut items = Vec::with_capacity(total as usize);
        for number in 0..total {
            let place = each.with(number);
            let record = self.step(&place)?;
            let mut item = json!({"index": number, "state": record.state.as_str()});
            if let Some(error) = &record.error {
                item["error"] = shown(error);
            }
            if let Some(value) = self.kept_of(&place)? {
                item["result"] = value.as_ref().clone();
            }
            items.push(item);
        }
        Ok(Value::Array(items))
    }
}

/// Why a result has no value.
enum Unknown {
    Failed,
    InJobs,
    Truncated,
}

fn known(state: StepState, truncated: bool, value: Option<Arc<Value>>) -> Result<Arc<Value>, Unknown> {
    match (state, truncated) {
        (StepState::Succeeded, false) => Ok(value.unwrap_or_default()),
        (StepState::Succeeded, true) => Err(Unknown::Truncated),
        _ => Err(Unknown::Failed),
    }
}

/// An error as expressions and answers show it.
pub(crate) fn shown(error: &RunError) -> Value {
    let mut shown = json!({"code": error.code, "message": error.message});
    if !error.step.is_empty() {
        shown["step"] = json!(error.step);
    }
    shown
}

fn millis(time: Time) -> i64 {
    i64::try_from(time.0 / 1000).unwrap_or(i64::MAX)
}

/// How many pages the items of a for-each take.
pub(crate) fn pages(total: u32) -> u32 {
    total.div_ceil(PAGE)
}
