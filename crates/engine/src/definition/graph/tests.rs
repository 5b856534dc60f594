use super::*;
use crate::definition::{Format, read};

fn everything() -> Definition {
    read(include_bytes!("../tests/everything.yaml"), Format::Yaml).unwrap()
}

#[test]
fn a_graph_as_mermaid() {
    let text = "steps:\n- {id: a, job: {topic: t.x}}\n- {id: end, needs: [a], run_if: failure, fail: {code: no}}\n- id: c\n  \
                switch: [{when: 'input.x == \"1\"', steps: [{id: d, set: 1}]}, {else: [{id: e, delay: {ms: 5}}]}]\n";
    let definition = read(text.as_bytes(), Format::Yaml).unwrap();
    let state = |id: &str| (id == "a").then_some("running");
    let drawn = graph(&definition, Some(&state), GraphFormat::Mermaid);
    let expected = "flowchart TD\n  s_a[\"a<br/>job: t.x\"]\n  s_end[\"end<br/>fail: no\"]\n  \
                    subgraph s_c[\"c<br/>switch\"]\n    subgraph s_c_0b[\"input.x == #quot;1#quot;\"]\n      \
                    s_d[\"d<br/>set\"]\n    end\n    subgraph s_c_1b[\"else\"]\n      s_e[\"e<br/>delay: 5 ms\"]\n    \
                    end\n  end\n  s_a -.->|failure| s_end\n  classDef running fill:#dbeafe,stroke:#2563eb\n  \
                    class s_a running\n";
    assert_eq!(drawn, expected);
}

#[test]
fn a_drawing_has_every_step_and_nothing_from_elsewhere() {
    let definition = everything();
    let svg = graph(&definition, None, GraphFormat::Svg);
    for id in ["job", "ask", "first", "third", "l", "r2", "poll", "inner", "stop"] {
        assert!(svg.contains(&format!(">{id}</text>")), "{id}");
    }
    assert_eq!(svg.matches("http").count(), 1, "only the name of the format");
    assert!(!svg.contains("<script") && !svg.contains("href"));
    assert_eq!(svg, graph(&everything(), None, GraphFormat::Svg));
}

#[test]
fn text_of_users_stays_text() {
    let text = "steps: [{id: a, switch: [{when: '\"</text><script>&\" == \"x\"', steps: [{id: b, set: 1}]}]}]";
    let definition = read(text.as_bytes(), Format::Yaml).unwrap();
    let svg = graph(&definition, None, GraphFormat::Svg);
    assert!(!svg.contains("<script>") && svg.contains("&lt;/text&gt;"), "{svg}");
}

#[test]
fn boxes_do_not_overlap_and_stay_inside() {
    fn check(area: &layout::Area) {
        for (n, one) in area.inner.iter().enumerate() {
            assert!(one.x + one.width <= area.width && one.y + one.height <= area.height, "{} sticks out", one.id);
            for other in &area.inner[n + 1..] {
                let apart = one.x + one.width <= other.x
                    || other.x + other.width <= one.x
                    || one.y + one.height <= other.y
                    || other.y + other.height <= one.y;
                assert!(apart, "{} and {} overlap", one.id, other.id);
            }
            check(one);
        }
        for (from, to, _) in &area.links {
            assert!(area.inner[*from].y < area.inner[*to].y, "lines lead down");
        }
    }
    check(&layout::definition(&everything()));
    let wide: String = (0..100).map(|n| format!("- {{id: s{n}, set: 1}}\n")).collect();
    check(&layout::definition(&read(format!("steps:\n{wide}").as_bytes(), Format::Yaml).unwrap()));
}

#[test]
fn every_state_has_a_colour_of_its_own() {
    let definition = everything();
    for (word, area, _) in COLOURS {
        let state = |id: &str| (id == "poll").then_some(word);
        let svg = graph(&definition, Some(&state), GraphFormat::Svg);
        assert!(svg.contains(area) && svg.contains(&format!("<title>poll: {word}</title>")), "{word}");
        assert!(graph(&definition, Some(&state), GraphFormat::Mermaid).contains(&format!("class s_poll {word}")));
    }
}
