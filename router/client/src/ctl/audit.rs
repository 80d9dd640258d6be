use serde_json::Value;

use super::format::{list, plain, text, time};
use super::policy::settings::differences;
use super::table::{Align, Table};

/// Most differences that are shown of one change.
const MOST: usize = 8;

/// Formats the log, with what each change changed, or why it was refused, below it.
pub(super) fn audit(answer: &Value) -> String {
    let mut table = Table::new(&[
        ("when", Align::Left),
        ("who", Align::Left),
        ("what", Align::Left),
        ("of", Align::Left),
        ("outcome", Align::Left),
        ("why", Align::Left),
    ]);
    for entry in list(answer, "entries") {
        table.row([
            time(&entry["at_unix_ms"]),
            text(&entry["who"], "name").to_owned(),
            text(entry, "action").to_owned(),
            text(entry, "target").to_owned(),
            text(entry, "outcome").to_owned(),
            text(entry, "why").to_owned(),
        ]);
        if let Some(refused) = entry["refused"].as_str() {
            table.note(refused);
        }
        let changes = changes(entry);
        let more = changes.len().saturating_sub(MOST);
        for change in changes.into_iter().take(MOST) {
            table.note(change);
        }
        if more > 0 {
            table.note(format!("and {more} more"));
        }
    }
    table.text()
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
        ] }));
        let notes: Vec<&str> = shown
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .collect();
        assert_eq!(
            notes,
            ["weights.load: 1.0 → 1.2", "none → cordoned", "403 no"],
            "{shown}"
        );
    }
}
