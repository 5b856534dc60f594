//! What must be reached, what is aimed for, and what was measured. A figure that was not measured has no verdict.

use serde::Serialize;

use super::figures::Rounds;

/// Whether more or less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

struct Target {
    what: &'static str,
    better: Better,
    must: f64,
    aim: f64,
    unit: &'static str,
    measured: fn(&Rounds) -> Option<f64>,
}

/// The verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Aim,
    Must,
    Missed,
    NotMeasured,
}

impl Verdict {
    /// The verdict for a person.
    pub(super) fn words(self) -> &'static str {
        match self {
            Verdict::Aim => "aim reached",
            Verdict::Must => "reached",
            Verdict::Missed => "MISSED",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Judged {
    pub(super) what: &'static str,
    pub(super) must: String,
    pub(super) aim: String,
    pub(super) measured: Option<f64>,
    pub(super) shown: String,
    pub(super) verdict: Verdict,
}

const RATE: &str = "rate";
const SINGLE: (&str, &str) = ("single", RATE);

const TARGETS: &[Target] = &[
    Target {
        what: "single submits end to end ÷ `bullmq-official` end to end",
        better: Better::More,
        must: 1.1,
        aim: 1.5,
        unit: "×",
        measured: |figures| figures.ratio(SINGLE, ("bullmq-official", RATE)),
    },
    Target {
        what: "single submits ÷ `apalis-redis` end to end, its defaults",
        better: Better::More,
        must: 2.0,
        aim: 3.0,
        unit: "×",
        measured: |figures| figures.ratio(SINGLE, ("apalis-redis", RATE)),
    },
    Target {
        what: "single submits ÷ `apalis-redis` end to end, locks and events off",
        better: Better::More,
        must: 0.4,
        aim: 0.7,
        unit: "×",
        measured: |figures| figures.ratio(SINGLE, ("apalis-redis-bare", RATE)),
    },
    Target {
        what: "single submits ÷ SET",
        better: Better::More,
        must: 0.18,
        aim: 0.25,
        unit: "×",
        measured: |figures| figures.ratio(SINGLE, ("set", RATE)),
    },
    Target {
        what: "bulk of 100 end to end ÷ `bullmq-official` drained",
        better: Better::More,
        must: 1.15,
        aim: 1.6,
        unit: "×",
        measured: |figures| figures.ratio(("bulk-100", RATE), ("bullmq-official", "drained")),
    },
    Target {
        what: "submit → succeeded at 200/s, p50 ÷ `bullmq-official` add → completed",
        better: Better::Less,
        must: 3.0,
        aim: 2.0,
        unit: "×",
        measured: |figures| figures.ratio(("latency-200", "end.p50"), ("bullmq-official", "end.p50")),
    },
    Target {
        what: "submit → succeeded at 200/s, p99 ÷ `bullmq-official` add → completed",
        better: Better::Less,
        must: 3.0,
        aim: 2.0,
        unit: "×",
        measured: |figures| figures.ratio(("latency-200", "end.p99"), ("bullmq-official", "end.p99")),
    },
    Target {
        what: "CPU per job with 1,000,000 waiting ÷ with 1,000 waiting",
        better: Better::Less,
        must: 1.15,
        aim: 1.05,
        unit: "×",
        measured: |figures| figures.ratio(("growth-1000000", "cpu.stack"), ("growth-1000", "cpu.stack")),
    },
    Target {
        what: "idle stack, 2 replicas of all, one worker, of a core",
        better: Better::Less,
        must: 2.0,
        aim: 0.5,
        unit: " %",
        measured: |figures| figures.median("idle", "cores").map(|cores| cores * 100.0),
    },
    Target {
        what: "bytes in Redis per waiting job of 200 bytes",
        better: Better::Less,
        must: 850.0,
        aim: 600.0,
        unit: "",
        measured: |figures| figures.median("drain", "bytes.waiting"),
    },
    Target {
        what: "both stores clustered, R3 ÷ standalone",
        better: Better::More,
        must: 0.35,
        aim: 0.6,
        unit: "×",
        measured: |figures| Some(figures.median("cluster", RATE)? / figures.median("single", RATE)?),
    },
    Target {
        what: "HTTP workers ÷ NATS workers",
        better: Better::More,
        must: 0.3,
        aim: 0.6,
        unit: "×",
        measured: |figures| figures.ratio(("http-workers", RATE), SINGLE),
    },
];

/// Every target with its measured value.
pub(super) fn judge(figures: &Rounds) -> Vec<Judged> {
    TARGETS.iter().map(|target| target.judge(figures)).collect()
}

impl Target {
    fn judge(&self, figures: &Rounds) -> Judged {
        let measured = (self.measured)(figures);
        let sign = if self.better == Better::More { "≥" } else { "≤" };
        let reaches = |value: f64, limit: f64| match self.better {
            Better::More => value >= limit,
            Better::Less => value <= limit,
        };
        let verdict = match measured {
            None => Verdict::NotMeasured,
            Some(value) if reaches(value, self.aim) => Verdict::Aim,
            Some(value) if reaches(value, self.must) => Verdict::Must,
            Some(_) => Verdict::Missed,
        };
        let show = |value: f64| match value {
            value if value >= 100.0 => format!("{value:.0}{}", self.unit),
            value => format!("{value:.2}{}", self.unit),
        };
        let limit = |value: f64| format!("{sign} {value}{}", self.unit);
        let shown = measured.map(show).unwrap_or_default();
        Judged { what: self.what, must: limit(self.must), aim: limit(self.aim), measured, shown, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::figures::Figures;

    fn figures(rows: &[(&str, &str, f64)]) -> Rounds {
        let mut rounds = Rounds::default();
        for (scenario, name, value) in rows {
            let mut figures = Figures::default();
            figures.put(name, *value);
            rounds.add(scenario, &figures);
        }
        rounds
    }

    #[test]
    fn a_target_is_judged_by_its_better_side_and_not_without_a_figure() {
        let rounds = figures(&[
            ("single", "rate", 13_000.0),
            ("bullmq-official", "rate", 10_000.0),
            ("set", "rate", 100_000.0),
            ("idle", "cores", 0.004),
            ("drain", "bytes.waiting", 700.0),
        ]);
        let verdicts: Vec<_> = judge(&rounds).iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts[0], Verdict::Must, "1.3 × is between must and aim");
        assert_eq!(verdicts[1], Verdict::NotMeasured);
        assert_eq!(verdicts[3], Verdict::Missed, "0.13 of SET");
        assert_eq!((verdicts[8], verdicts[9]), (Verdict::Aim, Verdict::Must), "less is better");
        assert_eq!(judge(&rounds)[8].shown, "0.40 %");
    }
}
