//! Reads a definition out of the tree of its text. Notes every fault of form at once and goes on behind it: what is
//! faulty is left out or replaced, and a definition with a fault is never returned to callers.

mod fields;
mod steps;

use std::ops::RangeInclusive;

use muster_domain::job::bounds;

use self::fields::{Field, Object};
use super::{
    FaultCode,
    faults::Faults,
    model::{Concurrency, Defaults, Definition, OnFailure, Retry, WhenFull},
    tree::Node,
};

pub(super) use self::steps::{MOST_ITEMS, MOST_ITERATIONS, MOST_NESTING, MOST_STEPS, USUAL_PARALLEL};

/// How many runs of a workflow may go on at once.
pub(super) const CONCURRENCY: RangeInclusive<u32> = 1..=100_000;
/// The most bytes of a description.
pub(super) const MOST_DESCRIPTION: usize = 4_000;

/// Reads a definition as far as it can be read.
pub(super) fn definition(root: &Node, faults: &mut Faults<'_>) -> Option<Definition> {
    let mut o = Field { node: root, at: String::new() }.object(faults)?;
    let _editors = o.take("$schema").and_then(|field| field.text(faults).map(drop));
    let description = o.take("description").and_then(|field| description(&field, faults)).unwrap_or_default();
    // The language of expressions is a field, so that another one may come.
    let _cel = o.take("expressions").and_then(|f| f.word(faults, &["cel"], |word| (word == "cel").then_some(())));
    let definition = Definition {
        description,
        input: o.take("input").and_then(|field| field.schema(faults)),
        timeout_ms: o.take("timeout_ms").and_then(|field| field.integer(faults, bounds::SPAN_MS)),
        concurrency: o.take("concurrency").and_then(|field| concurrency(field, faults)),
        on_failure: o
            .take("on_failure")
            .and_then(|field| field.word(faults, &["cancel", "finish"], OnFailure::parse))
            .unwrap_or_default(),
        defaults: o.take("defaults").and_then(|field| defaults(field, faults)).unwrap_or_default(),
        steps: o.require("steps", faults).map(|field| steps::outer(&field, faults)).unwrap_or_default(),
        output: o.verbatim("output").and_then(|field| field.template(faults)),
    };
    o.finish(faults);
    Some(definition)
}

fn description(field: &Field<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = field.text(faults)?;
    if text.len() > MOST_DESCRIPTION {
        return field.invalid(faults, format_args!("has {} bytes; at most {MOST_DESCRIPTION} are taken", text.len()));
    }
    Some(text.to_owned())
}

fn concurrency(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Concurrency> {
    let mut o = field.object(faults)?;
    let key = o.take("key").and_then(|field| field.expr(faults));
    let max = o.require("max", faults).and_then(|field| field.small(faults, CONCURRENCY));
    let words = ["queue", "reject", "cancel_oldest"];
    let when_full = o.take("when_full").and_then(|field| field.word(faults, &words, WhenFull::parse));
    o.finish(faults);
    Some(Concurrency { key, max: max.unwrap_or(1), when_full: when_full.unwrap_or_default() })
}

fn defaults(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Defaults> {
    let mut o = field.object(faults)?;
    let retry = o.take("retry").and_then(|field| read_retry(field, faults));
    let timeout_ms = o.take("timeout_ms").and_then(|field| field.integer(faults, bounds::SPAN_MS));
    o.finish(faults);
    Some(Defaults { retry, timeout_ms })
}

/// Retries, in the form of a submit's.
fn read_retry(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Retry> {
    let mut o = field.object(faults)?;
    let attempts = o.take("max_attempts").and_then(|field| field.integer(faults, bounds::ATTEMPTS));
    let mut retry = Retry { max_attempts: attempts.and_then(|n| u16::try_from(n).ok()), ..Retry::default() };
    if let Some(mut b) = o.take("backoff").and_then(|field| field.object(faults)) {
        retry.initial_ms = b.take("initial_ms").and_then(|field| field.integer(faults, bounds::DELAY_MS));
        retry.factor = b.take("factor").and_then(|field| field.number(faults, bounds::FACTOR));
        retry.max_ms = b.take("max_ms").and_then(|field| field.integer(faults, bounds::DELAY_MS));
        retry.jitter = b.take("jitter").and_then(|field| field.number(faults, bounds::JITTER));
        b.finish(faults);
    }
    o.finish(faults);
    Some(retry)
}

/// Fields of which exactly one must be there. Returns the one, and notes a fault otherwise.
fn one_of<'n>(
    o: &mut Object<'n>,
    names: [&'static str; 2],
    faults: &mut Faults<'_>,
) -> Option<(&'static str, Field<'n>)> {
    let [first, second] = names;
    match (o.take(first), o.take(second)) {
        (Some(field), None) => Some((first, field)),
        (None, Some(field)) => Some((second, field)),
        (None, None) => {
            faults.add(o.at(), FaultCode::MissingField, format!("`{first}` or `{second}` is missing"));
            None
        }
        (Some(_), Some(field)) => {
            let message = format!("`{first}` and `{second}` exclude each other");
            faults.add_key(&field.at, FaultCode::InvalidValue, message);
            None
        }
    }
}
