//! Every fault with its place. In the texts below, `«` stands right before the place of a fault and is no part of the
//! text.

use super::super::*;
use super::{told, yaml};

/// A case: the codes of its faults in the order of the text, a part of the first message, and the text.
type Case = (&'static [&'static str], &'static str, &'static str);

/// The text without its signs, and their places.
fn unmarked(text: &str) -> (String, Vec<(u32, u32)>) {
    let (mut out, mut places, mut line, mut column) = (String::new(), Vec::new(), 1, 1);
    for c in text.chars() {
        match c {
            '«' => {
                places.push((line, column));
                continue;
            }
            '\n' => (line, column) = (line + 1, 1),
            _ => column += 1,
        }
        out.push(c);
    }
    (out, places)
}

fn check(cases: &[Case], format: Format) {
    let mut wrong = String::new();
    for (codes, words, marked) in cases {
        let (text, places) = unmarked(marked);
        let faults = read_named(text.as_bytes(), format, Some("own")).err().unwrap_or_default();
        let expected: Vec<(u32, u32, &str)> =
            places.iter().zip(*codes).map(|((line, column), code)| (*line, *column, *code)).collect();
        let found: Vec<(u32, u32, &str)> = faults.iter().map(|f| (f.line, f.column, f.code)).collect();
        assert_eq!(places.len(), codes.len(), "the case names as many places as codes:\n{marked}");
        let says = faults.iter().any(|fault| fault.message.contains(words));
        if found != expected || !says {
            wrong += &format!("{marked}\nexpected {expected:?} with `{words}`, found\n{}\n", told(&faults));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn faults_of_the_text() {
    check(
        &[
            (&["syntax"], "empty", "«"),
            (&["syntax"], "empty", "«# nothing\n"),
            (&["wrong_type"], "must be an object, not a string", "«hello"),
            (&["wrong_type"], "must be an object, not a list", "«- id: a"),
            (&["duplicate_key"], "`steps` is given twice", "steps: [{id: a, set: 1}]\n«steps: []"),
            (&["duplicate_key"], "`id` is given twice", "steps: [{id: a, set: 1, «id: b}]"),
            (&["duplicate_key"], "`1` is given twice", "steps: [{id: a, set: {1: a, «\"1\": b}}]"),
            (&["syntax"], "merge keys", "x: &x {id: a}\nsteps:\n- «<<: *x\n  set: 1"),
            (&["syntax"], "a second YAML document", "steps: [{id: a, set: 1}]\n«---\nsteps: []"),
            (&["syntax"], "the tag `!secret`", "steps: [{id: a, set: «!secret x}]"),
            (&["syntax"], "is not what the tag", "steps: [{id: a, set: «!!int x}]"),
            (&["syntax"], "a key must be a string", "steps: [{id: a, set: {«[1]: 2}}]"),
            (&["syntax"], "inside the value that it names", "steps: &s [{id: a, set: «*s}]"),
            (&["bad_number"], "begins with a zero", "steps: [{id: a, set: «007}]"),
            (&["bad_number"], "no number", "steps: [{id: a, set: «.inf}]"),
        ],
        Format::Yaml,
    );
    check(
        &[
            (&["syntax"], "ends where", "«"),
            (&["syntax"], "a key in double quotes", "{«steps: []}"),
            (&["syntax"], "goes on after", "{\"steps\": [{\"id\": \"a\", \"set\": 1}]} «x"),
            (&["syntax"], "`,` or `]`", "{\"steps\": [1 «2]}"),
            (&["syntax"], "a JSON value", "{\"steps\": «nope}"),
            (&["syntax"], "not a JSON number", "{\"steps\": «01}"),
            (&["syntax"], "no end", "{\"steps\":\n \"a«"),
            (&["duplicate_key"], "twice", "{\"steps\": [],\n «\"steps\": []}"),
            (
                &["missing_field", "unknown_field"],
                "`stpes` is not a field here; did you mean `steps`?",
                "«{\n «\"stpes\": 1}",
            ),
        ],
        Format::Json,
    );
}

#[test]
fn the_place_of_text_that_is_not_utf8_is_known() {
    let faults = read(b"steps:\n  \xc3\xa4\xff", Format::Yaml).unwrap_err();
    assert_eq!((faults[0].line, faults[0].column, faults[0].code), (2, 4, "syntax"));
}

#[test]
fn faults_of_fields() {
    check(
        &[
            (&["missing_field"], "`steps` is missing", "«description: x"),
            (&["invalid_value"], "at least one step", "steps: «[]"),
            (&["wrong_type"], "`steps` must be a list, not an object", "steps: «{id: a}"),
            (&["wrong_type"], "`steps[0]` must be an object", "steps: [«1]"),
            (&["unknown_field"], "did you mean `description`?", "«descripton: x\nsteps: [{id: a, set: 1}]"),
            (
                &["unknown_field"],
                "`timeout` is not a field here; did you mean `timeout_ms`?",
                "steps: [{id: a, set: 1, «timeout: 1}]",
            ),
            (&["unknown_field", "unknown_field"], "`b/c~` is not", "«a: 1\n«b/c~: 1\nsteps: [{id: a, set: 1}]"),
            (
                &["wrong_type"],
                "`timeout_ms` must be a whole number from 1 to 315360000000, not a string",
                "timeout_ms: «\"1\"\nsteps: [{id: a, set: 1}]",
            ),
            (&["invalid_value"], "not 0", "timeout_ms: «0\nsteps: [{id: a, set: 1}]"),
            (&["invalid_value"], "not 1.5", "timeout_ms: «1.5\nsteps: [{id: a, set: 1}]"),
            (&["invalid_value"], "not -1", "timeout_ms: «-1\nsteps: [{id: a, set: 1}]"),
            (
                &["invalid_value"],
                "one of `cancel`, `finish`, not `cancle`; did you mean `cancel`?",
                "on_failure: «cancle\nsteps: [{id: a, set: 1}]",
            ),
            (&["missing_field"], "`max` is missing", "concurrency: «{key: input.a}\nsteps: [{id: a, set: 1}]"),
            (&["invalid_value"], "`cel`", "expressions: «jq\nsteps: [{id: a, set: 1}]"),
            (&["invalid_schema"], "not a JSON Schema", "input: {type: «strnig}\nsteps: [{id: a, set: 1}]"),
            (&["wrong_type"], "a JSON Schema", "input: «12\nsteps: [{id: a, set: 1}]"),
            (
                &["invalid_value", "invalid_value"],
                "",
                "defaults: {retry: {max_attempts: «0, backoff: {factor: «0.5}}}\nsteps: [{id: a, set: 1}]",
            ),
            (&["unknown_field"], "`retries`", "defaults: {«retries: 1}\nsteps: [{id: a, set: 1}]"),
        ],
        Format::Yaml,
    );
}

#[test]
fn faults_of_steps() {
    check(
        &[
            (&["missing_field", "step_kind"], "`id` is missing", "steps: [««{}]"),
            (&["step_kind"], "does nothing: one of `job`, `approval`", "steps: [«{id: a}]"),
            (
                &["step_kind", "unknown_field"],
                "`jbo` is not a field here; did you mean `job`?",
                "steps: [«{id: a, «jbo: {topic: t}}]",
            ),
            (&["step_kind"], "one thing: `job` or `set`", "steps: [{id: a, job: {topic: t}, «set: 1}]"),
            (&["invalid_value"], "`id` must begin with a letter", "steps: [{id: «a-b, set: 1}]"),
            (&["invalid_value"], "`id` must begin with a letter", "steps: [{id: «1a, set: 1}]"),
            (&["wrong_type"], "`id` must be a string, not a number", "steps: [{id: «1, set: 1}]"),
            (&["invalid_value"], "a word of the expression language", "steps: [{id: «in, set: 1}]"),
            (
                &["duplicate_id"],
                "the id `a` is taken by the step at /steps/0",
                "steps: [{id: a, set: 1}, {id: «a, set: 2}]",
            ),
            (
                &["duplicate_id"],
                "unique in the whole definition",
                "steps: [{id: a, set: 1}, {id: b, steps: [{id: «a, set: 2}]}]",
            ),
            (
                &["unknown_step"],
                "there is no step `chrage`; did you mean `charge`?",
                "steps: [{id: charge, set: 1}, {id: b, needs: [«chrage], set: 1}]",
            ),
            (
                &["step_not_visible"],
                "is in another scope",
                "steps: [{id: a, steps: [{id: in_a, set: 1}]}, {id: b, needs: [«in_a], set: 1}]",
            ),
            (
                &["step_not_visible"],
                "is in another scope",
                "steps: [{id: a, set: 1}, {id: b, steps: [{id: c, needs: [«a], set: 1}]}]",
            ),
            (&["cycle"], "needs itself", "steps: [{id: a, needs: [«a], set: 1}]"),
            (
                &["cycle"],
                "a circle: a needs c needs b needs a",
                "steps: [{id: a, needs: «[c], set: 1}, {id: b, needs: [a], set: 1}, {id: c, needs: [b], set: 1}]",
            ),
            (
                &["cycle", "cycle"],
                "circle",
                "steps: [{id: a, needs: «[b], set: 1}, {id: b, needs: [a], set: 1}, {id: c, needs: «[d], set: 1}, {id: d, needs: [c], set: 1}]",
            ),
            (&["invalid_value"], "names `a` twice", "steps: [{id: a, set: 1}, {id: b, needs: [a, «a], set: 1}]"),
            (&["wrong_type"], "`needs` must be a list", "steps: [{id: a, set: 1}, {id: b, needs: «a, set: 1}]"),
            (&["wrong_type"], "`team` must be a string", "steps: [{id: a, labels: {team: «1}, set: 1}]"),
            (&["not_literal"], "fixed text", "steps: [{id: a, labels: {team: «\"${{ input.x }}\"}, set: 1}]"),
            (&["invalid_value"], "run_if", "steps: [{id: a, run_if: «failed, set: 1}]"),
        ],
        Format::Yaml,
    );
}

#[test]
fn faults_of_kinds() {
    check(
        &[
            (&["missing_field"], "`topic` is missing", "steps: [{id: a, job: «{}}]"),
            (&["invalid_value"], "a topic is parts", "steps: [{id: a, job: {topic: «A b}}]"),
            (&["not_literal"], "`topic` must be a fixed text", "steps: [{id: a, job: {topic: «\"x.${{ input.t }}\"}}]"),
            (
                &["unknown_field"],
                "`retry` is not a field of a step's job; write it beside `job`",
                "steps: [{id: a, job: {topic: t, «retry: {}}}]",
            ),
            (&["invalid_value"], "`priority`", "steps: [{id: a, job: {topic: t, priority: «urgent}}]"),
            (&["invalid_value"], "a label's value", "steps: [{id: a, job: {topic: t, labels: {a: «\"x\\0\"}}}]"),
            (&["invalid_value"], "visible ASCII", "steps: [{id: a, job: {topic: t, concurrency_key: «a b}}]"),
            (&["wrong_type"], "a whole number, or one", "steps: [{id: a, job: {topic: t, delay_ms: «soon}}]"),
            (&["missing_field"], "`title` is missing", "steps: [{id: a, approval: «{}}]"),
            (&["invalid_value"], "`quorum`", "steps: [{id: a, approval: {title: t, quorum: «0}}]"),
            (&["invalid_value"], "a voter is", "steps: [{id: a, approval: {title: t, from: [«a b]}}]"),
            (&["missing_field"], "`ms` or `until` is missing", "steps: [{id: a, delay: «{}}]"),
            (
                &["invalid_value"],
                "exclude each other",
                "steps: [{id: a, delay: {ms: 1, «until: 2030-01-01T00:00:00Z}}]",
            ),
            (&["invalid_value"], "must be a time", "steps: [{id: a, delay: {until: «tomorrow}}]"),
            (&["invalid_value"], "a signal's name", "steps: [{id: a, wait_signal: {name: «a b}}]"),
            (&["invalid_value"], "at least one branch", "steps: [{id: a, switch: «[]}]"),
            (&["missing_field", "missing_field"], "`when` is missing", "steps: [{id: a, switch: [««{}]}]"),
            (
                &["invalid_value"],
                "`else` must be the last",
                "steps: [{id: a, switch: [{«else: [{id: b, set: 1}]}, {when: true, steps: [{id: c, set: 1}]}]}]",
            ),
            (&["invalid_value"], "or `else`", "steps: [{id: a, switch: [{when: true, «else: [{id: b, set: 1}]}]}]"),
            (&["invalid_value"], "at least one branch", "steps: [{id: a, parallel: {branches: «{}}}]"),
            (
                &["invalid_value"],
                "the name of a branch",
                "steps: [{id: a, parallel: {branches: {«a-b: [{id: b, set: 1}]}}}]",
            ),
            (
                &["invalid_value"],
                "from 1 to 1, not 2",
                "steps: [{id: a, parallel: {wait: «2, branches: {x: [{id: b, set: 1}]}}}]",
            ),
            (
                &["invalid_value"],
                "`all`, `any`",
                "steps: [{id: a, parallel: {wait: «some, branches: {x: [{id: b, set: 1}]}}}]",
            ),
            (
                &["missing_field", "missing_field"],
                "`max` is missing",
                "steps: [{id: a, loop: ««{steps: [{id: b, set: 1}]}}]",
            ),
            (
                &["invalid_value"],
                "from 1 to 10000",
                "steps: [{id: a, loop: {steps: [{id: b, set: 1}], until: true, max: «10001}}]",
            ),
            (&["invalid_value"], "a workflow's name", "steps: [{id: a, workflow: {name: «A}}]"),
            (
                &["not_literal"],
                "`name` must be a fixed text",
                "steps: [{id: a, workflow: {name: «\"${{ input.w }}\"}}]",
            ),
            (&["self_call"], "`own` starts itself", "steps: [{id: a, workflow: {name: «own}}]"),
            (&["wrong_type"], "true or false", "steps: [{id: a, workflow: {name: w, wait: «no}}]"),
            (&["invalid_value"], "Muster's own", "steps: [{id: a, notify: {type: «muster.run.done}}]"),
            (&["invalid_value"], "lower-case", "steps: [{id: a, fail: {code: «Bad Code}}]"),
            (&["wrong_type"], "an object, not null", "steps: [{id: a, job: «null}]"),
        ],
        Format::Yaml,
    );
}

#[test]
fn faults_of_items_and_compensations() {
    check(
        &[
            (&["missing_field"], "`items` is missing", "steps: [{id: a, for_each: «{}, set: 1}]"),
            (
                &["wrong_type"],
                "an expression, written as a string, not a list",
                "steps: [{id: a, for_each: {items: «[1]}, set: 1}]",
            ),
            (&["invalid_value"], "leave out `${{`", "steps: [{id: a, for_each: {items: «\"${{ input.x }}\"}, set: 1}]"),
            (
                &["invalid_value"],
                "means something else",
                "steps: [{id: a, for_each: {items: input.x, as: «steps}, set: 1}]",
            ),
            (&["invalid_value"], "must be a name", "steps: [{id: a, for_each: {items: input.x, as: «a-b}, set: 1}]"),
            (
                &["invalid_value"],
                "from 0 to 100, not 101",
                "steps: [{id: a, for_each: {items: input.x, tolerate: {percent: «101}}, set: 1}]",
            ),
            (
                &["missing_field"],
                "`count` or `percent`",
                "steps: [{id: a, for_each: {items: input.x, tolerate: «{}}, set: 1}]",
            ),
            (
                &["invalid_value"],
                "max_parallel",
                "steps: [{id: a, for_each: {items: input.x, max_parallel: «0}, set: 1}]",
            ),
            (&["expression"], "`items` must be a list", "steps: [{id: a, for_each: {items: «\"1 + 1\"}, set: 1}]"),
            (&["invalid_value"], "only on a `workflow` step", "steps: [{id: a, compensate: «self, job: {topic: t}}]"),
            (
                &["invalid_value"],
                "waits for the sub-run",
                "steps: [{id: a, compensate: «self, workflow: {name: w, wait: false}}]",
            ),
            (&["invalid_value"], "an object with a `job`", "steps: [{id: a, compensate: «other, workflow: {name: w}}]"),
            (&["missing_field"], "`job` is missing", "steps: [{id: a, compensate: «{when: started}, set: 1}]"),
            (
                &["invalid_value"],
                "at most 100, not 101",
                "steps: [{id: a, loop: {until: true, max: 101, steps: [{id: b, steps: [{id: c, set: 1, «compensate: {job: {topic: t}}}]}]}}]",
            ),
        ],
        Format::Yaml,
    );
}

#[test]
fn what_an_expression_may_name() {
    check(
        &[
            (
                &["step_not_visible"],
                "`a` may not have ended here: add it to `needs`",
                "steps: [{id: a, set: 1}, {id: b, when: «steps.a.result == 1, set: 1}]",
            ),
            (
                &["unknown_step"],
                "no step `aa`; did you mean `a`?",
                "steps: [{id: a, set: 1}, {id: b, needs: [a], when: 1 == «steps.aa.result, set: 1}]",
            ),
            (
                &["unknown_step"],
                "no step `zzz`",
                "steps: [{id: a, set: 1}, {id: b, needs: [a], set: {x: [1, \"a ${{ input.x }} ${{ «steps.zzz.result }}\"]}}]",
            ),
            (
                &["step_not_visible"],
                "is inside another step",
                "steps: [{id: a, steps: [{id: c, set: 1}]}, {id: b, needs: [a], set: \"${{ «steps.c.result }}\"}]",
            ),
            (
                &["step_not_visible"],
                "this is a part of it",
                "steps: [{id: a, steps: [{id: c, set: \"${{ «steps.a.result }}\"}]}]",
            ),
            (&["step_not_visible"], "this is a part of it", "steps: [{id: a, set: \"${{ «steps.a.result }}\"}]"),
            (
                &["step_not_visible"],
                "add it to `needs`",
                "steps: [{id: a, set: 1}, {id: b, steps: [{id: c, set: \"${{ «steps.a.result }}\"}]}]",
            ),
            (&["expression"], "`steps` is not a value by itself", "steps: [{id: a, when: size(«steps) == 1, set: 1}]"),
            (
                &["step_not_visible"],
                "is inside another step",
                "steps: [{id: a, loop: {steps: [{id: c, set: 1}], until: true, max: 1}}]\noutput: ${{ «steps.c.result }}",
            ),
        ],
        Format::Yaml,
    );
    for fine in [
        "steps: [{id: a, set: 1}, {id: b, needs: [a], set: 1}, {id: c, needs: [b], when: steps.a.result == 1, set: 1}]",
        "steps: [{id: a, set: 1}, {id: b, needs: [a], steps: [{id: c, steps: [{id: d, set: \"${{ steps.a.result }}\"}]}]}]",
        "steps: [{id: a, for_each: {items: input.x, collect: steps.c.result}, steps: [{id: c, set: \"${{ item }}\"}]}]",
        "steps: [{id: a, job: {topic: t}, compensate: {job: {topic: t, payload: \"${{ steps.a.result.id }}\"}}}]",
        "steps: [{id: a, loop: {steps: [{id: c, set: 1}], state: {next: \"${{ steps.c.result }}\"}, until: steps.c.result == state, max: 3}}]",
        "steps: [{id: a, set: 1}, {id: b, needs: [a], switch: [{when: steps.a.result == 1, steps: [{id: c, set: 1}]}]}]",
        "steps: [{id: a, for_each: {items: input.x, as: p}, steps: [{id: c, for_each: {items: p.q}, set: \"${{ string(p.r) + string(item) }}\"}]}]",
    ] {
        assert!(yaml(fine).is_ok(), "{fine}\n{}", told(&yaml(fine).unwrap_err()));
    }
}

#[test]
fn limits_of_the_whole() {
    let nested = |depth: usize| {
        let mut inner = "[{id: leaf, set: 1}]".to_owned();
        (0..depth).for_each(|n| inner = format!("[{{id: s{n}, steps: {inner}}}]"));
        format!("steps: {inner}")
    };
    assert!(yaml(&nested(8)).is_ok());
    let faults = yaml(&nested(9)).unwrap_err();
    assert_eq!((faults.len(), faults[0].code), (1, "too_deep"), "{}", told(&faults));
    let many = |count: usize| (0..count).map(|n| format!("- {{id: s{n}, set: 1}}\n")).collect::<String>();
    assert!(yaml(&format!("steps:\n{}", many(1_000))).is_ok());
    let faults = yaml(&format!("steps:\n{}", many(1_001))).unwrap_err();
    assert_eq!((faults.len(), faults[0].code, faults[0].line), (1, "too_many_steps", 1_002), "{}", told(&faults));
    // Nested steps count too.
    let halves = format!("steps:\n- id: a\n  steps: [{{id: b, set: 1}}]\n{}", many(999));
    assert_eq!(yaml(&halves).unwrap_err()[0].code, "too_many_steps");
}

#[test]
fn all_faults_come_at_once() {
    check(
        &[(
            &[
                "unknown_field",
                "invalid_value",
                "step_kind",
                "unknown_field",
                "unknown_step",
                "wrong_type",
                "missing_field",
                "step_not_visible",
            ],
            "",
            "«descr: x\non_failure: «stop\nsteps:\n  - «{id: a, «joob: {topic: t}}\n  - id: b\n    needs: [a, «c]\n    timeout_ms: «soon\n    workflow: «{}\n  - id: d\n    set: ${{ «steps.a.result }}\n",
        )],
        Format::Yaml,
    );
}
