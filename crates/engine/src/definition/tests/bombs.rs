//! Texts that are made to cost: each is refused, or read, within a moment. The processor's time counts, since the
//! machines that run the tests are shared, and the best of a few runs.

use std::time::{Duration, Instant};

use super::super::*;

/// Builds without optimizations are allowed twice the time.
const MOMENT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 50 });

/// The time that this thread has had a processor, where the system tells.
fn used() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn quick(name: &str, text: &str, format: Format) -> Result<Definition, Vec<DefinitionFault>> {
    let mut best = Duration::MAX;
    let mut result = Err(Vec::new());
    for _ in 0..3 {
        let (start, before) = (Instant::now(), used());
        result = read(text.as_bytes(), format);
        let spent = before.and_then(|before| used()?.checked_sub(before)).unwrap_or(start.elapsed());
        best = best.min(spent);
        if best < MOMENT {
            break;
        }
    }
    assert!(best < MOMENT, "{name} took {best:?}");
    if let Err(faults) = &result {
        assert!(!faults.is_empty() && faults.len() <= MOST_FAULTS, "{name}");
    }
    result
}

fn refused(name: &str, text: &str, format: Format) -> String {
    match quick(name, text, format) {
        Ok(_) => panic!("{name} was taken"),
        Err(faults) => faults[0].code.to_owned(),
    }
}

#[test]
fn a_definition_that_is_too_large_is_refused_unread() {
    let text = format!("description: {}\nsteps: [{{id: a, set: 1}}]", "x".repeat(MOST_BYTES));
    assert_eq!(refused("large", &text, Format::Yaml), "too_large");
    assert_eq!(refused("huge", &"[".repeat(64 << 20), Format::Guess), "too_large");
}

#[test]
fn aliases_are_few_and_small() {
    let laughs = |levels: usize| {
        let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for n in 1..levels {
            let aliases = vec![format!("*a{}", n - 1); 9].join(", ");
            text += &format!("a{n}: &a{n} [{aliases}]\n");
        }
        text
    };
    assert_eq!(refused("billion laughs", &laughs(10), Format::Yaml), "too_large");
    let many = format!("x: &x 1\nlist: [{}]", vec!["*x"; 101].join(", "));
    assert_eq!(refused("many aliases", &many, Format::Yaml), "too_large");
    let fat = format!("x: &x {}\nlist: [{}]", "y".repeat(100_000), vec!["*x"; 90].join(", "));
    assert_eq!(refused("fat aliases", &fat, Format::Yaml), "too_large");
    assert_eq!(refused("an alias in itself", "a: &a [*a]", Format::Yaml), "syntax");
    let anchors: String = (0..30_000).map(|n| format!("- &a{n} 1\n")).collect();
    refused("many anchors", &anchors, Format::Yaml);
}

