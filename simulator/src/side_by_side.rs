//! Figures of two sides in a table: two plays of a trace, or a measurement and a simulation.

use std::fmt::Write as _;

use serde_json::Value;

/// Key of a figure in a report, its name, and whether it is a share.
const FIGURES: [(&str, &str, bool); 8] = [
    ("p50_ms", "p50 ms", false),
    ("p95_ms", "p95 ms", false),
    ("p99_ms", "p99 ms", false),
    ("mean_ms", "mean ms", false),
    ("tel_ms", "TEL ms", false),
    ("hit_ratio", "hits", true),
    ("slo_share", "within objective", true),
    ("utilisation", "workers busy", true),
];

/// Returns the header of a table with these columns of figures.
#[must_use]
pub fn header(before: &str, after: &str) -> String {
    format!("{:<18} {before:>12} {after:>12} {:>9}", "", "change")
}

/// Returns a line for each figure that both sides have. Shares change by percentage points, times by per cent.
#[must_use]
pub fn rows(indent: &str, before: &Value, after: &Value) -> String {
    let mut out = String::new();
    for (key, name, is_share) in FIGURES {
        let (Some(before), Some(after)) = (before[key].as_f64(), after[key].as_f64()) else {
            continue;
        };
        let name = format!("{indent}{name}");
        let _ = if is_share {
            let (before, after) = (before * 100.0, after * 100.0);
            write!(
                out,
                "\n{name:<18} {before:>10.1} % {after:>10.1} % {:>+6.1} pp",
                after - before
            )
        } else if before > 0.0 {
            let change = (after / before - 1.0) * 100.0;
            write!(out, "\n{name:<18} {before:>12.1} {after:>12.1} {change:>+7.1} %")
        } else {
            write!(out, "\n{name:<18} {before:>12.1} {after:>12.1} {:>9}", "–")
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_change_by_per_cent_and_shares_by_points() {
        let (before, after) = (
            json!({ "p50_ms": 80.0, "hit_ratio": 0.734 }),
            json!({ "p50_ms": 100.0, "hit_ratio": 0.5 }),
        );
        assert_eq!(
            rows("", &before, &after),
            "\np50 ms                     80.0        100.0   +25.0 %\nhits                     73.4 %       50.0 %  -23.4 pp"
        );
    }
}
