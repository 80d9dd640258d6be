//! The figures printed in the T-LRU paper (arXiv 2510.15152, NeurIPS 2025): tables 1 to 6, in per cent, rows by
//! capacity. Table 6 has duplicate column headers; the last are read as ξ_s = 200 and 500 ms, as in table 3.

use super::experiment::{Baseline, Column, Figure, PaperTable, Setting};

pub(super) const CAPACITIES: [u64; 6] = [1000, 2000, 4000, 6000, 8000, 10_000];

const LRU: Baseline = Baseline::Lru;
const THRESHOLD: Baseline = Baseline::ThresholdLru;

pub(super) fn tables() -> Vec<PaperTable> {
    vec![
        PaperTable {
            number: 1,
            title: "T-LRU over LRU: TTFT percentiles",
            setting: Setting::Wildchat,
            columns: percentiles(&[50.0, 100.0, 150.0, 200.0, 500.0], LRU, true),
            printed: T1,
        },
        PaperTable {
            number: 2,
            title: "T-LRU over Threshold-LRU: TTFT percentiles",
            setting: Setting::Wildchat,
            columns: percentiles(&[50.0, 100.0, 150.0, 200.0, 500.0], THRESHOLD, true),
            printed: T2,
        },
        PaperTable {
            number: 3,
            title: "Requests above 200 ms",
            setting: Setting::Wildchat,
            columns: violations(&[50.0, 100.0, 150.0, 200.0, 500.0]),
            printed: T3,
        },
        PaperTable {
            number: 4,
            title: "T-LRU over LRU: TTFT percentiles",
            setting: Setting::Sharegpt,
            columns: percentiles(&[50.0, 100.0, 200.0, 300.0, 500.0], LRU, false),
            printed: T4,
        },
        PaperTable {
            number: 5,
            title: "T-LRU over Threshold-LRU: TTFT percentiles",
            setting: Setting::Sharegpt,
            columns: percentiles(&[50.0, 100.0, 200.0, 300.0, 500.0], THRESHOLD, false),
            printed: T5,
        },
        PaperTable {
            number: 6,
            title: "Requests above 200 ms",
            setting: Setting::Sharegpt,
            columns: violations(&[50.0, 100.0, 150.0, 200.0, 500.0]),
            printed: T6,
        },
    ]
}

fn percentiles(xi_ms: &[f64], against: Baseline, with_p99: bool) -> Vec<Column> {
    let pair = |xi_ms: &f64| {
        [Figure::P90, Figure::P95].map(|figure| Column {
            xi_ms: *xi_ms,
            against,
            figure,
        })
    };
    let p99 = Column {
        xi_ms: 500.0,
        against,
        figure: Figure::P99,
    };
    xi_ms
        .iter()
        .flat_map(pair)
        .chain(with_p99.then_some(p99))
        .collect()
}

fn violations(xi_ms: &[f64]) -> Vec<Column> {
    let pair = |xi_ms: &f64| {
        [LRU, THRESHOLD].map(|against| Column {
            xi_ms: *xi_ms,
            against,
            figure: Figure::Violations,
        })
    };
    xi_ms.iter().flat_map(pair).collect()
}

const T1: [&[f64]; 6] = [
    &[4.0, 0.0, 4.5, 1.0, 5.3, 1.5, 7.3, 2.0, -1.4, -1.3, 3.2],
    &[1.2, 0.6, 3.4, 0.6, 5.1, 3.4, 9.2, 4.4, -4.9, -2.8, 3.3],
    &[1.7, 0.7, 4.1, 2.8, 10.5, 4.2, 13.3, 10.8, -7.5, -3.4, 3.4],
    &[5.0, 2.1, 10.6, 4.0, 16.0, 11.4, 14.3, 15.4, -8.7, -4.2, 3.4],
    &[2.2, 0.7, 10.5, 8.5, 23.0, 15.8, 8.8, 19.5, -13.7, -3.5, 1.4],
    &[3.6, 7.4, 20.0, 15.7, 27.5, 20.1, 6.9, 23.9, -13.3, -3.5, -0.0],
];

