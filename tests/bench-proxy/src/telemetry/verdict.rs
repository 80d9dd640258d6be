//! The results: for each figure and router, the median of the rounds' ratios to the first router.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Variant;
use crate::measure::median;

/// Costs by figure, round and router.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<&'static str, Vec<BTreeMap<&'static str, f64>>>);

/// The result for one figure of one router.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    figure: &'static str,
    variant: &'static str,
    /// Median costs in microseconds of processor time.
    with: f64,
    without: f64,
    /// The median of the rounds' ratios, and the number of rounds.
    ratio: f64,
    ratios: Vec<f64>,
    /// The promised bound of the ratio, if there is one.
    bound: Option<f64>,
}

impl Samples {
    pub(super) fn add(&mut self, figure: &'static str, costs: &BTreeMap<&'static str, f64>) {
        self.0.entry(figure).or_default().push(costs.clone());
    }

    /// Returns the results relative to the router `first`. The promise covers all of telemetry.
    pub(super) fn verdicts(&self, first: &str, bound: f64) -> Vec<Verdict> {
        let mut all = Vec::new();
        for (figure, rounds) in &self.0 {
            let names = rounds.iter().flat_map(BTreeMap::keys).copied();
            let names: std::collections::BTreeSet<_> = names.filter(|name| *name != first).collect();
            for variant in names {
                let pairs: Vec<_> = rounds
                    .iter()
                    .filter_map(|costs| Some((*costs.get(variant)?, *costs.get(first)?)))
                    .collect();
                let ratios: Vec<f64> = pairs.iter().map(|(with, without)| with / without).collect();
                all.push(Verdict {
                    figure,
                    variant,
                    with: median(pairs.iter().map(|pair| pair.0)),
                    without: median(pairs.iter().map(|pair| pair.1)),
                    ratio: median(ratios.iter().copied()),
                    ratios,
                    bound: (variant == Variant::ON.name).then_some(bound),
                });
            }
        }
        all
    }
}

impl Verdict {
    /// Returns whether the promise holds.
    pub(super) fn holds(&self) -> bool {
        // NaN breaks the promise.
        self.bound.is_none_or(|bound| self.ratio <= bound)
    }

    fn word(&self) -> &'static str {
        match (self.bound, self.holds()) {
            (None, _) => "not judged",
            (_, true) => "kept",
            (_, false) => "MISSED",
        }
    }

    /// Formats a JSON object.
    pub(super) fn json(&self) -> Value {
        json!({
            "figure": self.figure, "router": self.variant, "unit": "µs CPU",
            "median": self.with, "without": self.without, "ratio": self.ratio, "ratios": self.ratios,
            "bound": self.bound, "verdict": self.word(),
        })
    }

    /// Formats a table row.
    pub(super) fn row(&self) -> String {
        let bound = self.bound.map_or(String::new(), |bound| format!("{bound:.2}"));
        format!(
            "| {} | {} | {:.2} | {:.2} | {:.3} | {bound} | {} |",
            self.figure,
            self.variant,
            self.with,
            self.without,
            self.ratio,
            self.word()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rounds: &[[f64; 3]]) -> Samples {
        let mut samples = Samples::default();
        for [off, again, on] in rounds {
            let costs = BTreeMap::from([("off", *off), ("off_again", *again), ("on", *on)]);
            samples.add("request_tiny", &costs);
        }
        samples
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // In the second round the machine was three times as slow, and one figure of the last round was disturbed.
        let verdicts =
            samples(&[[10.0, 10.0, 10.5], [30.0, 30.0, 31.5], [10.0, 11.0, 20.0]]).verdicts("off", 1.08);
        let [again, on] = &verdicts[..] else {
            panic!("{verdicts:?}")
        };
        assert_eq!(
            (again.variant, again.ratio, again.word()),
            ("off_again", 1.0, "not judged")
        );
        assert_eq!((on.variant, on.ratio, on.word()), ("on", 1.05, "kept"));
    }

    #[test]
    fn a_high_or_missing_ratio_breaks_the_promise() {
        for on in [10.9, f64::NAN] {
            let verdicts = samples(&[[10.0, 10.0, on]]).verdicts("off", 1.08);
            assert!(!verdicts[1].holds(), "{verdicts:?}");
            assert_eq!(verdicts[1].json()["verdict"], "MISSED");
            assert!(verdicts[0].holds(), "nothing is promised of the router without");
        }
    }
}
