//! The kinds of steps: one reader each, and the list of them.

use muster_domain::{Time, job::bounds};
use muster_expr::Expr;
use serde_json::Value;

use super::{Field, Reader, is_name, job, one_of};
use crate::definition::{
    FaultCode,
    faults::Faults,
    model::{
        ApprovalStep, Branch, DelayStep, Kind, LoopStep, NotifyStep, ParallelStep, Scope, Wait, WaitSignalStep,
        WorkflowStep,
    },
    names::{check_event_type, check_signal_name, check_workflow_name},
    tree::What,
};

/// The most iterations of a loop.
pub(in crate::definition) const MOST_ITERATIONS: u32 = 10_000;
/// The most votes that an approval may ask for.
pub(in crate::definition) const MOST_VOTES: u32 = 100;

/// A kind of step: the field that names it, and its reader.
pub(super) struct KindReader {
    pub(super) name: &'static str,
    pub(super) read: fn(&mut Reader<'_, '_>, Field<'_>) -> Option<Kind>,
}

/// Every kind.
pub(super) const KINDS: &[KindReader] = &[
    KindReader { name: "job", read: |r, field| job::read(field, r.faults).map(Kind::Job) },
    KindReader { name: "approval", read: |r, field| approval(field, r.faults) },
    KindReader { name: "delay", read: |r, field| delay(field, r.faults) },
    KindReader { name: "wait_signal", read: |r, field| wait_signal(field, r.faults) },
    KindReader { name: "set", read: |r, field| field.template(r.faults).map(Kind::Set) },
    KindReader { name: "switch", read: switch },
    KindReader { name: "parallel", read: parallel },
    KindReader { name: "loop", read: read_loop },
    KindReader { name: "workflow", read: |r, field| workflow(field, r.faults) },
    KindReader { name: "notify", read: |r, field| notify(field, r.faults) },
    KindReader { name: "fail", read: |r, field| fail(field, r.faults) },
    KindReader { name: "steps", read: |r, field| Some(Kind::Steps(r.nested(&field))) },
];

fn approval(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let title = o.require("title", faults).and_then(|field| field.text_template(faults));
    let from = o.take("from").and_then(|field| field.list(faults)).unwrap_or_default();
    let from = from.iter().filter_map(|item| item.parsed(faults, check_voter)).collect();
    let quorum = o.take("quorum").and_then(|field| field.small(faults, 1..=MOST_VOTES));
    let expires_ms = o.take("expires_ms").and_then(|field| field.integer(faults, bounds::SPAN_MS));
    let show = o.verbatim("show").and_then(|field| field.template(faults));
    o.finish(faults);
    Some(Kind::Approval(ApprovalStep { title: title?, from, quorum: quorum.unwrap_or(1), expires_ms, show }))
}

fn check_voter(text: &str) -> Result<String, &'static str> {
    match !text.is_empty() && text.len() <= 256 && text.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("a voter is 1 to 256 visible ASCII characters, like `group:sales`"),
    }
}

fn delay(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let step = match one_of(&mut o, ["ms", "until"], faults) {
        Some(("ms", field)) => job::millis(&field, faults).map(DelayStep::Ms),
        Some((_, field)) => until(&field, faults),
        None => None,
    };
    o.finish(faults);
    step.map(Kind::Delay)
}

fn until(field: &Field<'_>, faults: &mut Faults<'_>) -> Option<DelayStep> {
    let template = field.text_template(faults)?;
    let fixed = template.value().as_str().filter(|_| template.is_constant());
    if fixed.is_some_and(|text| Time::parse_rfc3339(text).is_none()) {
        return field.invalid(faults, "must be a time like `2027-01-31T09:00:00Z`, or an expression");
    }
    Some(DelayStep::Until(template))
}

fn wait_signal(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let name = o.require("name", faults).and_then(|field| name(&field, faults, check_signal_name));
    let timeout_ms = o.take("timeout_ms").and_then(|field| field.integer(faults, bounds::SPAN_MS));
    let schema = o.take("schema").and_then(|field| field.schema(faults));
    o.finish(faults);
    Some(Kind::WaitSignal(WaitSignalStep { name: name?, timeout_ms, schema }))
}

fn name(field: &Field<'_>, faults: &mut Faults<'_>, check: fn(&str) -> Result<(), &'static str>) -> Option<String> {
    field.parsed(faults, |text| check(text).map(|()| text.to_owned()))
}

fn switch(reader: &mut Reader<'_, '_>, field: Field<'_>) -> Option<Kind> {
    let items = field.list(reader.faults)?;
    if items.is_empty() {
        return field.invalid(reader.faults, "needs at least one branch");
    }
    let last = items.len() - 1;
    let mut branches = Vec::new();
    for (n, item) in items.into_iter().enumerate() {
        // A branch that cannot be read keeps its place, so that the pointers of those behind it are right.
        let stand_in = Branch { when: None, steps: Scope::default() };
        branches.push(branch(reader, item, n == last).unwrap_or(stand_in));
    }
    Some(Kind::Switch(branches))
}

