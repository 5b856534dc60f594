//! A definition laid out for running: every step has a number, whatever scope it stands in.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use muster_domain::RetryPolicy;
use muster_expr::{Expr, Template};

use super::place::{Inside, Place};
use crate::definition::{Definition, JobStep, Kind, OnFailure, Scope, Step};

/// The scope that holds the outermost steps.
pub(crate) const ROOT: usize = 0;

/// A definition laid out for running. Numbers of steps depend on the definition alone.
#[derive(Debug)]
pub struct Plan {
    definition: Arc<Definition>,
    nodes: Vec<Node>,
    scopes: Vec<ScopePlan>,
    by_id: HashMap<String, usize>,
}

/// One step of a plan.
#[derive(Debug)]
pub(crate) struct Node {
    step: Arc<Step>,
    /// The scope that it stands in.
    pub(crate) scope: usize,
    /// The steps of its scope that it needs.
    pub(crate) needs: Vec<usize>,
    /// The steps of its scope that need it.
    pub(crate) needed_by: Vec<usize>,
    /// The scopes that it holds.
    pub(crate) inner: Vec<usize>,
    /// Whether an expression reads its result.
    pub(crate) read: bool,
    /// Whether it or a step inside it declares a compensation.
    pub(crate) undoes: bool,
    /// The nearest step around it that has a for-each.
    pub(crate) item_of: Option<usize>,
    /// Whether a compensation's input must be computed when the step ends.
    pub(crate) keeps_undo: bool,
}

/// One graph of steps of a plan.
#[derive(Debug)]
pub(crate) struct ScopePlan {
    /// The step that holds it, and which of its scopes it is.
    pub(crate) owner: Option<(usize, u32)>,
    /// Its steps.
    pub(crate) nodes: Vec<usize>,
    /// How many numbers address one instance of it.
    pub(crate) levels: usize,
}

impl Node {
    pub(crate) fn step(&self) -> &Arc<Step> {
        &self.step
    }
}

impl Plan {
    /// Lays a definition out.
    pub fn new(definition: &Arc<Definition>) -> Plan {
        let mut plan =
            Plan { definition: definition.clone(), nodes: Vec::new(), scopes: Vec::new(), by_id: HashMap::new() };
        plan.lay(&definition.steps, None, 0, None);
        plan.look_at_reads();
        plan
    }

