//! Runs a protocol through `stateright` and searches for dead ends.
//!
//! Knows: nothing about jobs. Promises: stateright's checker visits every reachable state and checks the laws
//! (`always`) and sights (`sometimes`) there. During the exploration every step is recorded. Afterwards a backward
//! walk over the steps that are not faults finds the states from which no goal can be reached. This is the property
//! `EF goal`, which stateright's `eventually` cannot express: a lost reply may be followed by another for ever, but
//! from every state there must be a path to an end. Leaves to others: the meaning of the states.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// The law that holds for every protocol without being listed.
pub(crate) const NO_DEAD_END: &str = "from every state an end can be reached without a fault";

/// A protocol: its initial states, its steps, and its laws.
pub(crate) trait Protocol: Send + Sync + Sized + 'static {
    type State: Clone + Eq + Hash + Debug + Send + Sync + 'static;

    /// The initial states.
    fn begins(&self) -> Vec<Self::State>;

    /// Every possible next step. The caller leaves out steps that change nothing.
    fn steps(&self, state: &Self::State) -> Vec<Step<Self::State>>;

    /// Whether a job's life may end in this state.
    fn is_goal(&self, state: &Self::State) -> bool;

    /// What must always hold, and what must be seen for the rest to mean anything.
    fn laws(&self) -> Vec<Property<Checked<Self>>>;
}

/// One possible step.
#[derive(Clone, PartialEq)]
pub(crate) struct Step<S> {
    /// The process that takes the step.
    pub(crate) who: &'static str,
    /// What the process does, named after the function that does it.
    pub(crate) what: &'static str,
    /// A crash, a loss, or any other step that no path to the end may depend on.
    pub(crate) fault: bool,
    /// The state that the step leads to.
    pub(crate) to: S,
}

impl<S> Step<S> {
    pub(crate) fn new(who: &'static str, what: &'static str, to: S) -> Step<S> {
        Step { who, what, fault: false, to }
    }

    pub(crate) fn fault(who: &'static str, what: &'static str, to: S) -> Step<S> {
        Step { who, what, fault: true, to }
    }

    fn deed(&self) -> String {
        format!("{} {}", self.who, self.what)
    }
}

impl<S> Debug for Step<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.deed())
    }
}

/// A protocol as stateright sees it, with a record of every step that was taken.
pub(crate) struct Checked<P: Protocol> {
    pub(crate) protocol: P,
    graph: Mutex<Graph<P::State>>,
}

impl<P: Protocol> Checked<P> {
    fn graph(&self) -> MutexGuard<'_, Graph<P::State>> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Protocol> Model for Checked<P> {
    type State = P::State;
    type Action = Step<P::State>;

    fn init_states(&self) -> Vec<P::State> {
        self.protocol.begins()
    }

    fn actions(&self, state: &P::State, actions: &mut Vec<Step<P::State>>) {
        actions.extend(self.protocol.steps(state).into_iter().filter(|step| step.to != *state));
    }

    fn next_state(&self, last: &P::State, step: Step<P::State>) -> Option<P::State> {
        self.graph().note(&self.protocol, last, &step);
        Some(step.to)
    }

    fn properties(&self) -> Vec<Property<Checked<P>>> {
        self.protocol.laws()
    }
}

/// A fast hash of moderate quality: the states are not chosen by an attacker, and there are millions of them.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.unsigned_abs() as u64);
    }
}

/// Every visited state, and the steps between them.
struct Graph<S> {
    ids: HashMap<S, u32, BuildHasherDefault<Mix>>,
    goal: Vec<bool>,
    /// How each state was first reached. `None` for an initial state.
    parent: Vec<Option<(u32, &'static str, &'static str)>>,
    /// The steps that are not faults.
    ways: Vec<(u32, u32)>,
    /// The state that the last step left: most often the next step leaves it too.
    left: Option<(S, u32)>,
}

impl<S: Clone + Eq + Hash> Graph<S> {
    fn new() -> Graph<S> {
        Graph { ids: HashMap::default(), goal: Vec::new(), parent: Vec::new(), ways: Vec::new(), left: None }
    }

    fn id<P: Protocol<State = S>>(
        &mut self,
        protocol: &P,
        state: &S,
        how: Option<(u32, &'static str, &'static str)>,
    ) -> u32 {
        if let Some(id) = self.ids.get(state) {
            return *id;
        }
        let id = u32::try_from(self.parent.len()).expect("fewer states than that");
        self.ids.insert(state.clone(), id);
        self.goal.push(protocol.is_goal(state));
        self.parent.push(how);
        id
    }

