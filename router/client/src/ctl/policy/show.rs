//! Formats policies, their history, previews and the shadow policy.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use simulator::side_by_side::{header, rows};

use super::super::format::{count, list, ms, number, plain, share, text, time};
use super::super::table::{Align, TextTable};
use super::settings::{differences, flat};

pub(super) fn policy(answer: &Value) -> String {
    let mut out = head(answer);
    let configured = &answer["configured"];
    let differing = match configured {
        Value::Object(_) => differences(configured, &answer["settings"]),
        _ => Vec::new(),
    };
    out.push('\n');
    for (key, value) in flat(&answer["settings"]) {
        let _ = write!(out, "\n{key}={}", plain(&value));
        if let Some(difference) = differing.iter().find(|difference| difference.key == key) {
            let configured = difference.before.as_ref().map_or("none".to_owned(), plain);
            let _ = write!(out, "  # configured: {configured}");
        }
    }
    for difference in differing.iter().filter(|difference| difference.after.is_none()) {
        let configured = difference.before.as_ref().map_or("none".to_owned(), plain);
        let _ = write!(out, "\n# {}: none; configured: {configured}", difference.key);
    }
    out
}

/// Formats a change that was made: its revision, and the old and new value of each changed key.
pub(super) fn changed(before: &Value, answer: &Value) -> String {
    let mut out = head(answer);
    let changes = differences(before, &answer["settings"]);
    out.push('\n');
    for change in &changes {
        let _ = write!(out, "\n{change}");
    }
    if changes.is_empty() {
        out.push_str("\nno setting has changed");
    }
    out
}

fn head(answer: &Value) -> String {
    let mut out = format!(
        "revision {} since {} by {} ({})",
        answer["revision"],
        time(&answer["since_unix_ms"]),
        text(answer, "by"),
        text(answer, "source"),
    );
    let shared = answer["replica"].as_str();
    if let Some(replica) = shared {
        let _ = write!(out, ", replica {replica}, for all replicas");
    }
    if let Some(reason) = answer["reason"].as_str() {
        let _ = write!(out, ": {reason}");
    }
    if let Some(restored) = answer["restored_revision"].as_u64() {
        let _ = write!(out, "\nrestores revision {restored}");
    }
    if answer["as_configured"] == false {
        out.push_str(match shared {
            None => "\ndiffers from the configuration",
            Some(_) => {
                "\ndiffers from this replica's configuration; a restart adopts the policy of the fleet"
            }
        });
    }
    for (key, ending) in answer["reverts"]["keys"].as_object().into_iter().flatten() {
        let key = key
            .trim_start_matches('/')
            .replace('/', ".")
            .replace("~1", "/")
            .replace("~0", "~");
        let to = match &ending["to"] {
            Value::Null => "the default".to_owned(),
            to => to.to_string(),
        };
        let seconds = ending["in_s"].as_f64().unwrap_or_default();
        let _ = write!(out, "\n{key} is temporary: back to {to} in {seconds:.0} s");
    }
    out
}

/// Formats at most `limit` revisions, each with its differences from the revision before it.
pub(super) fn history(answer: &Value, limit: usize) -> String {
    let mut table = TextTable::new(&[
        ("revision", Align::Right),
        ("since", Align::Left),
        ("by", Align::Left),
        ("how", Align::Left),
        ("policy", Align::Left),
        ("reason", Align::Left),
    ]);
    let revisions: Vec<&Value> = list(answer, "revisions").collect();
    for (at, revision) in revisions.iter().enumerate().take(limit) {
        let temporary = if revision["temporary"] == true {
            ", temporary"
        } else {
            ""
        };
        table.row([
            revision["revision"].to_string(),
            time(&revision["since_unix_ms"]),
            text(revision, "by").to_owned(),
            format!("{}{temporary}", text(revision, "source")),
            text(&revision["settings"], "policy").to_owned(),
            text(revision, "reason").to_owned(),
        ]);
        let Some(before) = revisions.get(at + 1) else {
            continue;
        };
        for change in differences(&before["settings"], &revision["settings"]) {
            table.note(change.to_string());
        }
    }
    table.text()
}

