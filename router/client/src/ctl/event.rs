//! Changes as they happen, in sentences.

use serde_json::Value;

use super::format::{number, plain, slowness, text, time};

/// Formats an event as its time and a sentence.
pub(super) fn event(event: &Value) -> String {
    if let Some(missed) = event["missed"].as_u64() {
        return format!("({missed} events were missed)");
    }
    format!("{}  {}", time(&event["at_unix_ms"]), sentence(event))
}

fn sentence(event: &Value) -> String {
    let (subject, now) = (text(event, "subject"), &event["now"]);
    let said = match text(event, "kind") {
        "policy" => policy(now),
        "worker" => worker(subject, now),
        "breaker" => now["breaker"]
            .as_str()
            .map(|state| format!("{subject}: its breaker is {state}")),
        "slow" => slow(subject, now),
        "reload" => reload(now),
        "replicas" => now["connected"].as_bool().map(|connected| match connected {
            true => "NATS is connected".to_owned(),
            false => "NATS is not connected: this replica works alone".to_owned(),
        }),
        "evidence" => now["followed"].as_bool().map(|followed| match followed {
            true => format!("{subject}: its cache events are followed"),
            false => format!(
                "{subject}: its cache events are not followed{}",
                because(now, "error")
            ),
        }),
        "task" => now["failed"].as_str().map(|why| {
            let pause = number(now, "again_in_ms") / 1e3;
            format!("the task {subject} failed and restarts in {pause:.1} s: {why}")
        }),
        _ => None,
    };
    said.unwrap_or_else(|| format!("{} {subject}: {}", text(event, "kind"), listed(now)))
}

fn policy(now: &Value) -> Option<String> {
    let (revision, by) = (now["revision"].as_u64()?, text(now, "by"));
    Some(format!(
        "policy revision {revision} by {by} is in force{}",
        because(now, "reason")
    ))
}

fn worker(subject: &str, now: &Value) -> Option<String> {
    if now["joined"] == true {
        return Some(format!("{subject} joined the fleet"));
    }
    if now["left"] == true {
        return Some(format!("{subject} left the fleet"));
    }
    let (ready, well) = (now["ready"].as_bool()?, now["well"].as_bool()?);
    Some(match (ready, well, text(now, "hold")) {
        (true, ..) => format!("{subject} is ready"),
        (false, false, _) => format!("{subject} is unwell{}", because(now, "error")),
        (false, true, hold) => format!("{subject} gets no turns ({hold})"),
    })
}

fn slow(subject: &str, now: &Value) -> Option<String> {
    if !now["slow"].as_bool()? {
        return Some(format!("{subject} is as fast as before"));
    }
    Some(format!("{subject} is slow: {}", slowness(now)))
}

fn reload(now: &Value) -> Option<String> {
    let generation = now["generation"].as_u64()?;
    Some(match now["refused"].as_str() {
        Some(why) => format!("the configuration was refused, and the one before it stays in force: {why}"),
        None => format!("the configuration was reloaded (generation {generation})"),
    })
}

fn because(now: &Value, key: &str) -> String {
    now[key].as_str().map_or(String::new(), |why| format!(": {why}"))
}

/// Lists the members of an event that this version does not know.
fn listed(now: &Value) -> String {
    match now.as_object() {
        Some(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| format!("{key} {}", plain(value)));
            entries.collect::<Vec<_>>().join(", ")
        }
        None => plain(now),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_sentences() {
        for (kind, subject, now, expected) in [
            (
                "worker",
                "w",
                json!({ "ready": true, "well": true, "hold": "none", "error": null }),
                "w is ready",
            ),
            (
                "worker",
                "w",
                json!({ "ready": false, "well": false, "hold": "none", "error": "connection refused" }),
                "w is unwell: connection refused",
            ),
            (
                "worker",
                "w",
                json!({ "ready": false, "well": true, "hold": "drained" }),
                "w gets no turns (drained)",
            ),
            ("worker", "w", json!({ "joined": true }), "w joined the fleet"),
            (
                "breaker",
                "w",
                json!({ "breaker": "open" }),
                "w: its breaker is open",
            ),
            (
                "slow",
                "w",
                json!({ "slow": true, "factor": 2.11, "against": "fleet", "typical_prompt_ms": 59.0, "baseline_typical_prompt_ms": 28.0 }),
                "w is slow: a typical prompt takes 59 ms instead of 28 ms, 2.1 times as long as in the fleet's median",
            ),
            (
                "policy",
                "policy",
                json!({ "revision": 3, "by": "alice", "reason": "noon", "settings": { "weights": {} } }),
                "policy revision 3 by alice is in force: noon",
            ),
            (
                "reload",
                "config",
                json!({ "generation": 2, "refused": "a.toml:1:1: no" }),
                "the configuration was refused, and the one before it stays in force: a.toml:1:1: no",
            ),
            (
                "replicas",
                "r",
                json!({ "connected": false }),
                "NATS is not connected: this replica works alone",
            ),
            (
                "evidence",
                "w",
                json!({ "followed": false, "error": "gap" }),
                "w: its cache events are not followed: gap",
            ),
            (
                "task",
                "probes",
                json!({ "failed": "panic: x", "again_in_ms": 100 }),
                "the task probes failed and restarts in 0.1 s: panic: x",
            ),
            (
                "omen",
                "w",
                json!({ "colour": "red", "count": 2 }),
                "omen w: colour red, count 2",
            ),
        ] {
            let shown = event(&json!({ "at_unix_ms": 0, "kind": kind, "subject": subject, "now": now }));
            assert_eq!(shown, format!("1970-01-01 00:00:00Z  {expected}"));
        }
        assert_eq!(event(&json!({ "missed": 3 })), "(3 events were missed)");
    }
}
