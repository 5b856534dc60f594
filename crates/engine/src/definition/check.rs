//! Checks what a definition's parts say of each other: circles, what expressions may name and which types they have,
//! compensations in loops, workflows that start themselves.

mod names;
mod order;

use std::collections::HashSet;

use muster_expr::{Expr, Fault, Template, Type};
use serde_json::Value;

use self::{
    names::{Env, Known, Layer, Sight, of_the_run, result_type},
    order::Order,
};
use super::{
    FaultCode,
    faults::{Faults, join},
    model::{Definition, DelayStep, ForEach, JobStep, Kind, Scope, Step},
};

/// The most iterations of a loop around a compensation: every one that was done is undone.
pub(super) const MOST_UNDONE: u32 = 100;

/// Notes every fault. `own` is the workflow's own name, if it is known.
pub(super) fn definition(given: &Definition, own: Option<&str>, faults: &mut Faults<'_>) {
    let mut ids = HashSet::new();
    collect_ids(&given.steps, &mut ids);
    let mut check = Check { faults, own, ids };
    let run = Env { outer: None, layer: Layer::Values(of_the_run(given.input.as_ref())) };
    if let Some(key) = given.concurrency.as_ref().and_then(|concurrency| concurrency.key.as_ref()) {
        check.expr(key, "/concurrency/key", &run);
    }
    let order = Order::of(&given.steps);
    let known = Known::new(&given.steps, &order);
    check.scope(&known, "/steps", &run, None);
    if let Some(output) = &given.output {
        check.template(output, "/output", &Env::within(&run, Layer::Steps(&known, None)));
    }
}

fn collect_ids<'a>(scope: &'a Scope, ids: &mut HashSet<&'a str>) {
    for step in &scope.steps {
        ids.insert(&step.id);
        step.kind.scopes().into_iter().for_each(|scope| collect_ids(scope, ids));
    }
}

/// The scopes of a step with their pointers.
fn scopes_at<'a>(kind: &'a Kind, at: &str) -> Vec<(String, &'a Scope)> {
    match kind {
        Kind::Switch(branches) => {
            let field = |else_: bool| if else_ { "else" } else { "steps" };
            let at = |n: usize, else_| format!("{at}/switch/{n}/{}", field(else_));
            branches.iter().enumerate().map(|(n, b)| (at(n, b.when.is_none()), &b.steps)).collect()
        }
        Kind::Parallel(step) => {
            let at = format!("{at}/parallel/branches");
            step.branches.iter().map(|(name, scope)| (join(&at, name), scope)).collect()
        }
        Kind::Loop(step) => vec![(format!("{at}/loop/steps"), &step.steps)],
        Kind::Steps(scope) => vec![(format!("{at}/steps"), scope)],
        _ => Vec::new(),
    }
}

struct Check<'c, 'n> {
    faults: &'c mut Faults<'n>,
    own: Option<&'c str>,
    /// The ids of all steps, whatever their scope.
    ids: HashSet<&'c str>,
}

impl Check<'_, '_> {
    /// Checks a scope. `loops` is the largest `max` of the loops around it.
    fn scope(&mut self, known: &Known<'_>, at: &str, outer: &Env<'_>, loops: Option<u32>) {
        self.circles(known, at);
        for place in known.order.steps.iter().copied() {
            let Some(step) = known.scope.steps.get(place) else { continue };
            let env = Env::within(outer, Layer::Steps(known, Some(place)));
            let result = self.step(step, &format!("{at}/{place}"), &env, loops);
            if let Some(cell) = known.results.get(place) {
                // A scope is checked once, so the cell is empty.
                cell.get_or_init(|| result);
            }
        }
    }

    fn circles(&mut self, known: &Known<'_>, at: &str) {
        for circle in &known.order.circles {
            let [first, ..] = circle.as_slice() else { continue };
            let ids = circle.iter().chain(std::iter::once(first)).filter_map(|n| known.scope.steps.get(*n));
            let path: Vec<&str> = ids.map(|step| step.id.as_str()).take(20).collect();
            let message = format!("steps need each other in a circle: {}", path.join(" needs "));
            self.faults.add(&format!("{at}/{first}/needs"), FaultCode::Cycle, message);
        }
    }

