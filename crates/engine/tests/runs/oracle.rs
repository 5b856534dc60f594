//! A second, naive engine for graphs of jobs, which knows nothing of the first: after each end it looks at all steps
//! again until nothing changes.

use std::collections::BTreeMap;

use muster_domain::job::Ending;
use muster_engine::run::{RunState, StepState};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{tape::Tape, world::World};

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Waiting,
    Running,
    Good,
    Bad,
    Skipped { by_failure: bool },
}

struct Step {
    needs: Vec<usize>,
    run_if: &'static str,
    goes_on: bool,
}

fn settle(steps: &[Step], states: &mut [State], failing: &mut bool) {
    loop {
        let before = states.to_vec();
        for (n, step) in steps.iter().enumerate() {
            let needed: Vec<State> = step.needs.iter().map(|&need| states[need]).collect();
            let over = needed.iter().all(|state| !matches!(state, State::Waiting | State::Running));
            if states[n] != State::Waiting || !over {
                continue;
            }
            let bad = needed.iter().any(|state| matches!(state, State::Bad | State::Skipped { by_failure: true }));
            let fatal = step.needs.iter().any(|&need| states[need] == State::Bad && !steps[need].goes_on);
            states[n] = match step.run_if {
                "success" if *failing || fatal => State::Skipped { by_failure: true },
                "failure" if !bad => State::Skipped { by_failure: false },
                _ => State::Running,
            };
        }
        *failing |= steps.iter().zip(states.iter()).any(|(step, state)| *state == State::Bad && !step.goes_on);
        if states == before {
            return;
        }
    }
}

fn compare(making: &[u8], playing: &[u8]) {
    let mut tape = Tape::new(making);
    let count = 1 + tape.pick(9);
    let steps: Vec<Step> = (0..count)
        .map(|n| Step {
            needs: (0..n).filter(|_| tape.once_in(3)).collect(),
            run_if: ["success", "success", "failure", "always"][tape.pick(4)],
            goes_on: tape.once_in(4),
        })
        .collect();
    let written: Vec<Value> = steps
        .iter()
        .enumerate()
        .map(|(n, step)| {
            let needs: Vec<String> = step.needs.iter().map(|need| format!("s{need}")).collect();
            let on_error = if step.goes_on { "continue" } else { "fail" };
            json!({"id": format!("s{n}"), "needs": needs, "run_if": step.run_if, "on_error": on_error, "job": {"topic": "t"}})
        })
        .collect();
    let mut w = World::start(&json!({"on_failure": "finish", "steps": written}).to_string(), json!({}));
    let (mut states, mut failing) = (vec![State::Waiting; count], false);
    settle(&steps, &mut states, &mut failing);
    let mut tape = Tape::new(playing);
    loop {
        w.carry_out();
        let running: Vec<usize> = (0..count).filter(|&n| states[n] == State::Running).collect();
        let shown: BTreeMap<usize, StepState> = (0..count).map(|n| (n, w.step(&format!("s{n}")))).collect();
        for (&n, &state) in &shown {
            let expected = match states[n] {
                State::Waiting => StepState::Waiting,
                State::Running => StepState::Running,
                State::Good => StepState::Succeeded,
                State::Bad => StepState::Failed,
                State::Skipped { .. } => StepState::Skipped,
            };
            assert_eq!(state, expected, "s{n}: {shown:?}");
        }
        if running.is_empty() {
            break;
        }
        let n = running[tape.pick(running.len())];
        let good = tape.pick(3) != 0;
        states[n] = if good { State::Good } else { State::Bad };
        failing |= !good && !steps[n].goes_on;
        settle(&steps, &mut states, &mut failing);
        w.end(&format!("s{n}"), if good { Ending::Succeeded } else { Ending::Failed }, None);
    }
    assert_eq!(w.state(), if failing { RunState::Failed } else { RunState::Succeeded });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graphs_of_jobs_do_what_a_naive_engine_does(
        making in proptest::collection::vec(any::<u8>(), 0..80),
        playing in proptest::collection::vec(any::<u8>(), 0..30),
    ) {
        compare(&making, &playing);
    }
}
