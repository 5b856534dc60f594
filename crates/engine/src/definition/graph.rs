//! Draws a definition: as Mermaid text, or as an SVG that needs nothing else. The same definition gives the same bytes.
//! Steps with steps of their own are boxes around them. With the states of a run, steps have their state's colour.

mod layout;
mod mermaid;
mod svg;

use super::model::{Definition, DelayStep, Kind, RunIf, Scope, Step, Wait};

/// How a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphFormat {
    /// A Mermaid flowchart.
    Mermaid,
    /// An SVG image.
    Svg,
}

/// The word of a step's state in a run (`running`, `failed`, …), by its id.
pub type StateOf<'a> = &'a dyn Fn(&str) -> Option<&'static str>;

/// Draws a definition, or with `states` a run of it.
pub fn graph(definition: &Definition, states: Option<StateOf<'_>>, format: GraphFormat) -> String {
    let none: StateOf<'_> = &|_| None;
    let states = states.unwrap_or(none);
    match format {
        GraphFormat::Mermaid => mermaid::draw(definition, states),
        GraphFormat::Svg => svg::draw(definition, states),
    }
}

/// The colours of a state: its word, the area and the line. Every state has a colour; other words have none.
const COLOURS: [(&str, &str, &str); 7] = [
    ("waiting", "#f3f4f6", "#9ca3af"),
    ("running", "#dbeafe", "#2563eb"),
    ("succeeded", "#dcfce7", "#16a34a"),
    ("failed", "#fee2e2", "#dc2626"),
    ("timed_out", "#ffedd5", "#ea580c"),
    ("cancelled", "#ede9fe", "#7c3aed"),
    ("skipped", "#f9fafb", "#d1d5db"),
];

/// The second line of a step: its kind, and the word that tells it from others of the kind.
fn what(step: &Step) -> String {
    let kind = step.kind.name();
    let own = match &step.kind {
        Kind::Job(job) => job.topic.to_string(),
        Kind::Workflow(inner) => inner.name.clone(),
        Kind::WaitSignal(inner) => inner.name.clone(),
        Kind::Notify(inner) => inner.event_type.clone(),
        Kind::Fail { code, .. } => code.clone(),
        Kind::Delay(DelayStep::Ms(ms)) if ms.is_constant() => format!("{} ms", ms.value()),
        Kind::Loop(inner) => format!("at most {}", inner.max),
        Kind::Parallel(inner) => match inner.wait {
            Wait::All => String::new(),
            Wait::Any => "any".into(),
            Wait::Count(n) => format!("{n} of {}", inner.branches.len()),
        },
        _ => String::new(),
    };
    let each = if step.for_each.is_some() { ", each" } else { "" };
    let undo = if step.compensate.is_some() { " ↺" } else { "" };
    match own.is_empty() {
        true => format!("{kind}{each}{undo}"),
        false => format!("{kind}{each}: {own}{undo}"),
    }
}

/// The boxes that a step holds: a title for each, empty if there is only one.
fn boxes(kind: &Kind) -> Vec<(String, &Scope)> {
    match kind {
        Kind::Switch(branches) => {
            let title = |when: Option<&str>| when.map_or_else(|| "else".to_owned(), str::to_owned);
            let each = branches.iter().map(|b| (title(b.when.as_ref().map(muster_expr::Expr::source)), &b.steps));
            each.collect()
        }
        Kind::Parallel(inner) => inner.branches.iter().map(|(name, scope)| (name.clone(), scope)).collect(),
        other => other.scopes().into_iter().map(|scope| (String::new(), scope)).collect(),
    }
}

/// The word on a line to a step, if it is not the usual one.
fn line_word(step: &Step) -> &'static str {
    match step.run_if {
        RunIf::Success => "",
        other => other.as_str(),
    }
}

/// A text of at most `most` characters, on one line.
fn fitted(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.chars().count() > most {
        true => line.chars().take(most.saturating_sub(1)).chain(std::iter::once('…')).collect(),
        false => line,
    }
}

#[cfg(test)]
mod tests;