    /// Checks a step and all that it holds; returns what is known of its result.
    fn step(&mut self, step: &Step, at: &str, env: &Env<'_>, loops: Option<u32>) -> Type {
        if let Some(when) = &step.when {
            self.condition(when, &format!("{at}/when"), env);
        }
        let item = step.for_each.as_ref().map(|for_each| self.items(for_each, at, env));
        let inner = item.unwrap_or_default();
        let inner = Env::within(env, Layer::Values(inner));
        let result = self.kind(step, at, &inner, loops);
        let own = Env::within(&inner, Layer::Own(step, result.clone()));
        if let Some(job) = step.compensate.as_ref().and_then(|undo| undo.job.as_ref()) {
            self.job(job, &format!("{at}/compensate/job"), &own);
        }
        if let (Some(_), Some(max)) = (&step.compensate, loops.filter(|max| *max > MOST_UNDONE)) {
            let message = format!("`compensate` inside a loop needs a `max` of at most {MOST_UNDONE}, not {max}");
            self.faults.add_key(&format!("{at}/compensate"), FaultCode::InvalidValue, message);
        }
        result
    }

    /// Checks the list of a for-each; returns the names that its items add.
    fn items<'s>(&mut self, for_each: &'s ForEach, at: &str, env: &Env<'_>) -> Vec<(&'s str, Type)> {
        let at = format!("{at}/for_each/items");
        let item = match self.expr(&for_each.items, &at, env) {
            Type::List(of) => *of,
            Type::Any => Type::Any,
            other => {
                self.wrong_type(&at, &format!("`items` must be a list, not {}", a(&other)));
                Type::Any
            }
        };
        let mut names = vec![("index", Type::Int), ("item", item.clone())];
        if for_each.name != "item" {
            names.push((&for_each.name, item));
        }
        names
    }

    /// Checks what a step does, and `collect`, which sees the step's own steps.
    fn kind(&mut self, step: &Step, at: &str, env: &Env<'_>, loops: Option<u32>) -> Type {
        let mut result = result_type(&step.kind);
        let nested: Vec<(String, Order, &Scope)> =
            scopes_at(&step.kind, at).into_iter().map(|(at, scope)| (at, Order::of(scope), scope)).collect();
        let known: Vec<(&str, Known<'_>)> =
            nested.iter().map(|(at, order, scope)| (at.as_str(), Known::new(scope, order))).collect();
        let state = Env::within(env, Layer::Values(vec![("state", Type::Any), ("index", Type::Int)]));
        let (inside, loops) = match &step.kind {
            Kind::Loop(inner) => (&state, Some(loops.unwrap_or(0).max(inner.max))),
            _ => (env, loops),
        };
        for (at, known) in &known {
            self.scope(known, at, inside, loops);
        }
        match &step.kind {
            Kind::Job(job) => self.job(job, &format!("{at}/job"), env),
            Kind::Approval(step) => {
                self.template(&step.title, &format!("{at}/approval/title"), env);
                self.maybe(step.show.as_ref(), &format!("{at}/approval/show"), env);
            }
            Kind::Delay(DelayStep::Ms(ms)) => self.span(ms, &format!("{at}/delay/ms"), env),
            Kind::Delay(DelayStep::Until(until)) => self.moment(until, &format!("{at}/delay/until"), env),
            Kind::WaitSignal(_) | Kind::Parallel(_) | Kind::Steps(_) => {}
            Kind::Set(template) => result = self.template(template, &format!("{at}/set"), env),
            Kind::Switch(branches) => {
                for (n, branch) in branches.iter().enumerate() {
                    if let Some(when) = &branch.when {
                        self.condition(when, &format!("{at}/switch/{n}/when"), env);
                    }
                }
            }
            Kind::Loop(inner) => {
                self.maybe(inner.init.as_ref(), &format!("{at}/loop/state/init"), env);
                if let Some((_, known)) = known.first() {
                    let after = Env::within(&state, Layer::Steps(known, None));
                    self.maybe(inner.next.as_ref(), &format!("{at}/loop/state/next"), &after);
                    self.condition(&inner.until, &format!("{at}/loop/until"), &after);
                }
            }
            Kind::Workflow(inner) => {
                if self.own.is_some_and(|own| own == inner.name) {
                    let message = format!("the workflow `{}` starts itself", inner.name);
                    self.faults.add(&format!("{at}/workflow/name"), FaultCode::SelfCall, message);
                }
                self.maybe(inner.input.as_ref(), &format!("{at}/workflow/input"), env);
            }
            Kind::Notify(inner) => self.maybe(inner.data.as_ref(), &format!("{at}/notify/data"), env),
            Kind::Fail { message, .. } => {
                self.template(message, &format!("{at}/fail/message"), env);
            }
        }
        if let Some(collect) = step.for_each.as_ref().and_then(|for_each| for_each.collect.as_ref()) {
            let own = Env::within(env, Layer::Own(step, result.clone()));
            let at = format!("{at}/for_each/collect");
            match known.as_slice() {
                [(_, only)] => self.expr(collect, &at, &Env::within(&own, Layer::Steps(only, None))),
                _ => self.expr(collect, &at, &own),
            };
        }
        result
    }

    fn job(&mut self, job: &JobStep, at: &str, env: &Env<'_>) {
        self.maybe(job.payload.as_ref(), &format!("{at}/payload"), env);
        self.maybe(job.concurrency_key.as_ref(), &format!("{at}/concurrency_key"), env);
        for (key, value) in &job.labels {
            self.template(value, &join(&format!("{at}/labels"), key), env);
        }
        if let Some(delay) = &job.delay_ms {
            self.span(delay, &format!("{at}/delay_ms"), env);
        }
    }

    fn condition(&mut self, expr: &Expr, at: &str, env: &Env<'_>) {
        let ty = self.expr(expr, at, env);
        if !matches!(ty, Type::Bool | Type::Any) {
            self.wrong_type(at, &format!("a condition must be true or false, not {}", a(&ty)));
        }
    }

    fn span(&mut self, template: &Template, at: &str, env: &Env<'_>) {
        let ty = self.template(template, at, env);
        if !matches!(ty, Type::Int | Type::Uint | Type::Any) {
            self.wrong_type(at, &format!("milliseconds must be a whole number, not {}", a(&ty)));
        }
    }

    fn moment(&mut self, template: &Template, at: &str, env: &Env<'_>) {
        let ty = self.template(template, at, env);
        if !matches!(ty, Type::Timestamp | Type::String | Type::Any) {
            self.wrong_type(at, &format!("`until` must be a time, not {}", a(&ty)));
        }
    }

    fn wrong_type(&mut self, at: &str, message: &str) {
        self.faults.add(at, FaultCode::Expression, message);
    }

    fn maybe(&mut self, template: Option<&Template>, at: &str, env: &Env<'_>) {
        if let Some(template) = template {
            self.template(template, at, env);
        }
    }

    /// Checks a bare expression; returns its type.
    fn expr(&mut self, expr: &Expr, at: &str, env: &Env<'_>) -> Type {
        if self.faults.full() {
            return Type::Any;
        }
        let mut names = self.names(&[expr], env);
        names.with_ref("steps", self.steps(&[(at.to_owned(), expr.source(), expr)], env));
        match expr.check(&names) {
            Ok(ty) => ty,
            Err(faults) => {
                faults.iter().for_each(|fault| self.faults.add_expr(at, fault));
                Type::Any
            }
        }
    }

    /// Checks a template; returns the type of its value.
    fn template(&mut self, template: &Template, at: &str, env: &Env<'_>) -> Type {
        if template.is_constant() {
            return type_of(template.value(), "", &|_| None);
        }
        if self.faults.full() {
            return Type::Any;
        }
        let found: Vec<(&str, &Expr)> = template.expressions().collect();
        let exprs: Vec<&Expr> = found.iter().map(|(_, expr)| *expr).collect();
        let mut names = self.names(&exprs, env);
        let text = |pointer: &str| template.value().pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let placed: Vec<_> = found.iter().map(|(p, expr)| (format!("{at}{p}"), text(p), *expr)).collect();
        names.with_ref("steps", self.steps(&placed, env));
        if let Err(faults) = template.check(&names) {
            faults.iter().for_each(|fault| self.faults.add_template(at, fault));
            return Type::Any;
        }
        let only = |pointer: &str| {
            let mut here = found.iter().filter(|(p, _)| *p == pointer);
            let expr = here.next()?.1;
            let text = text(pointer).trim();
            let alone = here.next().is_none() && text.starts_with("${{") && text.ends_with("}}");
            Some(if alone { expr.check(&names).unwrap_or_default() } else { Type::String })
        };
        type_of(template.value(), "", &only)
    }

    fn names(&self, exprs: &[&Expr], env: &Env<'_>) -> muster_expr::Names {
        let paths: Vec<&[String]> = exprs.iter().flat_map(|expr| expr.reads().paths()).collect();
        env.names(&paths)
    }

    /// Judges each step that the expressions read, and returns the type of `steps` for them. What is not visible gets
    /// its fault here and is anything for the check of the expression, so that one mistake is one fault.
    fn steps(&mut self, exprs: &[(String, &str, &Expr)], env: &Env<'_>) -> Type {
        let mut fields = std::collections::BTreeMap::new();
        for (at, text, expr) in exprs {
            for path in expr.reads().paths().filter(|path| path.first().is_some_and(|name| name == "steps")) {
                let Some(id) = path.get(1) else {
                    let message = "`steps` is not a value by itself: name a step, as in `steps.charge.result`";
                    self.faults.add_expr(at, &place(text, "steps", message.into()));
                    return Type::Any;
                };
                if fields.contains_key(id) {
                    continue;
                }
                let ty = match env.sight(id) {
                    Sight::Visible(ty) => names::narrow(&ty, &[&path[2..]]),
                    unseen => {
                        self.unseen(id, &unseen, at, text, env);
                        Type::Any
                    }
                };
                fields.insert(id.clone(), ty);
            }
        }
        Type::Object { fields, open: false }
    }

    fn unseen(&mut self, id: &str, sight: &Sight, at: &str, text: &str, env: &Env<'_>) {
        let (code, message) = match sight {
            Sight::NotNeeded => {
                (FaultCode::StepNotVisible, format!("the step `{id}` may not have ended here: add it to `needs`"))
            }
            Sight::Around => {
                (FaultCode::StepNotVisible, format!("the step `{id}` has no result yet: this is a part of it"))
            }
            Sight::Elsewhere if self.ids.contains(id) => (
                FaultCode::StepNotVisible,
                format!("the step `{id}` is inside another step: from here, only that one's result can be read"),
            ),
            _ => (FaultCode::UnknownStep, format!("there is no step `{id}`{}", env.hint(id))),
        };
        self.faults.add_expr_as(at, code, &place(text, &format!("steps.{id}"), message));
    }
}

