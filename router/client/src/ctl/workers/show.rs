use std::fmt::Write as _;

use serde_json::Value;

use super::super::format::{count, list, ms, number, slowness, text, time};
use super::super::table::{Align, TextTable};

fn table() -> TextTable {
    let right = Align::Right;
    TextTable::new(&[
        ("worker", Align::Left),
        ("state", Align::Left),
        ("in flight", right),
        ("wait ms", right),
        ("prefill", right),
        ("α", right),
        ("ξ", right),
        ("held", right),
        ("breaker", Align::Left),
        ("dialect", Align::Left),
    ])
}

fn cells(worker: &Value) -> [String; 10] {
    let pinned = if worker["alpha_set"].is_object() { "*" } else { "" };
    [
        text(worker, "name").to_owned(),
        text(worker, "state").to_owned(),
        worker["in_flight"].to_string(),
        format!("{:.1}", number(worker, "wait_ms")),
        format!("{:.0} %", number(worker, "utilisation") * 100.0),
        format!("{:.4}{pinned}", number(&worker["cost"], "alpha_ms_per_token")),
        format!("{:.0}", number(worker, "xi_tokens")),
        worker["held_tokens"].to_string(),
        text(worker, "breaker").to_owned(),
        text(worker, "dialect").to_owned(),
    ]
}

/// Formats all workers. A worker whose probes fail has a line with its last error, one whose list of models cannot be read
/// a line with that error, and a slow one with its factor.
pub(super) fn workers(answer: &Value) -> String {
    let mut table = table();
    for worker in list(answer, "workers") {
        table.row(cells(worker));
        for note in [failure(worker), unread(worker), slow(worker)]
            .into_iter()
            .flatten()
        {
            table.note(note);
        }
    }
    table.text()
}

/// Formats one worker: its row, why it gets no turns if so, and its other properties.
pub(super) fn worker(worker: &Value) -> String {
    let mut table = table();
    table.row(cells(worker));
    let mut out = table.text();
    if let Some(why) = why(worker) {
        let _ = write!(out, "\n\n{why}");
    }
    if let Some(slow) = slow(worker) {
        let _ = write!(
            out,
            "\n\n{slow}\nCordon it and look at its GPU: clock, throttling, other processes. If this is its normal \
             speed, measure it with gpu-bench."
        );
    }
    let models: Vec<&str> = list(worker, "models").filter_map(Value::as_str).collect();
    let cost = &worker["cost"];
    let mut facts = vec![
        ("url", text(worker, "url").to_owned()),
        ("source", text(worker, "source").to_owned()),
        ("models", models.join(", ")),
        (
            "cache",
            format!(
                "{} of {} tokens",
                count(worker["held_tokens"].as_u64().unwrap_or(0)),
                count(worker["capacity_tokens"].as_u64().unwrap_or(0))
            ),
        ),
        (
            "cost",
            format!(
                "α {:.4} ms per token, β {:.1} ms, off by {:.1} ms on average",
                number(cost, "alpha_ms_per_token"),
                number(cost, "beta_ms"),
                number(cost, "error_ms"),
            ),
        ),
    ];
    if worker["alpha_set"].is_object() {
        let set = &worker["alpha_set"];
        let end = set["reverts_in_s"]
            .as_f64()
            .map_or("until it is reverted".to_owned(), |left| {
                format!("for another {left:.0} s")
            });
        let learned = number(set, "learned_alpha_ms_per_token");
        facts.push(("α", format!("set by hand {end}; learned: {learned:.4}")));
    }
    let known: Vec<String> = list(worker, "facts").map(fact).collect();
    facts.push(("facts", known.join("\n        ")));
    facts.retain(|(_, value)| !value.is_empty() && value != "-");
    out.push('\n');
    for (name, value) in facts {
        let _ = write!(out, "\n{name:<7} {value}");
    }
    out
}

/// Says why a worker gets no turns; `None` if it is ready.
fn why(worker: &Value) -> Option<String> {
    let state = match text(worker, "state") {
        "ready" => return None,
        "starting" => "It gets turns once its first probes have succeeded.",
        "asleep" => "Its engine sleeps: it gets turns only if no other worker can take them.",
        "unwell" => "It gets no turns: its probes fail.",
        "not_ready" => "It gets no turns: the source that named it says that it is not ready.",
        "cordoned" => "It gets only turns that no other worker can serve: it is cordoned.",
        "draining" => "It gets no turns: it is drained, and has turns to finish.",
        "drained" => "It gets no turns: it is drained, and has finished its turns.",
        "leaving" => "It gets no turns: it leaves the fleet once its turns have finished.",
        _ => "It gets no turns.",
    };
    let failure = failure(worker).map_or(String::new(), |failure| format!("\n{failure}"));
    Some(format!("{state}{failure}"))
}

/// Formats the error of the last probe, and since when probes fail.
fn failure(worker: &Value) -> Option<String> {
    let error = worker["last_error"].as_str()?;
    Some(format!(
        "last probe: {error}; failing since {}",
        time(&worker["since_unix_ms"])
    ))
}

/// Formats why the list of models cannot be read.
fn unread(worker: &Value) -> Option<String> {
    let mut facts = list(worker, "facts");
    let models = facts.find(|fact| fact["fact"] == "models" && fact["error"].is_string())?;
    let known = match models["age_s"].as_f64() {
        Some(age) => format!("the list of {} ago is used", ms(age * 1e3)),
        None => "its models are unknown".to_owned(),
    };
    Some(format!(
        "models not read for {}: {}; {known}",
        ms(number(models, "failing_for_s") * 1e3),
        text(models, "error")
    ))
}