const T2: [&[f64]; 6] = [
    &[1.5, 0.0, 2.0, 1.0, 2.9, 1.5, 4.8, 2.0, -4.0, -1.3, 3.2],
    &[0.4, 0.6, 2.7, 0.6, 4.4, 3.4, 8.6, 4.4, -5.7, -2.8, 3.3],
    &[0.3, 0.0, 2.7, 2.1, 9.3, 3.5, 12.0, 10.2, -9.0, -4.2, 3.4],
    &[4.7, 1.2, 10.4, 3.1, 15.7, 10.6, 14.1, 14.6, -9.1, -5.2, 3.4],
    &[1.1, 0.7, 9.5, 8.5, 22.2, 15.8, 7.8, 19.5, -14.9, -3.5, 1.4],
    &[2.4, 6.1, 19.0, 14.6, 26.6, 19.0, 5.7, 22.8, -14.7, -5.0, -0.0],
];

const T3: [&[f64]; 6] = [
    &[1.2, -1.2, 4.1, 1.8, 6.5, 4.2, 8.8, 6.6, -1.8, -4.2],
    &[2.4, 1.2, 6.1, 4.9, 9.1, 8.0, 13.3, 12.3, -4.8, -6.1],
    &[3.9, 1.3, 7.1, 4.7, 14.3, 12.0, 22.1, 20.0, -12.3, -15.3],
    &[2.0, 0.7, 12.2, 11.0, 20.9, 19.9, 30.4, 29.5, -12.2, -13.7],
    &[4.3, 2.2, 16.4, 14.6, 29.3, 27.7, 33.6, 32.1, -19.3, -21.9],
    &[7.4, 4.6, 25.9, 23.7, 31.9, 29.8, 40.7, 38.9, -19.3, -22.9],
];

const T4: [&[f64]; 6] = [
    &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.6, 0.9, 0.9],
    &[0.7, 0.0, 0.7, 0.2, 0.9, 1.5, 1.4, 2.0, 2.7, 2.3],
    &[0.6, 0.6, 0.7, 1.8, 2.0, 2.5, 2.5, 3.0, 4.2, 3.5],
    &[0.7, 1.3, 2.1, 2.9, 4.9, 3.6, 8.1, 4.2, 10.0, 4.7],
    &[1.5, 0.9, 2.6, 1.8, 3.5, 2.5, 4.8, 3.6, 9.6, 5.0],
    &[0.9, 0.7, 3.6, 1.7, 4.3, 2.9, 5.1, 3.6, 9.0, 6.9],
];

const T5: [&[f64]; 6] = [
    &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.6, 0.9, 0.9],
    &[0.7, 0.0, 0.7, 0.2, 0.9, 1.5, 1.4, 2.0, 2.7, 2.3],
    &[0.6, 0.6, 0.7, 1.8, 2.0, 2.5, 2.5, 3.0, 4.2, 3.5],
    &[0.7, 0.8, 2.1, 2.4, 4.9, 3.1, 8.1, 3.7, 10.0, 4.2],
    &[0.8, 0.3, 2.0, 1.2, 2.9, 2.0, 4.1, 3.0, 9.0, 4.5],
    &[0.9, 0.6, 3.6, 1.6, 4.3, 2.8, 5.1, 3.5, 9.0, 6.8],
];

const T6: [&[f64]; 6] = [
    &[0.7, 0.0, 1.7, 1.0, 2.3, 1.6, 2.3, 1.6, -3.5, -4.2],
    &[1.1, 1.0, 1.9, 1.8, 2.6, 2.5, 3.1, 3.0, -8.6, -8.7],
    &[1.8, 1.3, 3.9, 3.4, 4.7, 4.2, 4.8, 4.3, -15.6, -16.2],
    &[1.9, 1.1, 4.7, 3.9, 6.0, 5.2, 4.7, 3.9, -26.2, -27.2],
    &[1.2, 0.9, 4.3, 4.0, 4.9, 4.6, 2.9, 2.6, -39.3, -39.7],
    &[2.2, 1.8, 6.5, 6.1, 7.9, 7.6, 3.3, 3.0, -50.7, -51.2],
];
