//! Figures by name, over the rounds. Everything that a bench prints, writes or compares is read from here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The figures of one stretch of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Adds a figure; a value that is not finite is left out.
    pub(super) fn put(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.0.insert(name.to_owned(), rounded(value));
        }
    }

    /// Adds all figures of another set.
    pub(super) fn extend(&mut self, other: Figures) {
        self.0.extend(other.0);
    }

    /// The figure with this name.
    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// All figures.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Rounds to four digits: a measurement on a busy machine is no more precise.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(4 - 1 - value.abs().log10().floor() as i32);
    if scale < 1.0 { value.round() } else { (value * scale).round() / scale }
}

/// The figures of every scenario, each with one value per round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rounds(BTreeMap<String, BTreeMap<String, Vec<f64>>>);

impl Rounds {
    /// Adds the figures of a scenario for one more round.
    pub(super) fn add(&mut self, scenario: &str, figures: &Figures) {
        let known = self.0.entry(scenario.to_owned()).or_default();
        for (name, value) in figures.iter() {
            known.entry(name.to_owned()).or_default().push(value);
        }
    }

    /// The median over the rounds.
    pub(super) fn median(&self, scenario: &str, figure: &str) -> Option<f64> {
        median(self.0.get(scenario)?.get(figure)?)
    }

    /// The median of the ratios, round by round: a slow minute affects both values of a round.
    pub(super) fn ratio(&self, of: (&str, &str), to: (&str, &str)) -> Option<f64> {
        let (of, to) = (self.0.get(of.0)?.get(of.1)?, self.0.get(to.0)?.get(to.1)?);
        if of.len() != to.len() {
            return Some(median(of)? / median(to)?);
        }
        median(&of.iter().zip(to).map(|(of, to)| of / to).collect::<Vec<_>>())
    }

    /// The scenarios that were run.
    pub(super) fn scenarios(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_told_by_their_middle_and_ratios_round_by_round() {
        let mut rounds = Rounds::default();
        // A machine that is half as fast in one round is so for both.
        for (ours, theirs) in [(200.0, 100.0), (90.0, 50.0), (220.0, 100.0)] {
            for (scenario, rate) in [("ours", ours), ("theirs", theirs)] {
                let mut figures = Figures::default();
                figures.put("rate", rate);
                rounds.add(scenario, &figures);
            }
        }
        assert_eq!(rounds.median("ours", "rate"), Some(200.0));
        assert_eq!(rounds.ratio(("ours", "rate"), ("theirs", "rate")), Some(2.0));
        assert_eq!(rounds.median("ours", "none"), None);
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn figures_keep_four_digits_and_nothing_that_is_no_number() {
        let mut figures = Figures::default();
        for (name, value) in [("a", 12_345.678), ("b", 1.234_56), ("c", f64::NAN), ("d", 0.0), ("e", 0.012_345_6)] {
            figures.put(name, value);
        }
        let all: Vec<_> = figures.iter().collect();
        assert_eq!(all, [("a", 12_346.0), ("b", 1.235), ("d", 0.0), ("e", 0.012_35)]);
    }
}
