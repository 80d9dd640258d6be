//! Formats the objectives, the capture, the configuration and the keys: one sentence, then a table.

use std::fmt::Write as _;

use serde_json::Value;

use super::format::{bytes, count, list, ms, number, share, text, time};
use super::table::{Align, TextTable};

/// Formats the latency objectives: which classes miss theirs, and each worker's part in it.
pub(super) fn slo(answer: &Value) -> String {
    let objective = &answer["objective"];
    let wanted = number(objective, "share");
    let right = Align::Right;
    let mut table = TextTable::new(&[
        ("class", Align::Left),
        ("objective", right),
        ("turns", right),
        ("late", right),
        ("within objective", right),
    ]);
    let (mut turns, mut missing) = (0.0, Vec::new());
    for class in list(objective, "classes") {
        let [met, missed] = ["met", "missed"].map(|key| number(class, key));
        let all = met + missed;
        turns += all;
        if all > 0.0 && met / all < wanted {
            missing.push(format!("{} ({})", text(class, "class"), share(met, all)));
        }
        table.row([
            text(class, "class").to_owned(),
            class["ttft_ms"].as_f64().map_or("per turn".to_owned(), ms),
            count(all as u64),
            count(missed as u64),
            share(met, all),
        ]);
    }
    let wanted = share(wanted, 1.0);
    let mut out = overload(answer);
    out.push_str(&match missing.as_slice() {
        [] if turns <= 0.0 => {
            format!("No turn has been counted yet; {wanted} of the turns have to be within objective.")
        }
        [] => format!("At least {wanted} of the turns of each class are within objective, as wanted."),
        [class] => {
            format!(
                "The objective is missed by class {class}; {wanted} of the turns have to be within objective."
            )
        }
        classes => format!(
            "The objective is missed by classes {}; {wanted} of the turns have to be within objective.",
            classes.join(", ")
        ),
    });
    out.push_str(" Counts are those since the router started.");
    let _ = write!(out, "\n\n{}\n\n{}", table.text(), slo_workers(answer));
    // An older router does not report it.
    if answer["hits"].is_object() {
        let _ = write!(out, "\n\n{}", hits(&answer["hits"]));
    }
    let tail = &answer["tail"];
    let _ = write!(out, "\n\n{}", text(tail, "why"));
    if let Some(ratio) = tail["late_ratio"].as_f64() {
        let _ = write!(
            out,
            "\nlate turns, relative to plain LRU (tail.late_ratio): {ratio:.2}"
        );
    }
    if let Some(pause @ 1..) = tail["pause_turns"].as_u64() {
        let _ = write!(
            out,
            "\nturns until hints resume (tail.pause_turns): {}",
            count(pause)
        );
    }
    out
}

/// Formats overload of the fleet, while it lasts.
fn overload(answer: &Value) -> String {
    let Some(overload) = answer["overload"].as_object() else {
        return String::new();
    };
    let whole = |key: &str| count(overload[key].as_u64().unwrap_or_default());
    format!(
        "Overloaded since {}: waits {} on {} of {} workers, {} late, {} refused. Add workers, or set admission.shed.\n\n",
        time(&overload["since_unix_ms"]),
        ms(overload["wait_ms"].as_f64().unwrap_or_default()),
        overload["workers_over"],
        overload["workers_ready"],
        whole("late"),
        whole("refused"),
    )
}

/// Formats the prompt tokens that were available, captured and delivered, with their verdict.
fn hits(hits: &Value) -> String {
    let all = number(hits, "prompt_tokens");
    let mut table = TextTable::new(&[
        ("prompt tokens", Align::Left),
        ("", Align::Right),
        ("share", Align::Right),
    ]);
    for stage in ["available", "captured", "delivered"] {
        let tokens = number(hits, &format!("{stage}_tokens"));
        table.row([stage.to_owned(), count(tokens as u64), share(tokens, all)]);
    }
    format!("{}\n\n{}", text(hits, "verdict"), table.text())
}

