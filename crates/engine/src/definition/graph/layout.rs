//! Where the boxes of a graph stand. Steps are in rows: each one below all that it needs; a row that grows too long goes
//! on in the next one. Boxes with steps inside are laid out first and are as large as those need.

use super::{boxes, fitted, line_word, what};
use crate::definition::model::{Definition, Scope, Step};

/// The width of a character, and the height of a line of text.
pub(super) const CHARACTER: u32 = 7;
pub(super) const TEXT: u32 = 16;
const PADDING: u32 = 12;
const GAP: u32 = 24;
const ROW_GAP: u32 = 40;
const LEAST_WIDTH: u32 = 110;
const MOST_CHARACTERS: usize = 34;
/// The most boxes in a row.
const MOST_IN_ROW: usize = 8;

/// A box: a step, or a branch of one.
pub(super) struct Area {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    /// The step's id; empty for a branch.
    pub(super) id: String,
    /// Lines of text at the top.
    pub(super) lines: Vec<String>,
    /// What is inside, placed relative to this box.
    pub(super) inner: Vec<Area>,
    /// Lines from one of the boxes inside to another, with a word.
    pub(super) links: Vec<(usize, usize, &'static str)>,
}

/// Lays out a definition: a box without text around all.
pub(super) fn definition(given: &Definition) -> Area {
    let mut area = of_scope(&given.steps, 0);
    area.lines = Vec::new();
    area
}

fn of_step(step: &Step) -> Area {
    let lines = vec![fitted(&step.id, MOST_CHARACTERS), fitted(&what(step), MOST_CHARACTERS)];
    let head = TEXT * 2 + PADDING;
    let inner = boxes(&step.kind);
    let mut area = match inner.as_slice() {
        [] => Area {
            x: 0,
            y: 0,
            width: 0,
            height: head + PADDING,
            id: String::new(),
            lines: Vec::new(),
            inner: Vec::new(),
            links: Vec::new(),
        },
        [(title, only)] if title.is_empty() => of_scope(only, head),
        branches => beside(branches.iter().map(|(title, scope)| of_branch(title, scope)).collect(), head),
    };
    area.id = step.id.clone();
    area.width = area.width.max(width_of(&lines)).max(LEAST_WIDTH);
    area.lines = lines;
    area
}

fn of_branch(title: &str, scope: &Scope) -> Area {
    let lines = vec![fitted(title, MOST_CHARACTERS)];
    let mut area = of_scope(scope, TEXT + PADDING);
    area.width = area.width.max(width_of(&lines));
    area.lines = lines;
    area
}

fn width_of(lines: &[String]) -> u32 {
    let most = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    u32::try_from(most).unwrap_or(0) * CHARACTER + 2 * PADDING
}

/// A box with others in one row, below `head`.
fn beside(inner: Vec<Area>, head: u32) -> Area {
    let rows = vec![(0..inner.len()).collect()];
    stack(inner, &rows, Vec::new(), head)
}

/// A box with the steps of a scope, below `head`.
fn of_scope(scope: &Scope, head: u32) -> Area {
    let inner = scope.steps.iter().map(of_step).collect();
    let mut links = Vec::new();
    for (n, step) in scope.steps.iter().enumerate() {
        links.extend(step.needs.iter().map(|need| (*need, n, line_word(step))));
    }
    stack(inner, &rows(scope), links, head)
}

/// The rows of a scope: the steps of each.
fn rows(scope: &Scope) -> Vec<Vec<usize>> {
    let mut ranks: Vec<Option<usize>> = vec![None; scope.steps.len()];
    // A definition that was read has no circle, so every pass ranks at least one step; the bound is for safety.
    for _ in 0..=scope.steps.len() {
        let mut changed = false;
        for (n, step) in scope.steps.iter().enumerate().filter(|(n, _)| ranks[*n].is_none()).collect::<Vec<_>>() {
            let needed: Option<Vec<usize>> =
                step.needs.iter().map(|need| ranks.get(*need).copied().flatten()).collect();
            if let Some(needed) = needed {
                ranks[n] = Some(needed.into_iter().max().map_or(0, |rank| rank + 1));
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let last = ranks.iter().flatten().max().copied().unwrap_or(0);
    let mut rows = Vec::new();
    // The place of each step in its row, to put steps below what they need.
    let mut places: Vec<usize> = vec![0; scope.steps.len()];
    for rank in 0..=last {
        let mut row: Vec<usize> = (0..ranks.len()).filter(|n| ranks[*n].unwrap_or(last) == rank).collect();
        let centre = |n: usize| {
            let needs = &scope.steps[n].needs;
            needs.iter().map(|need| places[*need] * 1_000).sum::<usize>() / needs.len().max(1)
        };
        row.sort_by_key(|n| (centre(*n), *n));
        for (place, n) in row.iter().enumerate() {
            places[*n] = place;
        }
        rows.extend(row.chunks(MOST_IN_ROW).map(<[usize]>::to_vec));
    }
    rows
}

/// Places boxes in rows, each row in the middle.
fn stack(mut inner: Vec<Area>, rows: &[Vec<usize>], links: Vec<(usize, usize, &'static str)>, head: u32) -> Area {
    let count = |row: &Vec<usize>| u32::try_from(row.len()).unwrap_or(0).saturating_sub(1);
    let length = |row: &Vec<usize>, inner: &[Area]| row.iter().map(|n| inner[*n].width).sum::<u32>() + count(row) * GAP;
    let width = rows.iter().map(|row| length(row, &inner)).max().unwrap_or(0);
    let mut y = head + PADDING;
    for row in rows {
        let mut x = PADDING + (width - length(row, &inner)) / 2;
        let height = row.iter().map(|n| inner[*n].height).max().unwrap_or(0);
        for n in row {
            let area = &mut inner[*n];
            (area.x, area.y) = (x, y + (height - area.height) / 2);
            x += area.width + GAP;
        }
        y += height + ROW_GAP;
    }
    let height = (y - if rows.is_empty() { 0 } else { ROW_GAP }) + PADDING;
    Area { x: 0, y: 0, width: width + 2 * PADDING, height, id: String::new(), lines: Vec::new(), inner, links }
}
