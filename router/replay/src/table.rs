use std::fmt::Write as _;

use serde_json::{Value, json};
use simulator::side_by_side::{header, rows};

use super::compare::{ChangedTurn, PlaySummary, ReplayReport};
use super::costs::{SimWorker, any_assumed};

/// Formats the report in lines of about a hundred characters.
pub(super) fn text(report: &ReplayReport) -> String {
    let (before, after) = (&report.baseline, &report.proposed);
    let mut out = format!(
        "{} turns on {} workers, objective {} ms\ncosts: {}\n\n{}\n\nproposed: {}\n{} turns go elsewhere; {} become faster, {} slower",
        report.turns,
        report.workers.len(),
        report.objective_ms,
        report.costs,
        checked(report),
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
        "\n\n{}{}",
        header("before", "after"),
        rows("", &json!(before), &json!(after))
    );
    if report.classes.len() > 1 || report.classes.iter().any(|class| class.class != "default") {
        for class in &report.classes {
            let _ = write!(
                out,
                "\n\nclass {}, {} turns, objective {} ms{}",
                class.class,
                class.turns,
                class.objective_ms,
                rows("  ", &json!(class.baseline), &json!(class.proposed))
            );
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

fn checked(report: &ReplayReport) -> String {
    let Some(check) = &report.check else {
        return "not compared with measured times: too few turns were measured under the policy in force"
            .to_owned();
    };
    let mut out = format!(
        "{} measured turns, under the policy in force\n{}",
        check.turns,
        check.table()
    );
    if !check.agrees() {
        out.push_str("\nwarning: the simulation does not reproduce the measured times");
    }
    out
}

/// Returns advice for a simulation that does not reproduce the measurements.
pub(super) fn remedy(workers: &[SimWorker]) -> &'static str {
    if any_assumed(workers) {
        "The costs of some workers are assumed: measure them with `gpu-bench worker URL --out FILE` and set \
         `calibration = \"FILE\"` for each worker in the configuration, or take a new capture, which records the costs \
         that the router has learned."
    } else {
        "The costs may be out of date, the workers may have served requests of others, or the fleet may have changed \
         during the capture: measure the costs again with `gpu-bench worker URL --out FILE`, or take a new capture."
    }
}

/// Lists the changed settings: `kappa_max 10 → 20, weights.locality 0.6 → 0.8`.
fn proposal(before: &PlaySummary, after: &PlaySummary) -> String {
    let settings = |side: &PlaySummary| serde_json::to_value(&side.settings).unwrap_or_default();
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

fn one(out: &mut String, change: &ChangedTurn) {
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
