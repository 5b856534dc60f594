//! A definition as an SVG image: no script, no font, no link, nothing from elsewhere.

use std::fmt::Write;

use super::{
    COLOURS, StateOf,
    layout::{self, Area, TEXT},
};
use crate::definition::model::Definition;

/// Draws a definition.
pub(super) fn draw(definition: &Definition, states: StateOf<'_>) -> String {
    let all = layout::definition(definition);
    let (width, height) = (all.width, all.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"12\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#6b7280\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    inside(&all, 0, 0, states, &mut out);
    out.push_str("</svg>\n");
    out
}

/// Draws what is inside a box whose corner is at (`x`, `y`).
fn inside(area: &Area, x: u32, y: u32, states: StateOf<'_>, out: &mut String) {
    for (from, to, word) in &area.links {
        if let (Some(from), Some(to)) = (area.inner.get(*from), area.inner.get(*to)) {
            link(from, to, word, x, y, out);
        }
    }
    for inner in &area.inner {
        let (x, y) = (x + inner.x, y + inner.y);
        let state = states(&inner.id).filter(|_| !inner.id.is_empty());
        let colour = COLOURS.iter().find(|(word, _, _)| Some(*word) == state);
        let branch = inner.id.is_empty();
        let (area, line) = match colour {
            Some((_, area, line)) => (*area, *line),
            None if branch => ("#fafafa", "#d1d5db"),
            None => ("#ffffff", "#6b7280"),
        };
        let dash = if branch { " stroke-dasharray=\"4 3\"" } else { "" };
        let _ = write!(
            out,
            "<g><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{area}\" stroke=\"{line}\"{dash}/>",
            inner.width, inner.height
        );
        if let (false, Some(state)) = (branch, state) {
            let _ = write!(out, "<title>{}: {}</title>", escaped(&inner.id), escaped(state));
        }
        for (n, text) in inner.lines.iter().enumerate() {
            let weight = if n == 0 && !branch { " font-weight=\"bold\"" } else { " fill=\"#4b5563\"" };
            let baseline = y + TEXT * (u32::try_from(n).unwrap_or(0) + 1) + 4;
            let _ = write!(out, "<text x=\"{}\" y=\"{baseline}\"{weight}>{}</text>", x + 12, escaped(text));
        }
        out.push_str("</g>\n");
        inside(inner, x, y, states, out);
    }
}

fn link(from: &Area, to: &Area, word: &str, x: u32, y: u32, out: &mut String) {
    let (x1, y1) = (x + from.x + from.width / 2, y + from.y + from.height);
    let (x2, y2) = (x + to.x + to.width / 2, y + to.y);
    let bend = (y2.saturating_sub(y1) / 2).max(16);
    let dash = if word.is_empty() { "" } else { " stroke-dasharray=\"5 4\"" };
    let _ = writeln!(
        out,
        "<path d=\"M{x1} {y1}C{x1} {} {x2} {} {x2} {y2}\" fill=\"none\" stroke=\"#6b7280\"{dash} marker-end=\"url(#tip)\"/>",
        y1 + bend,
        y2.saturating_sub(bend)
    );
    if !word.is_empty() {
        let (at_x, at_y) = (x1.midpoint(x2) + 6, y1.midpoint(y2));
        let _ = writeln!(out, "<text x=\"{at_x}\" y=\"{at_y}\" font-size=\"10\" fill=\"#6b7280\">{word}</text>");
    }
}

/// Text of XML. Characters that XML lacks become a sign.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