/// Formats the results of a preview, as `tailroute replay` does.
pub(super) fn preview(report: &Value) -> String {
    let mut out = format!(
        "{} turns on {} workers, objective {} ms\ncosts: {}",
        report["turns"],
        report["workers"].as_array().map_or(0, Vec::len),
        number(report, "objective_ms"),
        text(report, "costs"),
    );
    let check = &report["check"];
    if let Some(turns) = check["turns"].as_u64() {
        let (header, rows) = (
            header("measured", "simulated"),
            rows("", &check["measured"], &check["simulated"]),
        );
        let _ = write!(
            out,
            "\n\n{turns} measured turns, under the policy in force\n{header}{rows}"
        );
    }
    let (header, rows) = (
        header("before", "after"),
        rows("", &report["baseline"], &report["proposed"]),
    );
    let _ = write!(out, "\n\n{header}{rows}");
    let _ = write!(
        out,
        "\n\n{} turns go elsewhere; {} become faster, {} slower",
        report["moved"], report["better"], report["worse"]
    );
    out
}

/// Formats a shadow policy: where it would have sent the turns, and how it differs from the policy in force.
pub(super) fn shadow(answer: &Value, in_force: &Value) -> String {
    if answer["running"] != true {
        return "No shadow policy is running.".to_owned();
    }
    let empty = Value::Object(Map::new());
    let tally = answer.get("tally").unwrap_or(&empty);
    let [turns, elsewhere, faster] =
        ["turns", "elsewhere", "faster"].map(|key| tally[key].as_u64().unwrap_or(0));
    let mut out = if turns == 0 {
        "The shadow policy has seen no turn yet.".to_owned()
    } else {
        format!(
            "The shadow policy would have sent {} of {} turns ({}) to another worker; for {} of them it predicts an \
             earlier first token there.",
            count(elsewhere),
            count(turns),
            share(elsewhere as f64, turns as f64),
            count(faster),
        )
    };
    let mut table = TextTable::new(&[("", Align::Left), ("", Align::Right)]);
    table.row(["since".to_owned(), time(&answer["since_unix_ms"])]);
    table.row(["turns".to_owned(), count(turns)]);
    table.row(["to another worker".to_owned(), count(elsewhere)]);
    table.row(["of these, faster there".to_owned(), count(faster)]);
    let mean = number(tally, "predicted_change_ms") / (turns.max(1) as f64);
    table.row(["predicted TTFT, mean change".to_owned(), ms(mean)]);
    let _ = write!(out, "\n{}", table.text());
    let changes = differences(in_force, &answer["settings"]);
    if changes.is_empty() {
        out.push_str("\n\nIts settings are those of the policy in force.");
    } else {
        out.push_str("\n\nsettings, in force → shadow:");
    }
    for change in changes {
        let _ = write!(out, "\n{change}");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_shown_as_it_is_set_and_marks_what_is_not_configured() {
        let shown =
            policy(&json!({ "revision": 2, "settings": { "policy": "tail", "weights": { "load": 1.0 } } }));
        assert!(shown.ends_with("\npolicy=tail\nweights.load=1.0"), "{shown}");
        let shown = policy(&json!({
            "revision": 2, "as_configured": false,
            "settings": { "policy": "tail", "weights": { "load": 1.5 } },
            "configured": { "policy": "tail", "weights": { "load": 1.0 }, "classes": { "b": { "kappa_max": 3 } } },
        }));
        assert!(
            shown.ends_with(
                "\npolicy=tail\nweights.load=1.5  # configured: 1.0\n# classes.b.kappa_max: none; configured: 3"
            ),
            "{shown}"
        );
    }

    #[test]
    fn a_change_shows_old_and_new_values() {
        let before = json!({ "policy": "tail", "weights": { "load": 1.0, "slo": 0.1 } });
        let after = json!({
            "revision": 4, "restored_revision": 1, "since_unix_ms": 0, "by": "alice", "source": "rollback",
            "settings": { "policy": "tail", "weights": { "load": 1.2, "slo": 0.1 } },
        });
        assert_eq!(
            changed(&before, &after),
            "revision 4 since 1970-01-01 00:00:00Z by alice (rollback)\nrestores revision 1\n\nweights.load: 1.0 → 1.2"
        );
        assert!(changed(&after["settings"], &after).ends_with("\nno setting has changed"));
        let mut temporary = after;
        temporary["reverts"] =
            json!({ "in_s": 9.0, "keys": { "/weights/load": { "in_s": 9.0, "to": 1.0 } } });
        assert!(head(&temporary).ends_with("\nweights.load is temporary: back to 1.0 in 9 s"));
    }

    #[test]
    fn history_shows_what_each_revision_changed() {
        let revision = |number: u32, load: f64, temporary: bool| {
            json!({
                "revision": number, "since_unix_ms": 0, "by": "alice", "source": "put", "reason": "noon",
                "settings": { "policy": "tail", "weights": { "load": load } }, "temporary": temporary,
            })
        };
        let answer = json!({ "revisions": [revision(3, 1.0, false), revision(2, 1.2, true), revision(1, 1.0, false)] });
        assert_eq!(
            history(&answer, 2),
            "revision  since                 by     how             policy  reason\n\
             \u{20}      3  1970-01-01 00:00:00Z  alice  put             tail    noon\n    \
             weights.load: 1.2 → 1.0\n\
             \u{20}      2  1970-01-01 00:00:00Z  alice  put, temporary  tail    noon\n    \
             weights.load: 1.0 → 1.2"
        );
    }

    #[test]
    fn a_preview_has_the_units_of_a_replay() {
        let shown = preview(&json!({
            "turns": 400, "workers": ["a", "b"], "objective_ms": 500.0, "costs": "from the router, learned",
            "check": {
                "turns": 390,
                "measured": { "p50_ms": 100.0, "p95_ms": 200.0, "slo_share": 1.0 },
                "simulated": { "p50_ms": 90.0, "p95_ms": 210.0, "slo_share": 0.99 },
            },
            "baseline": { "p50_ms": 90.0, "hit_ratio": 0.734 }, "proposed": { "p50_ms": 99.0, "hit_ratio": 0.7 },
            "moved": 3, "better": 1, "worse": 2,
        }));
        assert_eq!(
            shown,
            "400 turns on 2 workers, objective 500 ms\ncosts: from the router, learned\n\n\
             390 measured turns, under the policy in force\n\
             \u{20}                      measured    simulated    change\n\
             p50 ms                    100.0         90.0   -10.0 %\n\
             p95 ms                    200.0        210.0    +5.0 %\n\
             within objective        100.0 %       99.0 %   -1.0 pp\n\n\
             \u{20}                        before        after    change\n\
             p50 ms                     90.0         99.0   +10.0 %\n\
             hits                     73.4 %       70.0 %   -3.4 pp\n\n\
             3 turns go elsewhere; 1 become faster, 2 slower"
        );
    }

    #[test]
    fn a_shadow_policy_is_compared_with_the_one_in_force() {
        let in_force = json!({ "policy": "tail" });
        assert_eq!(
            shadow(&json!({ "running": false }), &in_force),
            "No shadow policy is running."
        );
        let shown = shadow(
            &json!({
                "running": true, "settings": { "policy": "random" }, "since_unix_ms": 0,
                "tally": { "turns": 1000, "elsewhere": 125, "faster": 80, "predicted_change_ms": -3000.0 },
            }),
            &in_force,
        );
        assert!(
            shown.starts_with(
                "The shadow policy would have sent 125 of 1,000 turns (12.5 %) to another worker; for 80 of them"
            ),
            "{shown}"
        );
        assert!(shown.ends_with("policy: tail → random"), "{shown}");
        assert!(shown.contains("-3.0 ms"), "{shown}");
    }
}
