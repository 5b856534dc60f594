//! Choices read off a tape of bytes, so that a failing case shrinks; and definitions made of such choices.

use serde_json::{Map, Value, json};

/// A tape of choices. Behind its end, every choice is the first.
pub(crate) struct Tape<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl<'t> Tape<'t> {
    pub(crate) fn new(bytes: &'t [u8]) -> Tape<'t> {
        Tape { bytes, at: 0 }
    }

    /// One of `n` choices.
    pub(crate) fn pick(&mut self, n: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % n.max(1)
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.pick(n) == n - 1
    }

    pub(crate) fn is_over(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

/// A random definition as JSON.
pub(crate) struct Maker<'m, 't> {
    tape: &'m mut Tape<'t>,
    ids: usize,
}

impl<'m, 't> Maker<'m, 't> {
    pub(crate) fn definition(tape: &'m mut Tape<'t>) -> Value {
        let mut maker = Maker { tape, ids: 0 };
        let mut definition = json!({"steps": maker.scope(0, false)});
        if maker.tape.once_in(3) {
            definition["on_failure"] = json!("finish");
        }
        if maker.tape.once_in(5) {
            definition["timeout_ms"] = json!(50_000);
        }
        definition
    }

    fn scope(&mut self, depth: usize, in_loop: bool) -> Value {
        let most = [5, 3, 2, 2][depth.min(3)];
        let count = 1 + self.tape.pick(most);
        let mut steps: Vec<Value> = Vec::new();
        for _ in 0..count {
            let step = self.step(depth, in_loop, &steps);
            steps.push(step);
        }
        Value::Array(steps)
    }

    fn step(&mut self, depth: usize, in_loop: bool, before: &[Value]) -> Value {
        let id = format!("s{}", self.ids);
        self.ids += 1;
        let mut step = Map::new();
        step.insert("id".into(), json!(id));
        let needs: Vec<&Value> = before.iter().filter(|_| self.tape.pick(2) == 1).map(|step| &step["id"]).collect();
        if !needs.is_empty() {
            step.insert("needs".into(), json!(needs));
            let run_if = ["success", "success", "failure", "always"][self.tape.pick(4)];
            step.insert("run_if".into(), json!(run_if));
        }
        if self.tape.once_in(5) {
            step.insert("on_error".into(), json!("continue"));
        }
        if self.tape.once_in(6) {
            step.insert("when".into(), json!(["true", "false", "input.flag"][self.tape.pick(3)]));
        }
        let kinds = if depth < 3 { 13 } else { 8 };
        let (name, value, nested) = match self.tape.pick(kinds) {
            0..=2 => ("job", json!({"topic": "t", "payload": {"n": 1, "now": "${{ string(now) }}"}}), false),
            3 => ("delay", json!({"ms": 1000 * self.tape.pick(4)}), false),
            4 => ("set", json!("${{ input.flag }}"), false),
            5 => ("wait_signal", json!({"name": (["x", "y"][self.tape.pick(2)]), "timeout_ms": 5_000}), false),
            6 => ("approval", json!({"title": "Really?", "expires_ms": 7_000}), false),
            7 if self.tape.once_in(3) => ("fail", json!({"code": "oops", "message": "no"}), false),
            7 => ("notify", json!({"type": "my.event", "data": 1}), false),
            8 => ("steps", self.scope(depth + 1, in_loop), true),
            9 => {
                let first = self.scope(depth + 1, in_loop);
                (
                    "switch",
                    json!([{"when": "input.flag", "steps": first}, {"else": self.scope(depth + 1, in_loop)}]),
                    true,
                )
            }
            10 => {
                let (a, b) = (self.scope(depth + 1, in_loop), self.scope(depth + 1, in_loop));
                let wait = [json!("all"), json!("any"), json!(2)][self.tape.pick(3)].clone();
                ("parallel", json!({"branches": {"a": a, "b": b}, "wait": wait}), true)
            }
            11 => {
                let steps = self.scope(depth + 1, true);
                let state = json!({"init": 0, "next": "${{ state + 1 }}"});
                let until = ["state >= 2", "state >= 1", "state >= 5"][self.tape.pick(3)];
                ("loop", json!({"steps": steps, "state": state, "until": until, "max": 4}), true)
            }
            _ => ("workflow", json!({"name": "other", "wait": !self.tape.once_in(3)}), false),
        };
        let waits = value["wait"] != json!(false);
        step.insert(name.into(), value);
        if self.tape.once_in(4) {
            let list = ["[1, 2, 3]", "[]", "input.list"][self.tape.pick(3)];
            let mut each = json!({"items": list, "max_parallel": 1 + self.tape.pick(3)});
            if self.tape.once_in(2) {
                each["tolerate"] = json!({"count": self.tape.pick(3)});
            }
            if self.tape.once_in(4) {
                each["min_success"] = json!(1);
            }
            if self.tape.once_in(3) {
                each["collect"] = json!("index");
            }
            step.insert("for_each".into(), each);
        }
        if self.tape.once_in(3) && matches!(name, "job") {
            let when = ["succeeded", "started"][self.tape.pick(2)];
            let payload = json!({"at": "${{ string(now) }}", "end": format!("${{{{ steps.{id}.state }}}}")});
            step.insert("compensate".into(), json!({"job": {"topic": "undo", "payload": payload}, "when": when}));
        }
        if name == "workflow" && waits && self.tape.once_in(3) {
            step.insert("compensate".into(), json!("self"));
        }
        if (nested || name == "workflow" && waits) && self.tape.once_in(4) {
            step.insert("retry".into(), json!({"max_attempts": 2, "backoff": {"initial_ms": 1000}}));
        }
        if name != "job" && self.tape.once_in(6) {
            step.insert("timeout_ms".into(), json!(3_000));
        }
        Value::Object(step)
    }
}
