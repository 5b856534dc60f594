//! Random texts and random definitions.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::{EVERYTHING, told};

/// Text made of what YAML, JSON and the format give a meaning to.
fn pieces() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "steps",
        "id",
        "set",
        "job",
        "topic",
        ":",
        ": ",
        "-",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "'",
        "|",
        ">",
        "&a ",
        "*a",
        "!!str ",
        "#",
        "? ",
        "---\n",
        "...",
        "%YAML 1.2\n",
        "${{ ",
        " }}",
        "input.x",
        "steps.a.result",
        "a",
        "b",
        "1",
        "0x1",
        "1.5",
        "true",
        "null",
        "~",
        "<<",
        "\\",
        "\\u12",
        "\t",
        " ",
        "\r\n",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        "loop",
        "switch",
        "when",
        "else",
        "parallel",
        "branches",
        "needs",
        "ä",
        "😀",
        "\0",
    ]);
    prop::collection::vec(words, 0..60).prop_map(|words| words.concat())
}

/// A scope whose steps have ids that begin with `prefix`; the steps need earlier ones.
fn scope(prefix: String, depth: u32) -> BoxedStrategy<Value> {
    prop::collection::vec((any::<u64>(), kind(prefix.clone(), depth), any::<u64>()), 1..4)
        .prop_map(move |steps| {
            let steps = steps.into_iter().enumerate().map(|(n, (needs, kind, extra))| {
                let id = format!("{prefix}{n}");
                let needs: Vec<String> =
                    (0..n).filter(|k| needs >> k & 1 == 1).map(|k| format!("{prefix}{k}")).collect();
                let mut step = json!({"id": id, "needs": needs});
                let fields = step.as_object_mut().unwrap();
                if let Some(first) = needs.first().filter(|_| extra & 1 == 1) {
                    fields.insert("when".into(), json!(format!("steps.{first}.state == \"succeeded\"")));
                }
                if extra & 2 == 2 {
                    fields.insert(
                        "for_each".into(),
                        json!({"items": "input.list", "as": "one", "max_parallel": 1 + extra % 50}),
                    );
                }
                if extra & 4 == 4 {
                    fields.insert("compensate".into(), json!({"job": {"topic": "undo"}}));
                }
                if extra & 8 == 8 {
                    fields.insert("retry".into(), json!({"backoff": {"factor": 1.5, "initial_ms": extra % 100}}));
                }
                fields.extend(kind.as_object().unwrap().clone());
                // A step's own steps have ids that begin with its own.
                step
            });
            Value::Array(steps.collect())
        })
        .boxed()
}

fn kind(prefix: String, depth: u32) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| json!({"set": {"n": n, "text": "x ${{ input.x }}"}})),
        (0u64..1_000).prop_map(
            |n| json!({"job": {"topic": "a.b", "payload": n, "priority": "high", "labels": {"a": "${{ run.id }}"}}})
        ),
        (0u64..1_000).prop_map(|n| json!({"delay": {"ms": n}})),
        (1u32..9).prop_map(|n| json!({"approval": {"title": "${{ input.x }}?", "quorum": n, "from": ["group:a"]}})),
        any::<bool>().prop_map(|wait| json!({"workflow": {"name": "other", "wait": wait, "input": [1, null]}})),
        Just(json!({"wait_signal": {"name": "go", "timeout_ms": 5}})),
        Just(json!({"notify": {"type": "it.happened"}})),
        Just(json!({"fail": {"code": "no", "message": "why ${{ now }}"}})),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    // A counter would have to be shared; a random suffix keeps the ids of two nested scopes apart.
    let inner = (any::<u32>(), any::<u32>()).prop_flat_map(move |(a, b)| {
        (scope(format!("{prefix}x{a}_"), depth - 1), scope(format!("{prefix}y{b}_"), depth - 1))
    });
    prop_oneof![
        3 => leaf,
        1 => inner.clone().prop_map(|(a, _)| json!({"steps": a})),
        1 => inner.clone().prop_map(|(a, b)| json!({"parallel": {"branches": {"right": b, "left": a}, "wait": 1}})),
        1 => inner.clone().prop_map(|(a, b)| json!({"switch": [{"when": "input.x == 1", "steps": a}, {"else": b}]})),
        1 => inner.prop_map(|(a, _)| json!({"loop": {"steps": a, "until": "index > 3", "max": 9, "state": {"next": "${{ state }}"}}})),
    ]
    .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in [Format::Yaml, Format::Json, Format::Guess] {
            let _ = read(&bytes, format);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in pieces()) {
        for format in [Format::Yaml, Format::Json, Format::Guess] {
            let _ = read(text.as_bytes(), format);
        }
    }

    #[test]
    fn no_cut_of_a_definition_makes_the_reader_panic(at in 0..EVERYTHING.len(), with in pieces()) {
        let at = (0..=at).rev().find(|n| EVERYTHING.is_char_boundary(*n)).unwrap_or(0);
        let _ = read(EVERYTHING[..at].as_bytes(), Format::Yaml);
        let _ = read(format!("{}{with}{}", &EVERYTHING[..at], &EVERYTHING[at..]).as_bytes(), Format::Yaml);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_definition_is_read_back_from_its_form(steps in scope("s".into(), 2)) {
        let text = json!({"steps": steps}).to_string();
        let first = match read(text.as_bytes(), Format::Json) {
            Ok(first) => first,
            Err(faults) => return Err(TestCaseError::fail(format!("{text}\n{}", told(&faults)))),
        };
        let form = first.canonical();
        let again = read(form.as_bytes(), Format::Json).map_err(|faults| TestCaseError::fail(told(&faults)))?;
        prop_assert_eq!(again.canonical(), form.clone());
        let as_yaml = read(form.as_bytes(), Format::Yaml).map_err(|faults| TestCaseError::fail(told(&faults)))?;
        prop_assert_eq!(as_yaml.canonical(), form);
        prop_assert_eq!(graph(&first, None, GraphFormat::Svg), graph(&again, None, GraphFormat::Svg));
    }
}
