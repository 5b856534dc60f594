//! Tests of the chassis's guarantees, by behaviour.

mod listen;
mod loops;
mod process;
mod settings;
mod stop;
mod tasks;

use muster_telemetry::Exporter;

/// The value of the first series with this name and these labels, in any order.
fn metric(name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = Exporter::install("test", "0").render();
    let fits = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    };
    text.lines().find(fits).map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}
