//! Formats the router's responses for people.

use std::fmt::Write as _;

use serde_json::Value;

pub(super) fn pretty(answer: &Value) -> String {
    serde_json::to_string_pretty(answer).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

/// Formats milliseconds since 1970 as `2026-01-31 12:00:00Z`.
pub(super) fn time(unix_ms: &Value) -> String {
    let seconds = unix_ms.as_u64().unwrap_or(0) / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a civil date, in 400-year eras that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z",
        era * 400 + year + carry
    )
}

pub(super) fn policy(answer: &Value) -> String {
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
    if answer["as_configured"] == false {
        out.push_str(match shared {
            None => "\ndiffers from the configuration; a restart would undo it",
            Some(_) => {
                "\ndiffers from this replica's configuration; a restart adopts the policy of the fleet"
            }
        });
    }
    if let Some(seconds) = answer["reverts"]["in_s"].as_f64() {
        let to = &answer["reverts"]["to_revision"];
        let _ = write!(out, "\nback to revision {to} in {seconds:.0} s");
    }
    out.push('\n');
    flat(&mut out, "", &answer["settings"]);
    out
}

/// Appends `key = value` lines with the keys that `policy set` accepts.
fn flat(out: &mut String, path: &str, value: &Value) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                flat(out, &path, value);
            }
        }
        Value::String(text) => drop(write!(out, "\n{path}={text}")),
        other => drop(write!(out, "\n{path}={other}")),
    }
}

pub(super) fn history(answer: &Value) -> String {
    let mut out = format!(
        "{:>8}  {:<20}  {:<16} {:<9} {:<16} reason",
        "revision", "since", "by", "how", "policy"
    );
    for revision in answer["revisions"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "\n{:>8}  {:<20}  {:<16} {:<9} {:<16} {}",
            revision["revision"].to_string(),
            time(&revision["since_unix_ms"]),
            text(revision, "by"),
            text(revision, "source"),
            text(&revision["settings"], "policy"),
            text(revision, "reason"),
        );
    }
    out
}

pub(super) fn index(answer: &Value) -> String {
    let mut out = format!(
        "{} keys, {} with each worker's copy, in {} bytes{}\n\n{:<16} {:>7} {:>6} {:>8}  copies",
        answer["keys"],
        answer["entries"],
        answer["bytes"],
        if answer["complete"] == true {
            ""
        } else {
            "; of the 2,000 prefixes used last:"
        },
        "prefix",
        "keys",
        "forks",
        "holders",
    );
    for prefix in answer["prefixes"].as_array().into_iter().flatten() {
        let copy = |copy: &Value| {
            let tokens = copy["tokens"]
                .as_u64()
                .map_or("?".to_owned(), |tokens| tokens.to_string());
            format!("{} ({tokens} tokens)", text(copy, "worker"))
        };
        let copies: Vec<_> = prefix["copies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(copy)
            .collect();
        let _ = write!(
            out,
            "\n{:<16} {:>7} {:>6} {:>8}  {}",
            text(prefix, "prefix"),
            prefix["keys"].to_string(),
            prefix["forks"].to_string(),
            prefix["holders"].to_string(),
            copies.join(", "),
        );
    }
    out
}

pub(super) fn workers(answer: &Value) -> String {
    let mut out = format!(
        "{:<24} {:<9} {:>9} {:>9} {:>6} {:>9} {:>9} {:>12} {:<9} dialect",
        "worker", "state", "in flight", "wait ms", "busy", "α", "ξ", "held", "breaker"
    );
    for worker in answer["workers"].as_array().into_iter().flatten() {
        let _ = write!(out, "\n{}", worker_row(worker));
    }
    out
}

fn worker_row(worker: &Value) -> String {
    let pinned = if worker["alpha_set"].is_object() { "*" } else { "" };
    format!(
        "{:<24} {:<9} {:>9} {:>9.1} {:>4.0} % {:>9} {:>9.0} {:>12} {:<9} {}",
        text(worker, "name"),
        text(worker, "state"),
        worker["in_flight"].to_string(),
        number(worker, "wait_ms"),
        number(worker, "utilisation") * 100.0,
        format!("{:.4}{pinned}", number(&worker["cost"], "alpha_ms_per_token")),
        number(worker, "xi_tokens"),
        worker["held_tokens"].to_string(),
        text(worker, "breaker"),
        text(worker, "dialect"),
    )
}

pub(super) fn worker(answer: &Value) -> String {
    worker_row(answer)
}

pub(super) fn audit(answer: &Value) -> String {
    let mut out = format!(
        "{:<20}  {:<16} {:<22} {:<16} {:<8} why",
        "when", "who", "what", "of", "outcome"
    );
    for entry in answer["entries"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "\n{:<20}  {:<16} {:<22} {:<16} {:<8} {}",
            time(&entry["at_unix_ms"]),
            text(&entry["who"], "name"),
            text(entry, "action"),
            text(entry, "target"),
            text(entry, "outcome"),
            text(entry, "why"),
        );
        if let Some(refused) = entry["refused"].as_str() {
            let _ = write!(out, "\n{:<22}{refused}", "");
        }
    }
    out
}

pub(super) fn event(event: &Value) -> String {
    if let Some(missed) = event["missed"].as_u64() {
        return format!("({missed} events were missed)");
    }
    format!(
        "{}  {:<8} {:<24} {}",
        time(&event["at_unix_ms"]),
        text(event, "kind"),
        text(event, "subject"),
        event["now"],
    )
}

pub(super) fn preview(report: &Value) -> String {
    let mut out = format!(
        "{} turns on {} workers\n",
        report["turns"],
        report["workers"].as_array().map_or(0, Vec::len)
    );
    let _ = write!(out, "\n{:<14} {:>12} {:>12} {:>9}", "", "now", "then", "change");
    for (name, key) in [
        ("p50 ms", "p50_ms"),
        ("p95 ms", "p95_ms"),
        ("p99 ms", "p99_ms"),
        ("mean ms", "mean_ms"),
        ("hits", "hit_ratio"),
        ("in objective", "slo_share"),
    ] {
        let (now, then) = (number(&report["baseline"], key), number(&report["proposed"], key));
        let change = if now > 0.0 {
            (then / now - 1.0) * 100.0
        } else {
            0.0
        };
        let _ = write!(out, "\n{name:<14} {now:>12.3} {then:>12.3} {change:>+7.1} %");
    }
    let _ = write!(
        out,
        "\n\n{} turns go elsewhere; {} become faster, {} slower",
        report["moved"], report["better"], report["worse"]
    );
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_dates() {
        for (unix_s, shown) in [
            (0_u64, "1970-01-01 00:00:00Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_767_225_599, "2025-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(&json!(unix_s * 1000)), shown);
        }
    }

    #[test]
    fn a_policy_is_shown_as_it_is_set() {
        let shown =
            policy(&json!({ "revision": 2, "settings": { "policy": "tail", "weights": { "load": 1.0 } } }));
        assert!(shown.ends_with("\npolicy=tail\nweights.load=1.0"), "{shown}");
    }
}
