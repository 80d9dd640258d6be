//! The report as text.

use std::fmt::Write as _;

use serde_json::Value;

use super::compare::{Change, Report, Side};
use super::figures::Figures;

/// Formats the report, on lines of about a hundred characters.
pub(super) fn text(report: &Report) -> String {
    let (before, after) = (&report.baseline, &report.proposed);
    let mut out = format!(
        "{} turns on {} workers, objective {} ms\nproposed: {}\n{} turns go elsewhere; {} become faster, {} slower",
        report.turns,
        report.workers.len(),
        report.objective_ms,
        proposal(before, after),
        report.moved,
        report.better,
        report.worse,
    );
    if report.unserved > 0 {
        let _ = write!(out, "; {} were never served", report.unserved);
    }
    let _ = write!(
        out,
        "\n\n{:<34} {:>12} {:>12} {:>9}",
        "", "before", "after", "change"
    );
    figures(&mut out, "", &before.figures, &after.figures);
    row(
        &mut out,
        "workers busy",
        before.utilisation,
        after.utilisation,
        true,
    );
    if report.classes.len() > 1 || report.classes.iter().any(|class| class.class != "default") {
        for class in &report.classes {
            let _ = write!(
                out,
                "\n\nclass {}, {} turns, objective {} ms",
                class.class, class.turns, class.objective_ms
            );
            figures(&mut out, "  ", &class.baseline, &class.proposed);
        }
    }
    if report.changes.is_empty() {
        out.push_str("\n\nno turn changes");
        return out;
    }
    let _ = write!(
        out,
        "\n\nthe turns that change most\n{:>8} {:>12} {:>6} {:<12} {:>10} {:>10} {:>10}  worker, and what decided",
        "turn", "conversation", "number", "class", "before", "after", "change"
    );
    report.changes.iter().for_each(|change| one(&mut out, change));
    out
}

/// Lists the changed settings: `kappa_max 10 → 20, weights.locality 0.6 → 0.8`.
fn proposal(before: &Side, after: &Side) -> String {
    let settings = |side: &Side| serde_json::to_value(&side.settings).unwrap_or_default();
    let mut changes = Vec::new();
    differences("", &settings(before), &settings(after), &mut changes);
    let windows = [before, after].map(|side| side.utilisation_window_s);
    if windows[0] != windows[1] {
        changes.push(format!("utilisation_window_s {} → {}", windows[0], windows[1]));
    }
    if changes.is_empty() {
        return "the same settings as in force".to_owned();
    }
    changes.join(", ")
}

fn differences(path: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    if let (Value::Object(before), Value::Object(after)) = (before, after) {
        for (key, value) in before {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            differences(&path, value, after.get(key).unwrap_or(&Value::Null), changes);
        }
    } else if before != after {
        changes.push(format!("{path} {before} → {after}").replace('"', ""));
    }
}

fn figures(out: &mut String, indent: &str, before: &Figures, after: &Figures) {
    for ((name, before, is_share), (_, after, _)) in before.rows().into_iter().zip(after.rows()) {
        row(out, &format!("{indent}{name}"), before, after, is_share);
    }
}

/// Writes a row. Shares change by percentage points, times by per cent.
fn row(out: &mut String, name: &str, before: f64, after: f64, is_share: bool) {
    let _ = if is_share {
        let points = (after - before) * 100.0;
        write!(
            out,
            "\n{name:<34} {:>10.1} % {:>10.1} % {points:>+6.1} pp",
            before * 100.0,
            after * 100.0
        )
    } else if before > 0.0 {
        let change = (after / before - 1.0) * 100.0;
        write!(out, "\n{name:<34} {before:>12.1} {after:>12.1} {change:>+7.1} %")
    } else {
        write!(out, "\n{name:<34} {before:>12.1} {after:>12.1} {:>9}", "–")
    };
}

fn one(out: &mut String, change: &Change) {
    let (before, after) = (&change.baseline, &change.proposed);
    let workers = if before.worker == after.worker {
        before.worker.clone()
    } else {
        format!("{} → {}", before.worker, after.worker)
    };
    let decided = &change.decided_by;
    let by = decided.ms.map_or(String::new(), |ms| format!(" ({ms:+.1} ms)"));
    let _ = write!(
        out,
        "\n{:>8} {:>12} {:>6} {:<12} {:>10.1} {:>10.1} {:>+10.1}  {workers}: {}{by}",
        change.turn,
        change.conversation,
        change.number,
        change.class,
        before.ttft_ms,
        after.ttft_ms,
        change.change_ms,
        decided.term,
    );
}