    fn note<P: Protocol<State = S>>(&mut self, protocol: &P, last: &S, step: &Step<S>) {
        let from = match &self.left {
            Some((left, id)) if left == last => *id,
            _ => {
                let id = self.id(protocol, last, None);
                self.left = Some((last.clone(), id));
                id
            }
        };
        let to = self.id(protocol, &step.to, Some((from, step.who, step.what)));
        if !step.fault {
            self.ways.push((from, to));
        }
    }

    /// The first visited state from which no goal can be reached.
    fn dead_end(&self) -> Option<u32> {
        let mut first = vec![0_usize; self.parent.len() + 1];
        for (_, to) in &self.ways {
            first[*to as usize + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let (mut place, mut back) = (first.clone(), vec![0_u32; self.ways.len()]);
        for (from, to) in &self.ways {
            back[place[*to as usize]] = *from;
            place[*to as usize] += 1;
        }
        let mut fine = self.goal.clone();
        let mut todo: Vec<usize> = (0..fine.len()).filter(|id| fine[*id]).collect();
        while let Some(to) = todo.pop() {
            for from in &back[first[to]..first[to + 1]] {
                let from = *from as usize;
                if !fine[from] {
                    fine[from] = true;
                    todo.push(from);
                }
            }
        }
        fine.iter().position(|fine| !fine).and_then(|id| u32::try_from(id).ok())
    }

    fn way_to(&self, mut id: u32) -> Vec<String> {
        let mut way = Vec::new();
        while let Some((from, who, what)) = self.parent[id as usize] {
            way.push(format!("{who} {what}"));
            id = from;
        }
        way.reverse();
        way
    }
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The number of different states.
    pub(crate) states: usize,
    /// The broken laws, each with the steps that led there.
    pub(crate) broken: BTreeMap<&'static str, Vec<String>>,
    /// The sights that were not seen.
    pub(crate) unseen: Vec<&'static str>,
}

/// Explores until every state was visited, or the `wanted` law is broken.
fn explore<P: Protocol>(protocol: P, wanted: Option<&'static str>) -> Verdict {
    let model = Checked { protocol, graph: Mutex::new(Graph::new()) };
    for begin in model.init_states() {
        model.graph().id(&model.protocol, &begin, None);
    }
    let until = match wanted {
        Some(law) if law != NO_DEAD_END => HasDiscoveries::AllOf(BTreeSet::from([law])),
        // Sights alone never end the search: a law that holds is never discovered.
        _ => HasDiscoveries::AllOf(BTreeSet::from([NO_DEAD_END])),
    };
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    let seen = checker.discoveries();
    let (model, graph) = (checker.model(), checker.model().graph());
    let mut verdict = Verdict { states: checker.unique_state_count(), broken: BTreeMap::new(), unseen: Vec::new() };
    for law in model.properties() {
        match (law.expectation, seen.contains_key(law.name)) {
            (Expectation::Always, true) => {
                // The checker reports one path of many. The first visited bad state has a shortest path.
                let bad = graph.ids.iter().filter(|(state, _)| !(law.condition)(model, state)).map(|(_, id)| *id);
                verdict.broken.insert(law.name, bad.min().map(|id| graph.way_to(id)).unwrap_or_default());
            }
            (Expectation::Sometimes, false) => verdict.unseen.push(law.name),
            _ => {}
        }
    }
    if wanted.is_none() || wanted == Some(NO_DEAD_END) {
        assert_eq!(graph.parent.len(), verdict.states, "every state was noted");
        if let Some(id) = graph.dead_end() {
            verdict.broken.insert(NO_DEAD_END, graph.way_to(id));
        }
    }
    drop(graph);
    verdict
}

/// Checks that every law holds in every state, and that every sight was seen.
pub(crate) fn holds<P: Protocol>(name: &str, protocol: P) {
    let began = std::time::Instant::now();
    let verdict = explore(protocol, None);
    eprintln!("{name}: {} states in {:.1?}", verdict.states, began.elapsed());
    let broken: Vec<String> = verdict.broken.iter().map(|(law, way)| format!("{law}: {}", way.join(" | "))).collect();
    assert!(broken.is_empty(), "{name}:\n{}", broken.join("\n"));
    assert!(verdict.unseen.is_empty(), "{name} never saw: {:?}", verdict.unseen);
}

/// Checks that this law is broken, as it should be: the protocol has a flaw on purpose.
pub(crate) fn breaks<P: Protocol>(name: &str, protocol: P, law: &'static str) {
    let began = std::time::Instant::now();
    let verdict = explore(protocol, Some(law));
    let way = verdict.broken.get(law);
    eprintln!(
        "{name}: {} states in {:.1?}: {}",
        verdict.states,
        began.elapsed(),
        way.map_or(String::new(), |w| w.join(" | "))
    );
    assert!(way.is_some(), "{name}: nobody noticed; broken: {:#?}", verdict.broken);
}
