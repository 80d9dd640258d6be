//! The report: medians over rounds, one column per target.

use std::fmt::Write as _;

use policy::stats;
use serde::Serialize;
use serde_json::{Map, Value};

use super::stats::Run;
use super::target::DriveTarget;

/// Send lag in ms that timer resolution explains.
const LATE_MS: f64 = 5.0;

/// The replay's parameters and the results of each target.
#[derive(Clone, Debug, Serialize)]
pub struct DriveReport {
    /// The trace's file or generator.
    pub trace: String,
    /// Speed-up over the trace's pace.
    pub speed: f64,
    /// Turns per run.
    pub turns: usize,
    /// Turns per run after the warm-up.
    pub counted: usize,
    /// Number of rounds, each of which runs every target once, in order.
    pub rounds: usize,
    /// Seed of the generated text.
    pub seed: u64,
    /// The objective for time to first token, if one was given.
    pub slo_ttft_ms: Option<f64>,
    /// Whether a signal ended the replay early. Turns in flight at that time are not counted.
    pub interrupted: bool,
    /// The results per target.
    pub targets: Vec<TargetReport>,
}

/// One target's runs.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Name of the target.
    pub name: String,
    /// Base URLs of the target, separated by commas.
    pub url: String,
    /// The median of each figure over the rounds that measured it.
    pub median: Map<String, Value>,
    /// The rounds in order.
    pub rounds: Vec<Run>,
}

impl TargetReport {
    /// Summarises the runs of one target.
    pub fn new(target: &DriveTarget, rounds: Vec<Run>) -> Self {
        let all: Vec<_> = rounds.iter().map(Run::figures).collect();
        let mut median = Map::new();
        for (at, (name, _)) in all.first().into_iter().flatten().enumerate() {
            let values: Vec<f64> = all.iter().filter_map(|figures| figures[at].1).collect();
            let value = (!values.is_empty()).then(|| stats::median(values));
            median.insert((*name).to_owned(), value.map_or(Value::Null, Value::from));
        }
        Self {
            name: target.name.clone(),
            url: target.bases.join(","),
            median,
            rounds,
        }
    }

    fn figure(&self, name: &str) -> Option<f64> {
        self.median.get(name).and_then(Value::as_f64)
    }
}

impl DriveReport {
    /// Returns whether every turn of every run was sent and completely answered.
    pub fn is_clean(&self) -> bool {
        let clean = |run: &Run| run.turns == self.turns && run.errors + run.incomplete == 0;
        !self.interrupted && self.targets.iter().flat_map(|target| &target.rounds).all(clean)
    }

    /// Formats the report as a table with a row per figure and a column per target.
    pub fn table(&self) -> String {
        let names: Vec<_> = Run::default()
            .figures()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let first = names.iter().map(|name| name.len()).max().unwrap_or(0);
        let widths: Vec<usize> = self
            .targets
            .iter()
            .map(|target| target.name.chars().count().max(12))
            .collect();
        let mut out = format!(
            "{}: {} turns ({} counted) at {}x, seed {}, {}\n\n{:first$}",
            self.trace,
            self.turns,
            self.counted,
            self.speed,
            self.seed,
            if self.rounds == 1 {
                "1 round".to_owned()
            } else {
                format!("medians of {} rounds", self.rounds)
            },
            "",
        );
        for (target, width) in self.targets.iter().zip(&widths) {
            let _ = write!(out, "  {:>width$}", target.name);
        }
        for name in names {
            let cells: Vec<_> = self
                .targets
                .iter()
                .map(|target| shown(name, target.figure(name)))
                .collect();
            if cells.iter().all(|cell| cell == "–") {
                continue;
            }
            let _ = write!(out, "\n{name:first$}");
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(out, "  {cell:>width$}");
            }
        }
        if self.interrupted {
            out.push_str("\ninterrupted: only turns that had ended are counted");
        }
        out.push_str(&self.failures());
        out.push_str(&self.lateness());
        out.push_str(&self.comparison());
        out
    }

    fn failures(&self) -> String {
        let mut out = String::new();
        for target in &self.targets {
            for (round, run) in target.rounds.iter().enumerate() {
                for (kind, count) in &run.failures {
                    let said = run.first_words.get(kind).map_or("", String::as_str);
                    let _ = write!(
                        out,
                        "\n{}, round {}: {count} {kind}  {said}",
                        target.name,
                        round + 1
                    );
                }
            }
        }
        out
    }

    /// Returns a note for each target whose latency includes a large send lag.
    fn lateness(&self) -> String {
        let mut out = String::new();
        for target in &self.targets {
            let (lag, ttft) = (target.figure("send_lag_p99_ms"), target.figure("ttft_p50_ms"));
            if let (Some(lag), Some(ttft)) = (lag, ttft)
                && lag > 0.1 * ttft
                && lag > LATE_MS
            {
                let name = &target.name;
                let _ = write!(
                    out,
                    "\nnote: turns to {name} were sent up to {lag:.0} ms late (99 %), which its times include"
                );
            }
        }
        out
    }

    fn comparison(&self) -> String {
        let Some((base, others)) = self.targets.split_first() else {
            return String::new();
        };
        let Some(before) = base.figure("ttft_p95_ms").filter(|before| *before > 0.0) else {
            return String::new();
        };
        let against = |target: &TargetReport| {
            let change = (target.figure("ttft_p95_ms")? / before - 1.0) * 100.0;
            Some(format!("{} {change:+.1} %", target.name))
        };
        let changes: Vec<_> = others.iter().filter_map(against).collect();
        if changes.is_empty() {
            return String::new();
        }
        format!("\n\np95 TTFT against {}: {}", base.name, changes.join(", "))
    }
}

fn shown(name: &str, value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if name.ends_with("_ms") => format!("{value:.1}"),
        Some(value) if name.ends_with("_s") => format!("{value:.2}"),
        Some(value) if name.ends_with("share") || name.ends_with("ratio") => format!("{value:.3}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_over_rounds_and_compared_with_the_first_target() {
        let run = |p95: f64| {
            let mut run = Run {
                counted: 9,
                turns: 10,
                ..Run::default()
            };
            (run.ttft_ms.count, run.ttft_ms.p95) = (9, p95);
            run
        };
        let target = |name: &str| format!("{name}=http://h:1").parse::<DriveTarget>().unwrap();
        let targets = vec![
            TargetReport::new(&target("old"), vec![run(100.0), run(300.0), run(200.0)]),
            TargetReport::new(&target("new"), vec![run(90.0), run(100.0), run(900.0)]),
        ];
        let report = DriveReport {
            trace: "t".to_owned(),
            speed: 1.0,
            turns: 10,
            counted: 9,
            rounds: 3,
            seed: 1,
            slo_ttft_ms: None,
            interrupted: false,
            targets,
        };
        assert!(report.is_clean());
        let table = report.table();
        assert!(table.ends_with("p95 TTFT against old: new -50.0 %"), "{table}");
        assert!(
            !table.contains("slo_share"),
            "a figure that nobody measured has no row"
        );
    }
}
