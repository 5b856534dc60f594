//! A definition as JSON again. Two texts mean the same if their canonical forms are equal: comments, aliases, the order
//! of fields and defaults that are written out make no difference.

use std::collections::BTreeMap;

use muster_domain::Labels;
use muster_expr::{Expr, Template};
use serde_json::{Map, Value, json};

use super::model::{
    ApprovalStep, Branch, Compensate, Concurrency, Defaults, Definition, DelayStep, ForEach, JobStep, Kind, LoopStep,
    Retry, Scope, Step, Tolerate, Wait, WaitSignalStep, WorkflowStep,
};

/// An object that is being written; what is absent or usual is left out.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(mut self, name: &str, value: Option<impl Into<Value>>) -> Fields {
        if let Some(value) = value {
            self.0.insert(name.into(), value.into());
        }
        self
    }

    fn unless<T: PartialEq>(self, name: &str, value: T, usual: &T) -> Fields
    where
        T: Into<Value>,
    {
        let given = (value != *usual).then_some(value);
        self.put(name, given)
    }

    fn word<T: Default + PartialEq>(self, name: &str, value: T, word: &'static str) -> Fields {
        self.put(name, (value != T::default()).then_some(word))
    }

    fn template(self, name: &str, value: Option<&Template>) -> Fields {
        self.put(name, value.map(|template| template.value().clone()))
    }

    fn expr(self, name: &str, value: Option<&Expr>) -> Fields {
        self.put(name, value.map(Expr::source))
    }

    fn done(self) -> Value {
        Value::Object(self.0)
    }
}

impl Definition {
    /// The definition as JSON, without what is usual. Reading it again gives an equal definition.
    pub fn to_json(&self) -> Value {
        let Defaults { retry, timeout_ms } = self.defaults;
        let defaults = Fields::default().put("retry", retry.and_then(of_retry)).put("timeout_ms", timeout_ms);
        Fields::default()
            .unless("description", self.description.clone(), &String::new())
            .put("input", self.input.clone())
            .put("timeout_ms", self.timeout_ms)
            .put("concurrency", self.concurrency.as_ref().map(of_concurrency))
            .word("on_failure", self.on_failure, self.on_failure.as_str())
            .put("defaults", Some(defaults.0).filter(|fields| !fields.is_empty()))
            .put("steps", Some(of_scope(&self.steps)))
            .template("output", self.output.as_ref())
            .done()
    }

    /// The text of [`to_json`](Definition::to_json) with the fields of every object in the order of their names.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        write_sorted(&self.to_json(), &mut out);
        out
    }
}

/// Definitions are equal if they mean the same.
impl PartialEq for Definition {
    fn eq(&self, other: &Definition) -> bool {
        self.canonical() == other.canonical()
    }
}

fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                write_sorted(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            // The map may keep another order, which another crate of the build can switch on.
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            for (n, (name, value)) in sorted.into_iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_sorted(value, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn of_concurrency(given: &Concurrency) -> Value {
    Fields::default()
        .expr("key", given.key.as_ref())
        .put("max", Some(given.max))
        .word("when_full", given.when_full, given.when_full.as_str())
        .done()
}

/// The form of retries that say something.
fn of_retry(retry: Retry) -> Option<Value> {
    let backoff = Fields::default()
        .put("initial_ms", retry.initial_ms)
        .put("factor", retry.factor)
        .put("max_ms", retry.max_ms)
        .put("jitter", retry.jitter);
    let fields = Fields::default()
        .put("max_attempts", retry.max_attempts)
        .put("backoff", Some(backoff.0).filter(|fields| !fields.is_empty()));
    Some(fields.0).filter(|fields| !fields.is_empty()).map(Value::Object)
}

fn of_scope(scope: &Scope) -> Value {
    let id = |place: &usize| scope.steps.get(*place).map(|step| step.id.as_str());
    Value::Array(scope.steps.iter().map(|step| of_step(step, step.needs.iter().filter_map(id).collect())).collect())
}

fn of_step(step: &Step, needs: Vec<&str>) -> Value {
    let kind = match &step.kind {
        Kind::Job(job) => of_job(job),
        Kind::Approval(approval) => of_approval(approval),
        Kind::Delay(DelayStep::Ms(ms)) => json!({"ms": ms.value()}),
        Kind::Delay(DelayStep::Until(until)) => json!({"until": until.value()}),
        Kind::WaitSignal(WaitSignalStep { name, timeout_ms, schema }) => Fields::default()
            .put("name", Some(name.as_str()))
            .put("timeout_ms", *timeout_ms)
            .put("schema", schema.clone())
            .done(),
        Kind::Set(template) => template.value().clone(),
        Kind::Switch(branches) => Value::Array(branches.iter().map(of_branch).collect()),
        Kind::Parallel(parallel) => {
            let branches = parallel.branches.iter().map(|(name, scope)| (name.clone(), of_scope(scope)));
            let wait = match parallel.wait {
                Wait::All => None,
                Wait::Any => Some(json!("any")),
                Wait::Count(n) => Some(json!(n)),
            };
            Fields::default().put("branches", Some(branches.collect::<Map<_, _>>())).put("wait", wait).done()
        }
        Kind::Loop(inner) => of_loop(inner),
        Kind::Workflow(WorkflowStep { name, version, input, wait }) => Fields::default()
            .put("name", Some(name.as_str()))
            .put("version", *version)
            .template("input", input.as_ref())
            .unless("wait", *wait, &true)
            .done(),
        Kind::Notify(notify) => Fields::default()
            .put("type", Some(notify.event_type.as_str()))
            .template("data", notify.data.as_ref())
            .done(),
        Kind::Fail { code, message } => {
            let message = Some(message).filter(|message| message.value().as_str() != Some(""));
            Fields::default().put("code", Some(code.as_str())).template("message", message).done()
        }
        Kind::Steps(scope) => of_scope(scope),
    };
    Fields::default()
        .put("id", Some(step.id.as_str()))
        .put("needs", Some(needs).filter(|needs| !needs.is_empty()))
        .expr("when", step.when.as_ref())
        .word("run_if", step.run_if, step.run_if.as_str())
        .put("retry", step.retry.and_then(of_retry))
        .put("timeout_ms", step.timeout_ms)
        .word("on_error", step.on_error, step.on_error.as_str())
        .put("compensate", step.compensate.as_ref().map(of_compensate))
        .put("labels", of_labels(&step.labels))
        .put("for_each", step.for_each.as_ref().map(of_for_each))
        .put(step.kind.name(), Some(kind))
        .done()
}

fn of_labels(labels: &Labels) -> Option<Map<String, Value>> {
    let fields: Map<String, Value> = labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    Some(fields).filter(|fields| !fields.is_empty())
}

fn of_job(job: &JobStep) -> Value {
    let labels: Map<String, Value> =
        job.labels.iter().map(|(key, value)| (key.clone(), value.value().clone())).collect();
    Fields::default()
        .put("topic", Some(job.topic.as_str()))
        .template("payload", job.payload.as_ref())
        .put("priority", job.priority.map(|priority| priority.as_str()))
        .put("labels", Some(labels).filter(|labels| !labels.is_empty()))
        .put("requires", of_labels(&job.requires))
        .template("concurrency_key", job.concurrency_key.as_ref())
        .template("delay_ms", job.delay_ms.as_ref())
        .put("start_within_ms", job.start_within_ms)
        .put("timeout_ms", job.timeout_ms)
        .put("on_lost_lease", job.on_lost_lease.map(|choice| choice.as_str()))
        .put("durability", job.durability.map(|level| level.as_str()))
        .done()
}

fn of_approval(approval: &ApprovalStep) -> Value {
    Fields::default()
        .put("title", Some(approval.title.value().clone()))
        .put("from", Some(approval.from.clone()).filter(|from| !from.is_empty()))
        .unless("quorum", approval.quorum, &1)
        .put("expires_ms", approval.expires_ms)
        .template("show", approval.show.as_ref())
        .done()
}

fn of_branch(branch: &Branch) -> Value {
    match &branch.when {
        Some(when) => json!({"when": when.source(), "steps": of_scope(&branch.steps)}),
        None => json!({"else": of_scope(&branch.steps)}),
    }
}

fn of_loop(inner: &LoopStep) -> Value {
    let state = Fields::default().template("init", inner.init.as_ref()).template("next", inner.next.as_ref());
    Fields::default()
        .put("steps", Some(of_scope(&inner.steps)))
        .put("state", Some(state.0).filter(|fields| !fields.is_empty()))
        .expr("until", Some(&inner.until))
        .put("max", Some(inner.max))
        .done()
}

fn of_for_each(for_each: &ForEach) -> Value {
    let tolerate = match for_each.tolerate {
        Tolerate::Count(0) => None,
        Tolerate::Count(n) => Some(json!({"count": n})),
        Tolerate::Percent(n) => Some(json!({"percent": n})),
    };
    Fields::default()
        .expr("items", Some(&for_each.items))
        .unless("as", for_each.name.clone(), &"item".to_owned())
        .unless("max_parallel", for_each.max_parallel, &super::read::USUAL_PARALLEL)
        .put("tolerate", tolerate)
        .put("min_success", for_each.min_success)
        .expr("collect", for_each.collect.as_ref())
        .done()
}

fn of_compensate(given: &Compensate) -> Value {
    let Some(job) = &given.job else { return json!("self") };
    Fields::default()
        .put("job", Some(of_job(job)))
        .word("when", given.when, given.when.as_str())
        .put("retry", given.retry.and_then(of_retry))
        .done()
}
