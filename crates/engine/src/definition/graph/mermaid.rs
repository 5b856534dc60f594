//! A definition as a Mermaid flowchart.

use std::fmt::Write;

use super::{COLOURS, StateOf, boxes, fitted, line_word, what};
use crate::definition::model::{Definition, Scope};

/// Draws a definition.
pub(super) fn draw(definition: &Definition, states: StateOf<'_>) -> String {
    let mut out = String::from("flowchart TD\n");
    let mut used = Vec::new();
    scope(&definition.steps, 1, states, &mut used, &mut out);
    for (word, area, line) in COLOURS {
        let steps: Vec<&str> = used.iter().filter(|(_, state)| *state == word).map(|(id, _)| id.as_str()).collect();
        if !steps.is_empty() {
            let _ = writeln!(out, "  classDef {word} fill:{area},stroke:{line}");
            let _ = writeln!(out, "  class {} {word}", steps.join(","));
        }
    }
    out
}

fn scope(scope: &Scope, depth: usize, states: StateOf<'_>, used: &mut Vec<(String, &'static str)>, out: &mut String) {
    let indent = "  ".repeat(depth);
    for step in &scope.steps {
        // A prefix keeps ids apart from Mermaid's own words, such as `end`.
        let node = format!("s_{}", step.id);
        used.extend(states(&step.id).map(|state| (node.clone(), state)));
        let inner = boxes(&step.kind);
        let label = format!("{}<br/>{}", step.id, escaped(&fitted(&what(step), 60)));
        if inner.is_empty() {
            let _ = writeln!(out, "{indent}{node}[\"{label}\"]");
            continue;
        }
        let _ = writeln!(out, "{indent}subgraph {node}[\"{label}\"]");
        for (n, (title, steps)) in inner.into_iter().enumerate() {
            if title.is_empty() {
                self::scope(steps, depth + 1, states, used, out);
                continue;
            }
            let _ = writeln!(out, "{indent}  subgraph {node}_{n}b[\"{}\"]", escaped(&fitted(&title, 60)));
            self::scope(steps, depth + 2, states, used, out);
            let _ = writeln!(out, "{indent}  end");
        }
        let _ = writeln!(out, "{indent}end");
    }
    for step in &scope.steps {
        for need in step.needs.iter().filter_map(|place| scope.steps.get(*place)) {
            let line = match line_word(step) {
                "" => "-->".to_owned(),
                word => format!("-.->|{word}|"),
            };
            let _ = writeln!(out, "{indent}s_{} {line} s_{}", need.id, step.id);
        }
    }
}

/// Text inside double quotes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' => out.push_str("#quot;"),
            '#' => out.push_str("#35;"),
            '&' => out.push_str("#amp;"),
            '<' => out.push_str("#lt;"),
            '>' => out.push_str("#gt;"),
            '`' => out.push_str("#96;"),
            c => out.push(c),
        }
    }
    out
}