#[test]
fn nesting_is_bounded() {
    let n = MOST_BYTES - 1;
    for (name, text) in [
        ("lists", "[".repeat(n)),
        ("maps", "{".repeat(n)),
        ("maps in lists", "[{".repeat(n / 2)),
        ("keys", "? ".repeat(n / 2)),
        ("items", "- ".repeat(n / 2)),
        ("keys of maps", "{a: ".repeat(n / 4)),
        ("quoted keys", "{\"a\":".repeat(n / 5)),
        ("implicit keys", "a: ".repeat(n / 3)),
        ("anchors", "&a ".repeat(n / 3)),
        ("tags", "!!str ".repeat(n / 6)),
        ("indented", (0..700).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("indented items", (0..500).map(|n| format!("{}-\n", " ".repeat(n))).collect()),
    ] {
        refused(name, &text, Format::Yaml);
        refused(name, &text, Format::Json);
    }
}

#[test]
fn long_tokens_cost_no_more_than_their_length() {
    let n = MOST_BYTES - 100;
    for (name, text) in [
        ("an open quote", format!("\"{}", "a".repeat(n))),
        ("escapes", format!("\"{}", "\\\\".repeat(n / 2))),
        ("a plain scalar", "a".repeat(n)),
        ("lines of a plain scalar", "a\n".repeat(n / 2)),
        ("blank lines", "\n".repeat(n)),
        ("spaces", " ".repeat(n)),
        ("tabs", "\t".repeat(n)),
        ("comments", "#\n".repeat(n / 2)),
        ("a block", format!("|\n{}", " a\n".repeat(n / 3))),
        ("a folded block", format!(">\n{}", " a\n\n".repeat(n / 4))),
        ("documents", "---\n".repeat(n / 4)),
        ("ends", "...\n".repeat(n / 4)),
        ("directives", "%TAG !a! b\n".repeat(n / 11)),
        ("digits", "9".repeat(n)),
        ("commas", format!("[{}", "1,".repeat(n / 2))),
        ("colons", ":".repeat(n)),
        ("stars", "*a ".repeat(n / 3)),
        ("nul", "\0".repeat(n)),
        ("marks", "\u{feff}".repeat(n / 3)),
        ("wide", "\u{1f600}".repeat(n / 4)),
        ("a wide line", format!("{{{}", "'\u{1f600}': 1, ".repeat(n / 10))),
    ] {
        let _ = quick(name, &text, Format::Yaml);
        let _ = quick(name, &text, Format::Json);
    }
}

#[test]
fn many_values_and_many_faults_are_bounded() {
    let n = MOST_BYTES - 100;
    let keys: String = (0..15_000).map(|n| format!("k{n}: 1\n")).collect();
    assert_eq!(refused("unknown fields", &keys, Format::Yaml), "missing_field");
    assert_eq!(refused("values", &format!("a: [{}]", "1,".repeat(n / 2)), Format::Yaml), "too_large");
    assert_eq!(refused("values", &format!("[{}1]", "1,".repeat(n / 2)), Format::Json), "too_large");
    let keys: String = (0..15_000).map(|n| format!("\"k{n}\": 1,\n")).collect();
    refused("unknown fields", &format!("{{{keys}\"k\":1}}"), Format::Json);
    refused("steps that are none", &format!("steps: [{}]", "1,".repeat(MOST_VALUES - 100)), Format::Yaml);
    refused("empty steps", &format!("steps: [{}]", "{},".repeat(MOST_VALUES - 100)), Format::Yaml);
    let _ = quick(
        "a large payload",
        &format!("steps: [{{id: a, set: [{}]}}]", "1,".repeat(MOST_VALUES - 100)),
        Format::Yaml,
    );
    let needs = "a,".repeat(MOST_VALUES - 50);
    refused("needs", &format!("steps: [{{id: a, set: 1}}, {{id: b, needs: [{needs}], set: 1}}]"), Format::Yaml);
}

#[test]
fn large_graphs_are_checked_in_a_moment() {
    let chain: String = (0..1_000)
        .map(|n: usize| match n {
            0 => "- {id: s0, set: 1}\n".to_owned(),
            n => format!("- {{id: s{n}, needs: [s{}], set: \"${{{{ steps.s{}.result }}}}\"}}\n", n - 1, n / 2),
        })
        .collect();
    assert!(quick("a chain", &format!("steps:\n{chain}"), Format::Yaml).is_ok());
    let back: String = (0..1_000).map(|n| format!("- {{id: s{n}, needs: [s{}], set: 1}}\n", (n + 1) % 1_000)).collect();
    assert_eq!(refused("a circle", &format!("steps:\n{back}"), Format::Yaml), "cycle");
    let pairs: String = (0..1_000).map(|n| format!("- {{id: s{n}, needs: [s{}], set: 1}}\n", n ^ 1)).collect();
    assert_eq!(refused("circles", &format!("steps:\n{pairs}"), Format::Yaml), "cycle");
    let full: String = (0..240)
        .map(|n| {
            format!(
                "- {{id: s{n}, needs: [{}], set: 1}}\n",
                (0..n).map(|k| format!("s{k}")).collect::<Vec<_>>().join(",")
            )
        })
        .collect();
    assert!(quick("every edge", &format!("steps:\n{full}"), Format::Yaml).is_ok());
}

#[test]
fn expressions_are_bounded() {
    let one = |source: &str| format!("steps:\n- id: a\n  when: '{source}'\n  set: 1\n");
    for (name, source) in [
        ("long", "1+".repeat(2_100)),
        ("brackets", format!("{}1{}", "(".repeat(1_900), ")".repeat(1_900))),
        ("lists", format!("{}1{}", "[".repeat(1_900), "]".repeat(1_900))),
        ("signs", format!("{}1", "-".repeat(3_900))),
        ("nots", format!("{}true", "!".repeat(3_900))),
        ("choices", format!("{}1{}", "true ? ".repeat(400), " : 1".repeat(400))),
        ("comprehensions", {
            let mut source = "[1].all(x, true)".to_owned();
            (0..8).for_each(|_| source = format!("[1].all(x, {source})"));
            source
        }),
    ] {
        let _ = quick(name, &one(&source), Format::Yaml);
    }
    let long = format!("\"${{{{ {}1 }}}}\", ", "1+".repeat(2_000)).repeat(60);
    let _ = quick("long expressions", &format!("steps: [{{id: a, set: [{long}]}}]"), Format::Yaml);
    let pattern = "\"${{input.x.matches('.{400}')}}\",";
    assert_eq!(
        refused("patterns", &format!("steps: [{{id: a, set: [{}]}}]", pattern.repeat(5_000)), Format::Yaml),
        "too_large"
    );
    let _ = quick("some patterns", &format!("steps: [{{id: a, set: [{}]}}]", pattern.repeat(150)), Format::Yaml);
    let short = "\"${{1}}\",".repeat(25_000);
    assert_eq!(refused("short expressions", &format!("steps: [{{id: a, set: [{short}]}}]"), Format::Yaml), "too_large");
    let many: String = (0..4_500).map(|n| format!("k{n}: \"${{{{ input.x }}}}\", ")).collect();
    let _ = quick("many expressions", &format!("steps: [{{id: a, set: {{{many}}}}}]"), Format::Yaml);
    let fields: String = (0..4_000).map(|n| format!("f{n}: {{type: string}}, ")).collect();
    let steps: String =
        (0..1_000).map(|n| format!("- {{id: s{n}, when: input == 1, set: \"${{{{ input.f{n} }}}}\"}}\n")).collect();
    let wide = format!("input: {{type: object, properties: {{{fields}}}}}\nsteps:\n{steps}");
    let _ = quick("a wide input", &wide, Format::Yaml);
}
