//! The audit log in sentences.

use std::fmt::Write as _;

use serde_json::Value;

use super::format::{list, plain, text, time};
use super::policy::settings::differences;

/// Maximum number of differences shown per change.
const MOST: usize = 8;

/// Operations, worded as a change that was made and as one that was refused. `{}` is the target.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("policy.put", "changed the policy", "change the policy"),
    (
        "policy.rollback",
        "rolled the policy back",
        "roll the policy back",
    ),
    (
        "policy.revert",
        "reverted the temporary policy",
        "revert the temporary policy",
    ),
    (
        "policy.adopt",
        "changed the policy on another replica",
        "change the policy",
    ),
    (
        "policy.shadow_put",
        "set the shadow policy",
        "set the shadow policy",
    ),
    (
        "policy.shadow_stop",
        "stopped the shadow policy",
        "stop the shadow policy",
    ),
    (
        "config.reload",
        "reloaded the configuration",
        "reload the configuration",
    ),
    ("workers.add", "added worker {}", "add worker {}"),
    ("workers.remove", "removed worker {}", "remove worker {}"),
    ("workers.cordon", "cordoned {}", "cordon {}"),
    ("workers.uncordon", "uncordoned {}", "uncordon {}"),
    ("workers.drain", "drained {}", "drain {}"),
    ("workers.alpha", "set α of {}", "set α of {}"),
    ("workers.alpha_revert", "reverted α of {}", "revert α of {}"),
    ("workers.calibrate", "calibrated {}", "calibrate {}"),
    (
        "keys.reset",
        "reset the limits of key {}",
        "reset the limits of key {}",
    ),
    ("capture.start", "started a capture", "start a capture"),
    ("capture.stop", "stopped the capture", "stop the capture"),
    ("log.put", "changed the log level", "change the log level"),
];

/// Formats the log: a sentence per entry, with the changed settings below it.
pub(super) fn audit(answer: &Value) -> String {
    let mut out = String::new();
    for entry in list(answer, "entries") {
        let _ = writeln!(out, "{}  {}", time(&entry["at_unix_ms"]), sentence(entry));
        let changes = changes(entry);
        let more = changes.len().saturating_sub(MOST);
        for change in changes.into_iter().take(MOST) {
            let _ = writeln!(out, "    {change}");
        }
        if more > 0 {
            let _ = writeln!(out, "    and {more} more");
        }
    }
    match out.is_empty() {
        true => "There have been no changes.".to_owned(),
        false => out.trim_end().to_owned(),
    }
}

/// Formats an entry as a sentence, with the reason of the change or of its refusal: `alice cordoned gpu-1: its fan is
/// loud`.
fn sentence(entry: &Value) -> String {
    let (who, action, target) = (
        text(&entry["who"], "name"),
        text(entry, "action"),
        text(entry, "target"),
    );
    let known = OPERATIONS.iter().find(|(known, ..)| *known == action);
    let mut out = match (entry["refused"].as_str(), known) {
        (None, Some((_, done, _))) => format!("{who} {}", done.replace("{}", target)),
        (None, None) => format!("{who}: {action} of {target}"),
        (Some(_), Some((_, _, wanted))) => format!("{who} was refused to {}", wanted.replace("{}", target)),
        (Some(_), None) => format!("{who} was refused {action} of {target}"),
    };
    if let Some(why) = entry["why"].as_str() {
        let _ = write!(out, ": {why}");
    }
    if let Some(refused) = entry["refused"].as_str() {
        let _ = write!(out, " ({refused})");
    }
    if let Some(more @ 1..) = entry["left_out"].as_u64() {
        let _ = write!(out, "; {more} such refusals before it are left out");
    }
    out
}

/// Compares the states before and after a change. Of a revision of the policy, only the settings are compared.
fn changes(entry: &Value) -> Vec<String> {
    let (mut before, mut after) = (&entry["before"], &entry["after"]);
    if before["settings"].is_object() && after["settings"].is_object() {
        (before, after) = (&before["settings"], &after["settings"]);
    }
    match (before, after) {
        (Value::Object(_), Value::Object(_)) => {
            let differences = differences(before, after);
            differences.iter().map(ToString::to_string).collect()
        }
        // A whole object that was added or removed.
        (_, Value::Object(_)) | (Value::Object(_), _) => Vec::new(),
        (before, after) if before == after => Vec::new(),
        (before, after) => vec![format!("{} → {}", plain(before), plain(after))],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_show_old_and_new_values_and_refusals_their_reason() {
        let entry = |action: &str, outcome: &str, more: Value| {
            let mut entry = json!({
                "at_unix_ms": 0, "who": { "name": "alice" }, "action": action, "target": "x", "outcome": outcome, "why": "w",
            });
            entry
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            entry
        };
        let revision = |number: u32, load: f64| json!({ "revision": number, "settings": { "weights": { "load": load } } });
        let shown = audit(&json!({ "entries": [
            entry("policy.put", "applied", json!({ "before": revision(1, 1.0), "after": revision(2, 1.2) })),
            entry("workers.cordon", "applied", json!({ "before": "none", "after": "cordoned" })),
            entry("workers.add", "applied", json!({ "before": null, "after": { "name": "x" } })),
            entry("policy.put", "refused", json!({ "before": null, "after": null, "refused": "403 no" })),
            entry("spells.cast", "applied", json!({ "before": null, "after": null })),
        ] }));
        assert_eq!(
            shown,
            "1970-01-01 00:00:00Z  alice changed the policy: w\n    weights.load: 1.0 → 1.2\n\
             1970-01-01 00:00:00Z  alice cordoned x: w\n    none → cordoned\n\
             1970-01-01 00:00:00Z  alice added worker x: w\n\
             1970-01-01 00:00:00Z  alice was refused to change the policy: w (403 no)\n\
             1970-01-01 00:00:00Z  alice: spells.cast of x: w"
        );
        assert_eq!(audit(&json!({ "entries": [] })), "There have been no changes.");
    }
}