fn branch(reader: &mut Reader<'_, '_>, item: Field<'_>, is_last: bool) -> Option<Branch> {
    let mut o = item.object(reader.faults)?;
    let other = o.take("else");
    let when = match other.is_some() {
        true => o.take("when"),
        false => o.require("when", reader.faults),
    };
    let branch = match (other, when) {
        (Some(other), None) => {
            if !is_last {
                let message = "`else` must be the last branch: none behind it can be taken";
                reader.faults.add_key(&other.at, FaultCode::InvalidValue, message);
            }
            Branch { when: None, steps: reader.nested(&other) }
        }
        (Some(other), Some(when)) => {
            let message = "a branch has `when` and `steps`, or `else`";
            reader.faults.add_key(&other.at, FaultCode::InvalidValue, message);
            Branch { when: when.expr(reader.faults), steps: reader.nested(&other) }
        }
        (None, when) => {
            let steps = o.require("steps", reader.faults).map(|field| reader.nested(&field));
            Branch { when: when.and_then(|when| when.expr(reader.faults)), steps: steps.unwrap_or_default() }
        }
    };
    o.finish(reader.faults);
    Some(branch)
}

fn parallel(reader: &mut Reader<'_, '_>, field: Field<'_>) -> Option<Kind> {
    let mut o = field.object(reader.faults)?;
    let wait = o.take("wait");
    let pairs = o.require("branches", reader.faults).and_then(|field| {
        let pairs = field.pairs(reader.faults)?;
        match pairs.is_empty() {
            true => field.invalid(reader.faults, "needs at least one branch"),
            false => Some(pairs),
        }
    });
    o.finish(reader.faults);
    let mut branches: Vec<(String, Scope)> = Vec::new();
    for (name, field) in pairs.unwrap_or_default() {
        if !is_name(name) {
            let message =
                "the name of a branch must begin with a letter and consist of letters, digits and `_`, 64 at most";
            reader.faults.add_key(&field.at, FaultCode::InvalidValue, message);
        }
        branches.push((name.to_owned(), reader.nested(&field)));
    }
    // Objects have no order; a run numbers branches in the order of their names.
    branches.sort_by(|(a, _), (b, _)| a.cmp(b));
    let wait = wait.and_then(|field| read_wait(&field, branches.len(), reader.faults)).unwrap_or(Wait::All);
    Some(Kind::Parallel(ParallelStep { branches, wait }))
}

fn read_wait(field: &Field<'_>, branches: usize, faults: &mut Faults<'_>) -> Option<Wait> {
    match &field.node.what {
        What::Text(text) if text.value == "all" => Some(Wait::All),
        What::Text(text) if text.value == "any" => Some(Wait::Any),
        What::Number(_) => {
            let most = u32::try_from(branches.max(1)).unwrap_or(u32::MAX);
            field.small(faults, 1..=most).map(Wait::Count)
        }
        _ => field.invalid(faults, "must be `all`, `any`, or how many branches must succeed"),
    }
}

fn read_loop(reader: &mut Reader<'_, '_>, field: Field<'_>) -> Option<Kind> {
    let mut o = field.object(reader.faults)?;
    let steps = o.require("steps", reader.faults).map(|field| reader.nested(&field));
    let (mut init, mut next) = (None, None);
    if let Some(mut state) = o.take("state").and_then(|field| field.object(reader.faults)) {
        init = state.verbatim("init").and_then(|field| field.template(reader.faults));
        next = state.verbatim("next").and_then(|field| field.template(reader.faults));
        state.finish(reader.faults);
    }
    let until = o.require("until", reader.faults).and_then(|field| field.expr(reader.faults));
    let max = o.require("max", reader.faults).and_then(|field| field.small(reader.faults, 1..=MOST_ITERATIONS));
    o.finish(reader.faults);
    Some(Kind::Loop(LoopStep {
        steps: steps.unwrap_or_default(),
        init,
        next,
        // The stand-ins are never used: the faults are noted.
        until: until.or_else(|| Expr::parse("true").ok())?,
        max: max.unwrap_or(1),
    }))
}

fn workflow(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let name = o.require("name", faults).and_then(|field| name(&field, faults, check_workflow_name));
    let version = o.take("version").and_then(|field| field.small(faults, 1..=u32::MAX));
    let input = o.verbatim("input").and_then(|field| field.template(faults));
    let wait = o.take("wait").and_then(|field| field.boolean(faults));
    o.finish(faults);
    Some(Kind::Workflow(WorkflowStep { name: name?, version, input, wait: wait.unwrap_or(true) }))
}

fn notify(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let event_type = o.require("type", faults).and_then(|field| name(&field, faults, check_event_type));
    let data = o.verbatim("data").and_then(|field| field.template(faults));
    o.finish(faults);
    Some(Kind::Notify(NotifyStep { event_type: event_type?, data }))
}

fn fail(field: Field<'_>, faults: &mut Faults<'_>) -> Option<Kind> {
    let mut o = field.object(faults)?;
    let code = o.require("code", faults).and_then(|field| {
        let code = field.literal(faults)?;
        let fits = is_name(code) && !code.bytes().any(|b| b.is_ascii_uppercase());
        match fits {
            true => Some(code.to_owned()),
            false => field.invalid(faults, "must consist of lower-case letters, digits and `_`, 64 at most"),
        }
    });
    let message = match o.take("message") {
        Some(field) => field.text_template(faults),
        None => muster_expr::Template::parse(&Value::String(String::new())).ok(),
    };
    o.finish(faults);
    Some(Kind::Fail { code: code?, message: message? })
}
