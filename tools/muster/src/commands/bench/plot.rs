//! The picture of a bench, as SVG: bars for rates, stacked bars for the cost of a job, bars for latencies. Plain
//! shapes, so that every viewer shows it the same.

use std::fmt::Write;

use super::{
    meter::SERVICES,
    report::{Report, number},
};

const WIDTH: f64 = 900.0;
const LABELS: f64 = 300.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 46.0;
/// One colour per service, also distinguishable for colour-blind people.
const COLOURS: [&str; 7] = ["#4477aa", "#66ccee", "#aa3377", "#228833", "#ee6677", "#ccbb44", "#bbbbbb"];

/// One bar: its label, and its parts with their colours.
struct Bar {
    label: String,
    parts: Vec<(f64, &'static str)>,
}

struct Panel {
    title: &'static str,
    bars: Vec<Bar>,
}

const RATES: [(&str, &str, &str); 9] = [
    ("single", "rate", "single submits"),
    ("bulk-100", "rate", "bulk of 100"),
    ("bulk-1000", "rate", "bulk of 1,000"),
    ("drain", "rate", "backlog drained"),
    ("http-workers", "rate", "workers over HTTP"),
    ("cluster", "rate", "both stores clustered, R3"),
    ("bullmq-official", "rate", "bullmq-official end to end"),
    ("apalis-redis", "rate", "apalis-redis end to end"),
    ("apalis-redis-bare", "rate", "apalis-redis, no locks"),
];
const COSTS: [(&str, &str); 6] = [
    ("single", "single submits"),
    ("bulk-100", "bulk of 100"),
    ("bulk-1000", "bulk of 1,000"),
    ("drain", "backlog drained"),
    ("http-workers", "workers over HTTP"),
    ("cluster", "both stores clustered, R3"),
];
const LATENCIES: [(&str, &str); 3] =
    [("latency-200", "200/s"), ("latency-2000", "2,000/s"), ("latency-high", "70 % of the peak")];

/// Draws the figures of the report.
pub(super) fn svg(report: &Report) -> String {
    let panels: Vec<Panel> =
        [rates(report), costs(report), latencies(report)].into_iter().filter(|panel| !panel.bars.is_empty()).collect();
    let height: f64 = panels.iter().map(|panel| HEAD + ROW * panel.bars.len() as f64).sum::<f64>() + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for panel in &panels {
        draw(panel, top, &mut out);
        top += HEAD + ROW * panel.bars.len() as f64;
    }
    legend(top + 24.0, &mut out);
    out + "</svg>\n"
}

fn draw(panel: &Panel, top: f64, out: &mut String) {
    let length = |bar: &Bar| bar.parts.iter().map(|(value, _)| value).sum::<f64>();
    let longest = panel.bars.iter().map(length).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let scale = (WIDTH - LABELS - 90.0) / longest;
    let _ = writeln!(out, "<text x=\"10\" y=\"{}\" font-weight=\"bold\">{}</text>", top + 30.0, panel.title);
    for (n, bar) in panel.bars.iter().enumerate() {
        let y = top + HEAD + ROW * n as f64;
        let middle = y + ROW / 2.0 + 2.0;
        let label = escaped(&bar.label);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{label}</text>", LABELS - 8.0);
        let mut x = LABELS;
        for (value, colour) in &bar.parts {
            let width = value * scale;
            let height = ROW - 8.0;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
            );
            x += width;
        }
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{middle}\">{}</text>", x + 6.0, number(length(bar)));
    }
}

fn legend(y: f64, out: &mut String) {
    let mut x = LABELS;
    for (service, colour) in SERVICES.iter().zip(COLOURS) {
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>", y - 11.0);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{y}\">{service}</text>", x + 16.0);
        x += 95.0;
    }
}

fn rates(report: &Report) -> Panel {
    let bar = |(scenario, figure, label): &(&str, &str, &str)| {
        let ours = if scenario.contains("bullmq") || scenario.contains("apalis") { COLOURS[6] } else { COLOURS[0] };
        let rate = report.figures.median(scenario, figure)?;
        Some(Bar { label: (*label).to_owned(), parts: vec![(rate, ours)] })
    };
    Panel { title: "Jobs a second", bars: RATES.iter().filter_map(bar).collect() }
}

fn costs(report: &Report) -> Panel {
    let bar = |(scenario, label): &(&str, &str)| {
        let part = |(service, colour): (&&str, &'static str)| {
            Some((report.figures.median(scenario, &format!("cpu.{service}"))?, colour))
        };
        let parts: Vec<_> = SERVICES.iter().zip(COLOURS).filter_map(part).collect();
        (!parts.is_empty()).then(|| Bar { label: (*label).to_owned(), parts })
    };
    Panel { title: "CPU microseconds a job, by process", bars: COSTS.iter().filter_map(bar).collect() }
}

fn latencies(report: &Report) -> Panel {
    let mut bars = Vec::new();
    for (scenario, rate) in LATENCIES {
        for (percentile, colour) in [("p50", COLOURS[1]), ("p99", COLOURS[0])] {
            if let Some(value) = report.figures.median(scenario, &format!("end.{percentile}")) {
                bars.push(Bar { label: format!("{percentile} at {rate}"), parts: vec![(value, colour)] });
            }
        }
    }
    Panel { title: "Submit → succeeded, milliseconds", bars }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::commands::bench::figures::{Figures, Rounds};

    #[test]
    fn what_was_measured_is_drawn_and_nothing_else() {
        let mut figures = Rounds::default();
        let mut single = Figures::default();
        [("rate", 12_000.0), ("cpu.gateway", 30.0), ("cpu.redis", 40.0)].iter().for_each(|(n, v)| single.put(n, *v));
        figures.add("single", &single);
        let (machine, versions) = (BTreeMap::new(), BTreeMap::new());
        let command = String::new();
        let picture = svg(&Report { command, rounds: 1, seconds: 1, machine, versions, figures, notes: Vec::new() });
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert!(picture.contains(">12,000<") && picture.contains(">70.0<"), "rate and the sum of its parts");
        assert!(!picture.contains("Submit → succeeded"), "no latency was measured");
    }
}
