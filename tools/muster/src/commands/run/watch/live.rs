//! A run on a terminal: its steps as a list that changes in place, a bar for each for-each.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Value;

use super::super::show;
use crate::output::cell;

/// The most steps that are drawn: a list that is longer than the terminal could not change in place.
const ROWS: usize = 20;
/// The width of a bar in characters.
const BAR: u64 = 24;

/// The list of steps.
pub(super) struct Live {
    all: MultiProgress,
    head: ProgressBar,
    rows: Vec<(ProgressBar, String)>,
}

impl Live {
    /// An empty list.
    pub(super) fn new() -> Live {
        let all = MultiProgress::new();
        let head = all.add(ProgressBar::new_spinner());
        head.set_style(style("{spinner} {msg}"));
        head.enable_steady_tick(std::time::Duration::from_millis(120));
        Live { all, head, rows: Vec::new() }
    }

    /// Draws the run as it is now.
    pub(super) fn draw(&mut self, run: &Value) {
        let (workflow, version) = (cell(&run["workflow"]), cell(&run["version"]));
        self.head.set_message(format!("{workflow} (version {version})  {}  {}", cell(&run["id"]), cell(&run["state"])));
        let rows = rows(run["steps"].as_array().map(Vec::as_slice).unwrap_or_default());
        while self.rows.len() < rows.len() {
            self.rows.push((self.all.add(ProgressBar::new(0)), String::new()));
        }
        for (n, (bar, drawn)) in self.rows.iter_mut().enumerate() {
            let (colour, text) = rows.get(n).cloned().unwrap_or(("white", String::new()));
            // Rows that stay the same are not drawn again, so that nothing flickers.
            if *drawn != text {
                drawn.clone_from(&text);
                bar.set_style(style(&format!("{{msg:.{colour}}}")));
                bar.set_message(text);
            }
        }
    }

    /// Removes the list from the terminal.
    pub(super) fn clear(&self) {
        self.head.finish_and_clear();
        self.rows.iter().for_each(|(bar, _)| bar.finish_and_clear());
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// The lines, each with its colour. If there are too many steps, those that run or failed go first, then the latest.
fn rows(steps: &[Value]) -> Vec<(&'static str, String)> {
    let mut shown: Vec<usize> = (0..steps.len()).collect();
    if steps.len() > ROWS {
        let rank = |n: &usize| match steps[*n]["state"].as_str() {
            Some("running") => (0, *n),
            Some("failed" | "timed_out") => (1, *n),
            Some("waiting") => (3, *n),
            _ => (2, steps.len() - n),
        };
        shown.sort_by_key(rank);
        shown.truncate(ROWS);
        shown.sort_unstable();
    }
    let width = shown.iter().map(|&n| cell(&steps[n]["place"]).chars().count()).max().unwrap_or_default();
    let mut rows: Vec<_> = shown.iter().map(|&n| row(&steps[n], width)).collect();
    if shown.len() < steps.len() {
        rows.push(("white", format!("  … and {} more steps", steps.len() - shown.len())));
    }
    rows
}

fn row(step: &Value, width: usize) -> (&'static str, String) {
    let state = cell(&step["state"]);
    let (mark, colour) = match state.as_str() {
        "succeeded" => ('✓', "green"),
        "failed" | "timed_out" => ('✗', "red"),
        "running" => ('▸', "cyan"),
        "cancelled" => ('■', "magenta"),
        "skipped" => ('–', "white"),
        _ => ('·', "white"),
    };
    let bar = bar(&step["items"]);
    let more = [bar, show::items_of(step), show::took(step), show::why(step)];
    let more: Vec<String> = more.into_iter().filter(|part| !part.is_empty()).collect();
    (colour, format!("  {mark} {:<width$}  {state:<9}  {}", cell(&step["place"]), more.join("  ")))
}

/// A bar for the items that have ended; none for a step without items.
fn bar(items: &Value) -> String {
    let number = |name: &str| items[name].as_u64().unwrap_or_default();
    let ended = number("succeeded") + number("failed");
    let Some(full) = (BAR * ended.min(number("total"))).checked_div(number("total")) else { return String::new() };
    let part = |times: u64, text: &str| text.repeat(usize::try_from(times).unwrap_or_default());
    format!("{}{}", part(full, "█"), part(BAR - full, "░"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_is_a_line_and_a_for_each_has_a_bar() {
        let steps = [
            json!({"place": "a", "state": "succeeded", "duration_ms": 1200}),
            json!({"place": "each", "state": "running", "items": {"total": 100, "succeeded": 49, "failed": 1}}),
            json!({"place": "b", "state": "dreaming"}),
        ];
        let rows = rows(&steps);
        assert_eq!(rows[0], ("green", "  ✓ a     succeeded  1.2s".into()));
        let half = format!("{}{}", "█".repeat(12), "░".repeat(12));
        assert_eq!(rows[1], ("cyan", format!("  ▸ each  running    {half}  49/100, 1 failed")));
        assert_eq!(rows[2].1.trim_end(), "  · b     dreaming", "a state of a newer gateway");
        assert_eq!(bar(&json!({"total": 0})), "");
    }

    #[test]
    fn of_many_steps_those_that_matter_are_drawn_in_their_order() {
        let state = |n| match n {
            3 => "failed",
            70 => "running",
            0..60 => "succeeded",
            _ => "waiting",
        };
        let steps: Vec<Value> = (0..100).map(|n| json!({"place": format!("s{n}"), "state": state(n)})).collect();
        let rows = rows(&steps);
        assert_eq!(rows.len(), ROWS + 1);
        let places: Vec<&str> = rows.iter().filter_map(|(_, row)| row.split_whitespace().nth(1)).collect();
        assert_eq!((places[0], places[1], places[ROWS - 1]), ("s3", "s42", "s70"), "{places:?}");
        assert!(rows[ROWS].1.contains("80 more"));
    }
}
