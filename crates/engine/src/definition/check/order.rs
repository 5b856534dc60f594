//! The needs of one scope: an order of its steps, its circles, and which steps each one needs, directly or not.

use crate::definition::model::Scope;

/// What the needs of a scope amount to.
pub(super) struct Order {
    /// The steps, each behind those that it needs; steps in or behind a circle come last.
    pub(super) steps: Vec<usize>,
    /// Circles: each a list of steps, where every step needs the next one and the last needs the first.
    pub(super) circles: Vec<Vec<usize>>,
    /// For each step, the set of those that it needs, directly or not.
    needed: Vec<Vec<u64>>,
}

impl Order {
    pub(super) fn of(scope: &Scope) -> Order {
        let count = scope.steps.len();
        let mut left: Vec<bool> = vec![true; count];
        let mut steps = peel(scope, &mut left);
        let mut circles = Vec::new();
        let ordered = steps.len();
        while let Some(circle) = circle(scope, &left) {
            for step in &circle {
                left[*step] = false;
            }
            steps.extend(&circle);
            circles.push(circle);
            steps.extend(peel(scope, &mut left));
        }
        let mut needed = vec![vec![0u64; count.div_ceil(64)]; count];
        for step in steps.iter().copied().take(ordered).chain(steps.iter().copied().skip(ordered)) {
            for need in &scope.steps[step].needs {
                let theirs = needed[*need].clone();
                let mine = &mut needed[step];
                mine.iter_mut().zip(theirs).for_each(|(mine, their)| *mine |= their);
                mine[*need / 64] |= 1 << (*need % 64);
            }
        }
        Order { steps, circles, needed }
    }

    /// Whether `step` needs `other`, directly or not.
    pub(super) fn needs(&self, step: usize, other: usize) -> bool {
        self.needed.get(step).and_then(|set| set.get(other / 64)).is_some_and(|word| word >> (other % 64) & 1 == 1)
    }
}

/// Takes away steps that need none of those that are left, until every one does.
fn peel(scope: &Scope, left: &mut [bool]) -> Vec<usize> {
    let mut waits = vec![0usize; left.len()];
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); left.len()];
    for (n, step) in scope.steps.iter().enumerate().filter(|(n, _)| left[*n]) {
        for need in step.needs.iter().filter(|need| left[**need]) {
            waits[n] += 1;
            needed_by[*need].push(n);
        }
    }
    let mut free: Vec<usize> = (0..left.len()).filter(|n| left[*n] && waits[*n] == 0).collect();
    let mut next = 0;
    while let Some(step) = free.get(next).copied() {
        left[step] = false;
        for other in &needed_by[step] {
            waits[*other] -= 1;
            if waits[*other] == 0 {
                free.push(*other);
            }
        }
        next += 1;
    }
    free
}

/// A circle among the steps that are left; each of them needs another one of them.
fn circle(scope: &Scope, left: &[bool]) -> Option<Vec<usize>> {
    let mut step = left.iter().position(|left| *left)?;
    let mut seen = vec![usize::MAX; left.len()];
    let mut path = Vec::new();
    while seen[step] == usize::MAX {
        seen[step] = path.len();
        path.push(step);
        step = scope.steps[step].needs.iter().copied().find(|need| left[*need])?;
    }
    Some(path.split_off(seen[step]))
}