    /// The definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    fn lay(&mut self, scope: &Scope, owner: Option<(usize, u32)>, levels: usize, item_of: Option<usize>) -> usize {
        let number = self.scopes.len();
        let first = self.nodes.len();
        let nodes: Vec<usize> = (first..first + scope.steps.len()).collect();
        self.scopes.push(ScopePlan { owner, nodes: nodes.clone(), levels });
        for step in &scope.steps {
            self.by_id.insert(step.id.clone(), self.nodes.len());
            self.nodes.push(Node {
                step: Arc::new(step.clone()),
                scope: number,
                needs: step.needs.iter().map(|n| first + n).collect(),
                needed_by: Vec::new(),
                inner: Vec::new(),
                read: false,
                undoes: step.compensate.is_some(),
                item_of,
                keeps_undo: false,
            });
        }
        for &node in &nodes {
            for need in self.nodes[node].needs.clone() {
                self.nodes[need].needed_by.push(node);
            }
        }
        for (step, &node) in scope.steps.iter().zip(&nodes) {
            let item_of = if step.for_each.is_some() { Some(node) } else { item_of };
            let levels = levels
                + usize::from(step.for_each.is_some())
                + usize::from(repeats(step))
                + usize::from(matches!(step.kind, Kind::Loop(_)));
            for (branch, inner) in step.kind.scopes().into_iter().enumerate() {
                let inner = self.lay(inner, Some((node, branch as u32)), levels, item_of);
                self.nodes[node].inner.push(inner);
                let undoes = self.scopes[inner].nodes.iter().any(|&n| self.nodes[n].undoes);
                self.nodes[node].undoes |= undoes;
            }
        }
        number
    }

    /// Marks the steps whose results expressions read, and the compensations whose input must be computed early.
    fn look_at_reads(&mut self) {
        let mut read = BTreeSet::new();
        let mut all = false;
        self.each_expression(&mut |expr| {
            for path in expr.reads().paths().filter(|path| path.first().is_some_and(|name| name == "steps")) {
                match (path.get(1), path.get(2).map(String::as_str)) {
                    (Some(id), None | Some("result")) => drop(read.insert(id.clone())),
                    (None, _) => all = true,
                    _ => {}
                }
            }
        });
        for (id, &node) in &self.by_id {
            self.nodes[node].read = all || read.contains(id);
        }
        for node in 0..self.nodes.len() {
            let step = self.nodes[node].step.clone();
            let Some(job) = step.compensate.as_ref().and_then(|c| c.job.as_ref()) else { continue };
            let mut keeps = false;
            each_of_job(job, &mut |expr| {
                for path in expr.reads().paths() {
                    keeps |= match path.first().map(String::as_str) {
                        Some("now" | "state") => true,
                        Some("steps") => match path.get(1).and_then(|id| self.by_id.get(id)) {
                            None => true,
                            Some(&other) => self.in_item(other),
                        },
                        _ => false,
                    };
                }
            });
            self.nodes[node].keeps_undo = keeps;
        }
    }

    /// Whether what a step leaves behind is dropped when an item around it, or its own, ends.
    fn in_item(&self, node: usize) -> bool {
        self.nodes[node].item_of.is_some() || self.nodes[node].step.for_each.is_some()
    }

    fn each_expression(&self, visit: &mut dyn FnMut(&Expr)) {
        if let Some(output) = &self.definition.output {
            each_of(output, visit);
        }
        for node in &self.nodes {
            let step = &node.step;
            step.when.iter().for_each(&mut *visit);
            if let Some(each) = &step.for_each {
                visit(&each.items);
                each.collect.iter().for_each(&mut *visit);
            }
            if let Some(job) = step.compensate.as_ref().and_then(|c| c.job.as_ref()) {
                each_of_job(job, visit);
            }
            match &step.kind {
                Kind::Job(job) => each_of_job(job, visit),
                Kind::Approval(ask) => {
                    each_of(&ask.title, visit);
                    ask.show.iter().for_each(|t| each_of(t, visit));
                }
                Kind::Delay(crate::definition::DelayStep::Ms(t) | crate::definition::DelayStep::Until(t)) => {
                    each_of(t, visit)
                }
                Kind::Set(t) => each_of(t, visit),
                Kind::Switch(branches) => branches.iter().filter_map(|b| b.when.as_ref()).for_each(&mut *visit),
                Kind::Loop(step) => {
                    step.init.iter().chain(&step.next).for_each(|t| each_of(t, visit));
                    visit(&step.until);
                }
                Kind::Workflow(step) => step.input.iter().for_each(|t| each_of(t, visit)),
                Kind::Notify(step) => step.data.iter().for_each(|t| each_of(t, visit)),
                Kind::Fail { message, .. } => each_of(message, visit),
                Kind::WaitSignal(_) | Kind::Parallel(_) | Kind::Steps(_) => {}
            }
        }
    }

    /// What becomes of running steps when one fails.
    pub(crate) fn on_failure(&self) -> OnFailure {
        self.definition.on_failure
    }

    pub(crate) fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    pub(crate) fn step(&self, node: usize) -> &Arc<Step> {
        &self.nodes[node].step
    }

    pub(crate) fn scope(&self, scope: usize) -> &ScopePlan {
        &self.scopes[scope]
    }

    pub(crate) fn find(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// How many numbers address the step as a whole.
    pub(crate) fn levels(&self, node: usize) -> usize {
        self.scopes[self.nodes[node].scope].levels
    }

    /// Whether a place is an item of the step's own for-each.
    pub(crate) fn is_item(&self, place: &Place) -> bool {
        self.step(place.node).for_each.is_some() && place.at.len() > self.levels(place.node)
    }

    /// Whether a place is a step with a for-each, as a whole.
    pub(crate) fn is_each(&self, place: &Place) -> bool {
        self.step(place.node).for_each.is_some() && place.at.len() == self.levels(place.node)
    }

    /// The for-each and the item that a place belongs to, its own included.
    pub(crate) fn item_around(&self, place: &Place) -> Option<(Place, u32)> {
        let each = if self.is_item(place) { place.node } else { self.nodes[place.node].item_of? };
        let levels = self.levels(each);
        Some((Place::new(each, &place.at[..levels]), *place.at.get(levels)?))
    }

    /// The scope that a step stands in.
    pub(crate) fn scope_of(&self, place: &Place) -> Inside {
        let scope = self.nodes[place.node].scope;
        Inside { scope, at: place.at[..self.scopes[scope].levels].to_vec() }
    }

    /// The step (or its item) that holds a scope, and which of its scopes it is.
    pub(crate) fn holder(&self, inside: &Inside) -> Option<(Place, u32)> {
        let (node, branch) = self.scopes[inside.scope].owner?;
        let levels = self.levels(node) + usize::from(self.step(node).for_each.is_some());
        Some((Place::new(node, &inside.at[..levels]), branch))
    }

    /// The steps of a scope.
    pub(crate) fn children(&self, inside: &Inside) -> impl Iterator<Item = Place> {
        self.scopes[inside.scope].nodes.iter().map(|&node| Place::new(node, &inside.at))
    }

    /// The outermost step around a step.
    pub(crate) fn outermost(&self, node: usize) -> usize {
        let mut node = node;
        while let Some((owner, _)) = self.scopes[self.nodes[node].scope].owner {
            node = owner;
        }
        node
    }

    /// The text of a place: the step's id, and each number in brackets.
    pub fn text(&self, place: &Place) -> String {
        let mut text = self.step(place.node).id.clone();
        for number in &place.at {
            text.push_str(&format!("[{number}]"));
        }
        text
    }

    /// Reads the text of a place.
    pub fn place(&self, text: &str) -> Option<Place> {
        let (id, numbers) = text.split_once('[').map_or((text, None), |(id, rest)| (id, Some(rest)));
        let node = self.find(id)?;
        let mut at = Vec::new();
        if let Some(numbers) = numbers {
            for number in numbers.strip_suffix(']')?.split("][") {
                at.push(number.parse().ok()?);
            }
        }
        let levels = self.levels(node);
        let fits = at.len() == levels || (self.step(node).for_each.is_some() && at.len() == levels + 1);
        fits.then_some(Place { node, at })
    }

    /// Whether any step waits for people.
    pub(crate) fn has_approvals(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.step.kind, Kind::Approval(_)))
    }
}

/// How often a step whose scope (or sub-run) the engine repeats may start.
pub(crate) fn attempts(step: &Step) -> u32 {
    match (&step.kind, step.retry) {
        (Kind::Job(_), _) | (_, None) => 1,
        (_, Some(retry)) => u32::from(retry.over(RetryPolicy::default()).max_attempts),
    }
}

/// Whether a step's scopes carry the number of its attempt.
pub(crate) fn repeats(step: &Step) -> bool {
    attempts(step) > 1 && !step.kind.scopes().is_empty()
}

fn each_of(template: &Template, visit: &mut dyn FnMut(&Expr)) {
    template.expressions().for_each(|(_, expr)| visit(expr));
}

fn each_of_job(job: &JobStep, visit: &mut dyn FnMut(&Expr)) {
    job.payload.iter().chain(&job.concurrency_key).chain(&job.delay_ms).for_each(|t| each_of(t, visit));
    job.labels.values().for_each(|t| each_of(t, visit));
}