fn slo_workers(answer: &Value) -> String {
    let right = Align::Right;
    let mut table = TextTable::new(&[
        ("worker", Align::Left),
        ("wait ms", right),
        ("prefill", right),
        ("α", right),
        ("β", right),
        ("ξ", right),
        ("silent", right),
        ("dialect", Align::Left),
    ]);
    for worker in list(answer, "workers") {
        table.row([
            text(worker, "name").to_owned(),
            format!("{:.1}", number(worker, "wait_ms")),
            share(number(worker, "utilisation"), 1.0),
            format!("{:.4}", number(worker, "alpha_ms_per_token")),
            format!("{:.1}", number(worker, "beta_ms")),
            format!("{:.0}", number(worker, "xi_tokens")),
            worker["silent"].to_string(),
            text(worker, "dialect").to_owned(),
        ]);
    }
    table.text()
}

pub(super) fn capture(answer: &Value) -> String {
    let whole = |key: &str| answer[key].as_u64().unwrap_or(0);
    let turns = whole("turns");
    let sentence = match (answer["running"] == true, turns) {
        (true, _) => format!("Turns are captured: {} so far.", count(turns)),
        (false, 0) => "No turns are captured.".to_owned(),
        (false, _) => format!("The capture has stopped; {} turns are stored.", count(turns)),
    };
    let mut table = TextTable::new(&[("", Align::Left), ("", Align::Right)]);
    table.row(["turns".to_owned(), count(turns)]);
    table.row(["size".to_owned(), bytes(whole("bytes"))]);
    table.row(["maximum size".to_owned(), bytes(whole("max_bytes"))]);
    table.row(["too long, left out".to_owned(), count(whole("left_out"))]);
    if answer["since_unix_ms"].is_number() {
        table.row(["since".to_owned(), time(&answer["since_unix_ms"])]);
    }
    format!("{sentence}\n{}", table.text())
}

pub(super) fn config(answer: &Value) -> String {
    let refused = answer["refused"].as_str();
    let sections: Vec<&str> = list(answer, "needs_restart").filter_map(Value::as_str).collect();
    let sentence = match (refused, sections.as_slice()) {
        (Some(_), _) => "The last configuration was refused; the one before it stays in force.".to_owned(),
        (None, []) => "The last configuration is in force.".to_owned(),
        (None, sections) => format!(
            "The last configuration is in force, except for {}, which a restart applies.",
            sections.join(", ")
        ),
    };
    let mut table = TextTable::new(&[("", Align::Left), ("", Align::Left)]);
    table.row(["generation".to_owned(), answer["generation"].to_string()]);
    let problems: Vec<&str> = refused.map_or(vec!["no"], |refused| refused.split("\\n").collect());
    let (first, more) = problems.split_first().unwrap_or((&"no", &[]));
    table.row(["refused".to_owned(), (*first).to_owned()]);
    more.iter().for_each(|problem| table.note(*problem));
    let sections = match sections.is_empty() {
        true => "nothing".to_owned(),
        false => sections.join(", "),
    };
    table.row(["needs a restart".to_owned(), sections]);
    format!("{sentence}\n{}", table.text())
}

