//! Reads the job of a step or of a compensation: the submit fields that make sense in a run.

use std::collections::BTreeMap;

use muster_domain::{
    Durability, OnLostLease, Priority, Topic, WorkerId,
    job::bounds,
    line::MAX_REQUIRES,
    slot::check_key,
    topic::{MAX_LABELS, check_label},
};
use muster_expr::Template;
use serde_json::Value;

use super::{Field, labels};
use crate::definition::{
    FaultCode,
    faults::{Faults, join},
    model::JobStep,
    read::fields::Object,
};

/// Submit fields that a step does not take, and where what they say belongs.
const ELSEWHERE: [(&str, &str); 9] = [
    ("retry", "write it beside `job`"),
    ("deadline", "the step's `timeout_ms` is the job's deadline"),
    ("expire_in_ms", "the step's `timeout_ms` is the job's deadline"),
    ("run_at", "use a `delay` step, or `delay_ms`"),
    ("start_by", "use `start_within_ms`"),
    ("unique", "the job of a step is submitted once"),
    ("callback", "use a `notify` step"),
    ("idempotency_key", "the job of a step is submitted once"),
    ("traceparent", "the run has one trace"),
];

/// Reads a job.
pub(super) fn read(field: Field<'_>, faults: &mut Faults<'_>) -> Option<JobStep> {
    let mut o = field.object(faults)?;
    let topic = o.require("topic", faults).and_then(|field| field.parsed(faults, Topic::parse));
    let job = JobStep {
        // The stand-in is never used: the fault is noted.
        topic: topic.or_else(|| Topic::parse("refused").ok())?,
        payload: o.verbatim("payload").and_then(|field| field.template(faults)),
        priority: o
            .take("priority")
            .and_then(|x| x.word(faults, &["critical", "high", "normal", "low"], Priority::parse)),
        labels: o.take("labels").map(|field| label_templates(&field, faults)).unwrap_or_default(),
        requires: o.take("requires").map(|field| requires(&field, faults)).unwrap_or_default(),
        concurrency_key: o.take("concurrency_key").and_then(|field| key(&field, faults)),
        delay_ms: o.take("delay_ms").and_then(|field| millis(&field, faults)),
        start_within_ms: o.take("start_within_ms").and_then(|field| field.integer(faults, bounds::SPAN_MS)),
        timeout_ms: o
            .take("timeout_ms")
            .and_then(|field| field.integer(faults, bounds::TIMEOUT_MS))
            .and_then(|n| u32::try_from(n).ok()),
        on_lost_lease: o.take("on_lost_lease").and_then(|x| x.word(faults, &["retry", "fail"], OnLostLease::parse)),
        durability: o
            .take("durability")
            .and_then(|x| x.word(faults, &["memory", "replicated", "fsynced"], Durability::parse)),
    };
    refuse_elsewhere(&mut o, faults);
    o.finish(faults);
    Some(job)
}

fn refuse_elsewhere(o: &mut Object<'_>, faults: &mut Faults<'_>) {
    let given: Vec<&str> = o.unasked().collect();
    for (name, hint) in ELSEWHERE {
        if given.contains(&name) {
            let message = format!("`{name}` is not a field of a step's job; {hint}");
            faults.add_key(&join(o.at(), name), FaultCode::UnknownField, message);
            o.verbatim(name);
        }
    }
}

fn label_templates(field: &Field<'_>, faults: &mut Faults<'_>) -> BTreeMap<String, Template> {
    let pairs = field.pairs(faults).unwrap_or_default();
    if pairs.len() > MAX_LABELS {
        field.invalid::<()>(faults, format_args!("has {} labels; at most {MAX_LABELS} are taken", pairs.len()));
        return BTreeMap::new();
    }
    let mut labels = BTreeMap::new();
    for (key, value) in pairs {
        let Some(template) = value.text_template(faults) else { continue };
        // The value is checked again when it is computed.
        let text = template.value().as_str().filter(|_| template.is_constant()).unwrap_or_default();
        if let Err(why) = check_label(key, text) {
            value.invalid::<()>(faults, format_args!("is not allowed: {why}"));
        }
        labels.insert(key.to_owned(), template);
    }
    labels
}

fn requires(field: &Field<'_>, faults: &mut Faults<'_>) -> muster_domain::Labels {
    let given = labels(field, MAX_REQUIRES, faults);
    if let Some(Err(why)) = given.get("worker").map(|name| WorkerId::parse(name)) {
        faults.add(&join(&field.at, "worker"), FaultCode::InvalidValue, format!("`worker` is not allowed: {why}"));
    }
    given
}

fn key(field: &Field<'_>, faults: &mut Faults<'_>) -> Option<Template> {
    let template = field.text_template(faults)?;
    if let (true, Some(Err(why))) = (template.is_constant(), template.value().as_str().map(check_key)) {
        return field.invalid(faults, why);
    }
    Some(template)
}

/// A span: a whole number, or one expression that gives it.
pub(super) fn millis(field: &Field<'_>, faults: &mut Faults<'_>) -> Option<Template> {
    let template = match &field.node.to_json() {
        Value::String(_) => field.template(faults)?,
        _ => {
            field.integer(faults, bounds::DELAY_MS)?;
            field.template(faults)?
        }
    };
    match template.value() {
        Value::String(text) if !is_one_expression(text, &template) => {
            field.wrong(faults, "a whole number, or one `${{ … }}` that gives it")
        }
        _ => Some(template),
    }
}

/// Whether a string is nothing but one expression, and so keeps the type of its value.
pub(super) fn is_one_expression(text: &str, template: &Template) -> bool {
    text.trim().starts_with("${{") && text.trim().ends_with("}}") && template.expressions().count() == 1
}