/// Formats a fact: its value, source and age.
fn fact(fact: &Value) -> String {
    let value = fact["value"].as_str().unwrap_or("unknown");
    let mut line = format!("{}: {value}", text(fact, "fact"));
    if let (Some(source), Some(age)) = (fact["source"].as_str(), fact["age_s"].as_f64()) {
        let _ = write!(line, " ({source}, {} ago)", ms(age * 1e3));
    }
    if let Some(error) = fact["error"].as_str() {
        let _ = write!(line, "; not read now: {error}");
    }
    line
}

fn slow(worker: &Value) -> Option<String> {
    let slow = worker["slow"].as_object().map(|_| &worker["slow"])?;
    Some(format!(
        "slow for {}: {}",
        ms(number(slow, "since_s") * 1e3),
        slowness(slow)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unwell() -> Value {
        json!({
            "name": "gpu-1", "state": "unwell", "url": "http://10.0.0.1:8000", "source": "configuration", "in_flight": 0,
            "wait_ms": 0.0, "utilisation": 0.25, "cost": { "alpha_ms_per_token": 0.05, "beta_ms": 3.0, "error_ms": 1.25 },
            "xi_tokens": 7600, "held_tokens": 300_000, "capacity_tokens": 500_000, "breaker": "closed",
            "dialect": "sglang", "models": ["a", "b"], "last_error": "connection refused", "since_unix_ms": 1000.0,
        })
    }

    #[test]
    fn a_worker_that_does_not_answer_is_shown_with_its_error() {
        assert_eq!(
            worker(&unwell()),
            "worker  state   in flight  wait ms  prefill       α     ξ    held  breaker  dialect\n\
             gpu-1   unwell          0      0.0     25 %  0.0500  7600  300000  closed   sglang\n\
             \n\
             It gets no turns: its probes fail.\n\
             last probe: connection refused; failing since 1970-01-01 00:00:01Z\n\
             \n\
             url     http://10.0.0.1:8000\n\
             source  configuration\n\
             models  a, b\n\
             cache   300,000 of 500,000 tokens\n\
             cost    α 0.0500 ms per token, β 3.0 ms, off by 1.2 ms on average"
        );
    }

    #[test]
    fn a_worker_that_was_not_probed_yet_is_not_called_unwell() {
        let mut new = unwell();
        (new["state"], new["last_error"]) = (json!("starting"), Value::Null);
        let shown = worker(&new);
        assert!(
            shown.contains("It gets turns once its first probes have succeeded."),
            "{shown}"
        );
        assert!(!shown.contains("fail"), "{shown}");
    }

    #[test]
    fn a_worker_whose_models_cannot_be_read_is_shown_with_the_error_and_what_is_used() {
        let mut unread = unwell();
        unread["state"] = json!("ready");
        unread["last_error"] = Value::Null;
        unread["facts"] = json!([{ "fact": "models", "error": "answered 401", "failing_for_s": 60.0 }]);
        let lines = |answer: &Value| workers(&json!({ "workers": [answer] }));
        let shown = lines(&unread);
        assert!(
            shown.contains("answered 401") && shown.contains("its models are unknown"),
            "{shown}"
        );
        unread["facts"][0]["value"] = json!("a, b");
        unread["facts"][0]["source"] = json!("listed");
        unread["facts"][0]["age_s"] = json!(62.0);
        let shown = lines(&unread);
        assert!(shown.contains("ago is used"), "{shown}");
        let one = worker(&unread);
        assert!(
            one.contains("models: a, b (listed,") && one.contains("not read now: answered 401"),
            "{one}"
        );
    }

    #[test]
    fn a_slow_worker_is_shown_with_its_factor() {
        let mut slow = unwell();
        slow["state"] = json!("ready");
        slow["last_error"] = Value::Null;
        slow["slow"] = json!({
            "factor": 2.11, "against": "own past", "since_s": 12.25, "typical_prompt_ms": 59.0,
            "baseline_typical_prompt_ms": 28.0, "alpha_ms_per_token": 0.0875, "baseline_alpha_ms_per_token": 0.1024,
        });
        let said = "slow for 12.2 s: a typical prompt takes 59 ms instead of 28 ms, 2.1 times as long as in its own past";
        let listed = workers(&json!({ "workers": [slow] }));
        assert_eq!(listed.lines().nth(2), Some(&*format!("    {said}")), "{listed}");
        let shown = worker(&slow);
        assert!(shown.contains(&format!("\n\n{said}\nCordon it")), "{shown}");
    }

    #[test]
    fn the_list_has_the_error_below_its_worker() {
        let mut ready = unwell();
        ready["name"] = json!("gpu-0");
        ready["state"] = json!("ready");
        ready["last_error"] = Value::Null;
        let shown = workers(&json!({ "workers": [ready, unwell()] }));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 4, "{shown}");
        assert!(
            lines[1].starts_with("gpu-0") && lines[2].starts_with("gpu-1"),
            "{shown}"
        );
        assert!(
            lines[3].starts_with("    last probe: connection refused"),
            "{shown}"
        );
    }
}