/// A fault at the first occurrence of `what` in a text, or at the text's start.
fn place(text: &str, what: &str, message: String) -> Fault {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let whole = |at: &usize| {
        let before = text.get(..*at).and_then(|text| text.chars().next_back());
        let after = text.get(at + what.len()..).and_then(|text| text.chars().next());
        !is_word(before) && !is_word(after)
    };
    let at = text.match_indices(what).map(|(at, _)| at).find(whole);
    let at = at.or_else(|| text.find("steps")).unwrap_or(0);
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Fault { line: u32::try_from(line).unwrap_or(1), column: u32::try_from(column).unwrap_or(1), message }
}

/// The type of a template's value. `string` says it of strings that hold expressions.
fn type_of(value: &Value, at: &str, string: &dyn Fn(&str) -> Option<Type>) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Number(n) if n.is_i64() => Type::Int,
        Value::Number(n) if n.is_u64() => Type::Uint,
        Value::Number(_) => Type::Double,
        Value::String(_) => string(at).unwrap_or(Type::String),
        Value::Array(_) => Type::list(Type::Any),
        Value::Object(fields) => {
            let typed = |(name, value): (&String, &Value)| (name.clone(), type_of(value, &join(at, name), string));
            Type::Object { fields: fields.iter().map(typed).collect(), open: false }
        }
    }
}

/// A type for a sentence.
fn a(ty: &Type) -> String {
    match ty {
        Type::Null => "null".into(),
        Type::Int => "an int".into(),
        other => format!("a {other}"),
    }
}