pub(super) fn keys(answer: &Value) -> String {
    let right = Align::Right;
    let mut table = TextTable::new(&[
        ("key", Align::Left),
        ("limit", Align::Left),
        ("left", right),
        ("burst", right),
        ("full in", right),
    ]);
    let one = [answer.clone()];
    let keys = answer["keys"].as_array().map_or(one.as_slice(), Vec::as_slice);
    for key in keys {
        let limits = ["requests", "tokens"].map(|limit| (limit, &key[limit]));
        let limited: Vec<_> = limits.into_iter().filter(|(_, left)| left.is_object()).collect();
        if limited.is_empty() {
            table.row([text(key, "name"), "none", "-", "-", "-"].map(str::to_owned));
        }
        for (limit, left) in limited {
            table.row([
                text(key, "name").to_owned(),
                limit.to_owned(),
                format!("{:.0}", number(left, "left")),
                format!("{:.0}", number(left, "burst")),
                format!("{:.1} s", number(left, "full_in_s")),
            ]);
        }
    }
    if table.is_empty() {
        return "There are no API keys.".to_owned();
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_that_misses_its_objective_is_named() {
        let class = |class: &str, ttft: Option<f64>, met: u32, missed: u32| json!({ "class": class, "ttft_ms": ttft, "met": met, "missed": missed });
        let answer = |classes: Value| {
            json!({
                "objective": { "share": 0.95, "classes": classes },
                "workers": [{
                    "name": "gpu-0", "dialect": "sglang", "wait_ms": 1.5, "utilisation": 0.25, "alpha_ms_per_token": 0.05,
                    "beta_ms": 3.0, "xi_tokens": 7600.0, "silent": 4,
                }],
                "tail": { "why": "Early eviction is paused.", "late_ratio": 1.25, "pause_turns": 300 },
            })
        };
        let shown = slo(&answer(json!([
            class("default", Some(400.0), 990, 10),
            class("batch", Some(12_000.0), 60, 40)
        ])));
        assert_eq!(
            shown,
            "The objective is missed by class batch (60.0 %); 95.0 % of the turns have to be within objective. \
             Counts are those since the router started.\n\
             \n\
             class    objective  turns  late  within objective\n\
             default     400 ms  1,000    10            99.0 %\n\
             batch       12.0 s    100    40            60.0 %\n\
             \n\
             worker  wait ms  prefill       α    β     ξ  silent  dialect\n\
             gpu-0       1.5   25.0 %  0.0500  3.0  7600       4  sglang\n\
             \n\
             Early eviction is paused.\n\
             late turns, relative to plain LRU (tail.late_ratio): 1.25\n\
             turns until hints resume (tail.pause_turns): 300"
        );
        let shown = slo(&answer(json!([class("default", Some(400.0), 990, 10)])));
        assert!(shown.starts_with("At least 95.0 % of the turns"), "{shown}");
        let shown = slo(&answer(json!([class("header", None, 0, 0)])));
        assert!(shown.starts_with("No turn has been counted yet"), "{shown}");
    }

    #[test]
    fn the_account_of_hits_is_a_sentence_and_a_table() {
        let shown = hits(&json!({
            "prompt_tokens": 120_000, "available_tokens": 60_000, "captured_tokens": 54_000, "delivered_tokens": 53_400,
            "verdict": "The workload costs most hits.",
        }));
        assert_eq!(
            shown,
            "The workload costs most hits.\n\
             \n\
             prompt tokens           share\n\
             available      60,000  50.0 %\n\
             captured       54,000  45.0 %\n\
             delivered      53,400  44.5 %"
        );
    }

    #[test]
    fn a_refused_configuration_is_the_verdict() {
        let shown =
            config(&json!({ "generation": 3, "refused": "a.toml:1:1: no", "needs_restart": ["workers"] }));
        assert_eq!(
            shown,
            "The last configuration was refused; the one before it stays in force.\n\
             \n\
             generation       3\n\
             refused          a.toml:1:1: no\n\
             needs a restart  workers"
        );
        let shown = config(&json!({ "generation": 3, "refused": null, "needs_restart": ["workers", "log"] }));
        assert!(
            shown.starts_with("The last configuration is in force, except for workers, log,"),
            "{shown}"
        );
    }

    #[test]
    fn a_capture_shows_its_size() {
        let shown = capture(&json!({
            "running": true, "turns": 1234, "bytes": 3 << 20, "max_bytes": 16 << 20, "since_unix_ms": 0, "left_out": 0,
        }));
        assert!(
            shown.starts_with("Turns are captured: 1,234 so far.\n\nturns"),
            "{shown}"
        );
        assert!(shown.contains("3.0 MiB") && shown.contains("16.0 MiB"), "{shown}");
        let shown = capture(&json!({ "running": false, "turns": 0, "since_unix_ms": null }));
        assert!(
            shown.starts_with("No turns are captured.") && !shown.contains("since"),
            "{shown}"
        );
    }

    #[test]
    fn keys_show_each_limit() {
        let limited = json!({ "left": -30.0, "burst": 100.0, "full_in_s": 12.5 });
        let shown =
            keys(&json!({ "keys": [{ "name": "a", "requests": null, "tokens": limited }, { "name": "b" }] }));
        assert_eq!(
            shown,
            "key  limit   left  burst  full in\na    tokens   -30    100   12.5 s\nb    none       -      -        -"
        );
        assert_eq!(keys(&json!({ "keys": [] })), "There are no API keys.");
        assert!(keys(&json!({ "name": "a", "requests": limited })).contains("requests"));
    }
}
