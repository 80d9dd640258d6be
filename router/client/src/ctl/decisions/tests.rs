//! Decisions as the admin API sends them, and their printed text.

use serde_json::{Value, json};

use super::{DecisionsPage, Filters, explain, listed};

/// A worker's terms: cached and computed tokens, and its parts in milliseconds.
fn terms(worker: &str, cached: u64, computed: u64, parts: [f64; 5]) -> Value {
    let names = ["wait", "prefill", "fixed", "locality", "home"];
    let named = names.iter().zip(parts);
    let table: Vec<Value> = named
        .map(|(name, ms)| json!({ "name": name, "ms": ms }))
        .collect();
    json!({
        "worker": worker, "ready": true, "cached_tokens": cached, "uncached_tokens": computed, "parts": table,
        "predicted_ttft_ms": parts[..3].iter().sum::<f64>(), "score": parts.iter().sum::<f64>(),
    })
}

const VERDICT: &str = "gpu-0 chosen: 403 ms predicted, 47 ms behind gpu-1, but it is the better choice.";

fn page(decisions: Vec<Value>) -> DecisionsPage {
    serde_json::from_value(json!({ "decisions": decisions, "next": null, "capacity": 11_335 })).unwrap()
}

fn explained(decision: Value) -> String {
    explain::text(&page(vec![decision]).decisions)
}

/// A decision as the admin API sends it.
fn behind() -> Value {
    json!({
        "decision": 17, "request": "0123456789abcdef", "trace": null, "arrived_unix_ms": 1000.5, "held_ms": 0.5,
        "conversation": null, "model": "m", "class": "default", "objective_ms": 400.0, "prompt_tokens": 6000,
        "available_tokens": 5136, "captured_tokens": 5136,
        "policy": "tail", "overridden": null, "reason": "least_cost", "worker": "gpu-0",
        "verdict": VERDICT, "parts_of": "score",
        "runner_up": { "worker": "gpu-1", "score_more": 280.0, "predicted_ttft_ms": 356.0, "than_actual_ms": -156.0 },
        "left_out": null, "outcome": null,
        "terms": [
            terms("gpu-0", 5_136, 864, [350.0, 50.0, 3.0, 25.0, 12.0]),
            terms("gpu-1", 0, 6_000, [3.0, 350.0, 3.0, 350.0, 14.0]),
        ],
    })
}

#[test]
fn the_explanation_begins_with_the_reason_and_has_every_part() {
    let mut late = behind();
    late["outcome"] = json!({
        "state": "ok", "took_ms": 2300.0, "ttft_ms": 512.0, "ttft_error_ms": 109.0, "met": false, "cause": "engine",
        "parts": { "queue_ms": 350.0, "miss_ms": 0.0, "engine_ms": 162.0 }, "prompt_tokens": 6001, "cached_tokens": 5136,
    });
    assert_eq!(
        explained(late),
        VERDICT.to_owned()
            + "\n\
         First token after 512 ms, 112 ms late for the objective of 400 ms (cause: engine), 109 ms later than \
         predicted.\n\
         Predicted: 403 ms, and 356 ms on gpu-1, 47 ms sooner.\n\
         \n\
         worker  cached  computed  predicted   wait  prefill  fixed  locality  home  = score\n\
         gpu-0     5136       864      403.0  350.0     50.0    3.0      25.0  12.0    440.0\n\
         gpu-1        0      6000      356.0    3.0    350.0    3.0     350.0  14.0    720.0\n\
         \n\
         first token: engine 162 ms + queue 350 ms = 512 ms\n\
         \n\
         request             0123456789abcdef\n\
         decision            17\n\
         arrived             1970-01-01 00:00:01Z\n\
         held in the router  0.5 ms\n\
         model               m\n\
         class               default\n\
         policy              tail (least_cost)\n\
         prompt              6,000 tokens\n\
         available           5,136 tokens\n\
         captured            5,136 tokens\n\
         state               ok after 2,300 ms\n\
         delivered           5,136 of 6,001 tokens"
    );
}

#[test]
fn parts_of_a_prediction_come_before_it() {
    let mut turn = behind();
    turn["parts_of"] = json!("predicted_ttft_ms");
    for (at, score) in [(0, 0.0), (1, 1.0)] {
        turn["terms"][at]["score"] = json!(score);
        turn["terms"][at]["parts"].as_array_mut().unwrap().truncate(3);
    }
    let shown = explained(turn);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[3..6],
        [
            "worker  cached  computed   wait  prefill  fixed  = predicted  score",
            "gpu-0     5136       864  350.0     50.0    3.0        403.0  0.000",
            "gpu-1        0      6000    3.0    350.0    3.0        356.0  1.000",
        ]
    );
}

#[test]
fn attempts_are_shown_in_order() {
    let mut second = behind();
    second["decision"] = json!(18);
    let shown = explain::text(&page(vec![second, behind()]).decisions);
    let [first, second] = ["Attempt 1 of 2", "Attempt 2 of 2"].map(|title| shown.find(title).unwrap());
    let [earlier, later] =
        ["17", "18"].map(|number| shown.find(&format!("decision            {number}")).unwrap());
    assert!(first < earlier && earlier < second && second < later, "{shown}");
}

#[test]
fn a_list_counts_late_turns_by_cause() {
    let late = |cause: &str| {
        let mut decision = behind();
        decision["outcome"] = json!({ "state": "ok", "ttft_ms": 512.0, "met": false, "cause": cause });
        decision
    };
    let mut page = page(vec![late("queue"), late("engine"), late("queue"), behind()]);
    page.next = Some(40);
    let shown = listed(&page);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "4 decisions, 3 late: 2 queue, 1 engine.");
    assert_eq!(
        lines[3],
        "1970-01-01 00:00:01Z        17  gpu-0      403 ms       512 ms     400 ms  late: queue      280.0  0123456789abcdef"
    );
    assert_eq!(*lines.last().unwrap(), "older ones: --before 40");
    assert!(listed(&DecisionsPage::default()).contains("keeps no decisions"));
    let none = DecisionsPage {
        capacity: 11_335,
        ..DecisionsPage::default()
    };
    assert_eq!(
        listed(&none),
        "No decision matches. The router keeps the last 11,335 decisions (explain.max_bytes)."
    );
}

#[test]
fn filters_are_those_of_the_api() {
    use clap::{Args as _, FromArgMatches as _};
    let query = |line: &[&str]| {
        let command = Filters::augment_args(clap::Command::new("decisions"));
        let matches = command.get_matches_from(["decisions"].iter().chain(line));
        Filters::from_arg_matches(&matches).unwrap().query()
    };
    assert_eq!(query(&[]), "limit=20&finished=true");
    assert_eq!(query(&["--running"]), "limit=20");
    assert_eq!(query(&["--late"]), "limit=20&late=true&finished=true");
    let all = [
        "--late=false",
        "--cause",
        "queue",
        "--worker",
        "a b",
        "--class",
        "batch",
        "--trace",
        "ab",
        "--decision",
        "7",
        "--before",
        "40",
        "--limit",
        "5",
    ];
    assert_eq!(
        query(&all),
        "limit=5&late=false&finished=true&cause=queue&worker=a%20b&class=batch&trace=ab&decision=7&before=40"
    );
}
