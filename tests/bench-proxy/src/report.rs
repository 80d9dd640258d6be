//! The results: a table or JSON lines, and the check of the promised bounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use crate::contender::Contender;
use crate::measure::{FIGURES, median};

/// Resident megabytes when ready, and after ten thousand conversations.
pub(crate) const RSS_IDLE: &str = "rss_idle";
pub(crate) const RSS_AFTER: &str = "rss_after_10000_conversations";

/// All measurements.
#[derive(Default)]
pub(crate) struct Report {
    /// The contenders measured, with their versions.
    pub present: BTreeMap<Contender, String>,
    /// The contenders left out, with reasons.
    pub absent: BTreeMap<Contender, String>,
    values: BTreeMap<(Contender, &'static str), Vec<f64>>,
}

/// A bound on one of tailroute's figures.
struct Promise {
    figure: &'static str,
    says: String,
    bound: Option<f64>,
    measured: Option<f64>,
}

impl Promise {
    fn verdict(&self) -> &'static str {
        match (self.bound, self.measured) {
            (Some(bound), Some(measured)) if measured <= bound => "kept",
            (Some(_), Some(_)) => "MISSED",
            _ => "not judged",
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, contender: Contender, figure: &'static str, value: f64) {
        self.values.entry((contender, figure)).or_default().push(value);
    }

    /// Returns the rounds' values of a figure. For overheads, the engine's own value of the same round is subtracted.
    fn rounds(&self, contender: Contender, figure: &str) -> Vec<f64> {
        let of = |contender: Contender| {
            let mut all = self.values.iter();
            all.find(|((who, what), _)| *who == contender && *what == figure)
                .map_or(&[][..], |(_, values)| values)
        };
        let own = of(contender).iter();
        match FIGURES.iter().find(|(name, ..)| *name == figure) {
            Some((.., true)) if contender != Contender::Direct => own
                .zip(of(Contender::Direct))
                .map(|(with, without)| with - without)
                .collect(),
            _ => own.copied().collect(),
        }
    }

    fn median(&self, contender: Contender, figure: &str) -> Option<f64> {
        let rounds = self.rounds(contender, figure);
        (!rounds.is_empty()).then(|| median(rounds))
    }

    fn promises(&self) -> Vec<Promise> {
        let times = |figure, factor: f64, peer: Contender| Promise {
            figure,
            says: format!("at most {factor} × {}", peer.name()),
            bound: self.median(peer, figure).map(|value| value * factor),
            measured: self.median(Contender::Tailroute, figure),
        };
        let at_most = |figure, bound: f64, unit| Promise {
            figure,
            says: format!("at most {bound} {unit}"),
            bound: Some(bound),
            measured: self.median(Contender::Tailroute, figure),
        };
        let sglang = Contender::SglangRouter;
        vec![
            times("request_tiny", 0.5, sglang),
            times("request_8k", 0.5, sglang),
            times("request_128k", 0.33, sglang),
            times("request_1m", 0.33, sglang),
            times("token_64_streams", 1.0, Contender::Nginx),
            times("token_256_streams", 1.0, Contender::Nginx),
            times("token_1000_streams", 1.0, Contender::Nginx),
            times("token_burst", 2.0, Contender::Nginx),
            at_most("ttft_p50", 0.4, "ms"),
            Promise {
                figure: "latency_p50",
                says: "at most nginx + 60 µs".to_owned(),
                bound: self
                    .median(Contender::Nginx, "latency_p50")
                    .map(|value| value + 60.0),
                measured: self.median(Contender::Tailroute, "latency_p50"),
            },
            at_most(RSS_IDLE, 40.0, "MB"),
        ]
    }

    /// Returns whether all promises hold.
    pub(crate) fn holds(&self) -> bool {
        self.promises()
            .iter()
            .all(|promise| promise.verdict() != "MISSED")
    }

    fn columns() -> impl Iterator<Item = (&'static str, &'static str)> {
        let memory = [(RSS_IDLE, "MB"), (RSS_AFTER, "MB")];
        FIGURES.iter().map(|&(name, unit, _)| (name, unit)).chain(memory)
    }

    /// Formats a table with one row per figure.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| median of the rounds | unit |");
        for (contender, version) in &self.present {
            let _ = write!(
                text,
                " {}{}{version} |",
                contender.name(),
                if version.is_empty() { "" } else { " " }
            );
        }
        text.push_str("\n|---|---|");
        text.push_str(&"--:|".repeat(self.present.len()));
        text.push('\n');
        for (figure, unit) in Self::columns() {
            let _ = write!(text, "| {figure} | {unit} |");
            for contender in self.present.keys() {
                match self.median(*contender, figure) {
                    Some(value) => drop(write!(text, " {} |", short(value))),
                    None => text.push_str(" – |"),
                }
            }
            text.push('\n');
        }
        for (contender, why) in &self.absent {
            let _ = writeln!(text, "\nnot here: {}: {why}", contender.name());
        }
        text.push('\n');
        for promise in self.promises() {
            let number = |value: Option<f64>| value.map_or("–".to_owned(), short);
            let (measured, bound) = (number(promise.measured), number(promise.bound));
            let (figure, says) = (promise.figure, &promise.says);
            let _ = writeln!(
                text,
                "{:<10} {figure}: {says}: {measured} of {bound}",
                promise.verdict()
            );
        }
        text
    }

    /// Formats JSON, one object per line.
    pub(crate) fn json(&self) -> String {
        let mut text = String::new();
        for (contender, version) in &self.present {
            for (figure, unit) in Self::columns() {
                let Some(median) = self.median(*contender, figure) else {
                    continue;
                };
                let line = json!({
                    "contender": contender.name(), "version": version, "figure": figure, "unit": unit,
                    "median": median, "rounds": self.rounds(*contender, figure),
                });
                let _ = writeln!(text, "{line}");
            }
        }
        for (contender, why) in &self.absent {
            let _ = writeln!(text, "{}", json!({ "absent": contender.name(), "why": why }));
        }
        for promise in self.promises() {
            let line = json!({
                "promise": promise.figure, "says": promise.says, "bound": promise.bound,
                "measured": promise.measured, "verdict": promise.verdict(),
            });
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_relative_to_the_engine_in_the_same_round() {
        let mut report = Report::default();
        for (direct, nginx, ours) in [(10.0, 12.0, 90.0), (20.0, 25.0, 91.0), (30.0, 33.0, 92.0)] {
            report.add(Contender::Direct, "latency_p50", direct);
            report.add(Contender::Nginx, "latency_p50", nginx);
            report.add(Contender::Tailroute, "latency_p50", ours);
        }
        assert_eq!(report.median(Contender::Direct, "latency_p50"), Some(20.0));
        assert_eq!(report.median(Contender::Nginx, "latency_p50"), Some(3.0));
        assert!(!report.holds(), "71 is more than 3 + 60");
    }

    #[test]
    fn a_promise_is_not_checked_without_its_peer() {
        let mut report = Report::default();
        report.add(Contender::Tailroute, "request_tiny", 1e9);
        assert!(report.holds());
        report.add(Contender::SglangRouter, "request_tiny", 70.0);
        assert!(!report.holds());
        assert!(report.table().contains("MISSED"));
    }
}
