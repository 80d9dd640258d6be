//! What is promised of ours at this size, beside what was measured.

use crate::report::{
    AFTER, CHURN, FRESH, REMOVALS, REMOVE_WORKER, Report, STORES, WORN,
};

/// Lookups that are promised to be no slower than the faster peer.
const DEPTHS: [&str; 4] = ["shared 32", "depth 128", "depth 512", "512 + 32 new"];
/// Lookups among them that are promised to be faster by a third.
const FASTER: usize = 2;

pub struct Promise {
    pub what: String,
    pub measured: f64,
    pub at_most: f64,
}

impl Promise {
    pub fn kept(&self) -> bool {
        self.measured <= self.at_most
    }
}

fn promise(what: impl Into<String>, measured: f64, at_most: f64) -> Promise {
    Promise { what: what.into(), measured, at_most }
}

/// Every promise, by the figures of a run.
pub fn of_ours(report: &Report) -> Vec<Promise> {
    let mut promises = Vec::new();
    for when in ["", AFTER] {
        let mut ratios = Vec::new();
        for depth in DEPTHS {
            let case = format!("{depth}{when}");
            let (p50, p99) = report.ratios(&case);
            promises.push(promise(format!("{case}: p50 to the faster peer's"), p50, 1.0));
            promises.push(promise(format!("{case}: p99 to the lower peer's"), p99, 1.0));
            ratios.push(p50);
        }
        ratios.sort_by(f64::total_cmp);
        promises.push(promise(format!("p50 to the faster peer's at the best two depths{when}"), ratios[FASTER - 1], 0.7));
    }
    let ours = |figure| report.ours(figure);
    promises.push(promise(FRESH, ours(FRESH), 45.0));
    promises.push(promise("churn: bytes per entry after turnovers to before", ours(WORN) / ours(FRESH), 1.05));
    promises.push(promise(STORES, ours(STORES), 130.0));
    promises.push(promise(CHURN, ours(CHURN), 130.0));
    promises.push(promise(REMOVALS, ours(REMOVALS), 130.0));
    promises.push(promise(REMOVE_WORKER, ours(REMOVE_WORKER), 0.5));
    promises.push(promise("answers that differ between the structures", report.disagreements as f64, 0.0));
    promises
}
