//! Decisions as the admin API sends them, and what is printed of them.

use serde_json::{Value, json};

use super::{Filters, Page, explain, listed};

/// A worker's terms: cached and computed tokens, wait, prefill, κ, and home.
fn terms(worker: &str, cached: u64, computed: u64, [wait, prefill, kappa, home]: [f64; 4]) -> Value {
    let fixed = 3.0;
    json!({
        "worker": worker, "ready": true, "cached_tokens": cached, "uncached_tokens": computed, "wait_ms": wait,
        "marginal_ms": prefill, "fixed_ms": fixed, "overhead_ms": 0.0, "kappa": kappa, "slo_ms": 0.0, "home_ms": home,
        "affinity_ms": 0.0, "spread_ms": 0.0, "predicted_ttft_ms": wait + prefill + fixed,
        "score": wait + kappa * prefill + fixed + home,
    })
}

fn decision(terms: [Value; 2]) -> Value {
    let more = terms[1]["score"].as_f64().unwrap() - terms[0]["score"].as_f64().unwrap();
    json!({
        "decision": 17, "request": "0123456789abcdef", "trace": null, "arrived_unix_ms": 1000.5, "held_ms": 0.5,
        "conversation": null, "model": "m", "class": "default", "objective_ms": 400.0, "prompt_tokens": 6000,
        "policy": "tail", "overridden": null, "reason": "least_cost", "worker": terms[0]["worker"],
        "runner_up": { "worker": terms[1]["worker"], "score_more": more, "predicted_ttft_ms": 1.0, "than_actual_ms": -20.0 },
        "left_out": null, "outcome": null, "terms": terms,
    })
}

fn page(decisions: Vec<Value>) -> Page {
    serde_json::from_value(json!({ "decisions": decisions, "next": null, "capacity": 11_335 })).unwrap()
}

fn explained(decision: Value) -> String {
    explain::text(&page(vec![decision]).decisions)
}

/// The chosen worker is predicted to be slower, and spares the turns behind it a prefill.
fn behind() -> Value {
    decision([
        terms("gpu-0", 5_136, 864, [350.0, 50.0, 1.5, 12.0]),
        terms("gpu-1", 0, 6_000, [3.0, 350.0, 2.0, 14.0]),
    ])
}

#[test]
fn the_explanation_begins_with_the_reason_and_its_columns_add_up() {
    let mut late = behind();
    late["outcome"] = json!({
        "state": "ok", "took_ms": 2300.0, "ttft_ms": 512.0, "ttft_error_ms": 109.0, "met": false, "cause": "engine",
        "parts": { "queue_ms": 350.0, "miss_ms": 0.0, "engine_ms": 162.0 }, "prompt_tokens": 6001, "cached_tokens": 5136,
    });
    assert_eq!(
        explained(late),
        "gpu-0 chosen: 403 ms predicted, 47 ms behind gpu-1, but computing 5,136 more tokens on gpu-1 would hold up \
         the turns behind it for 325 ms longer.\n\
         First token after 512 ms, 112 ms late for the objective of 400 ms (cause: engine), 109 ms later than \
         predicted; gpu-1 was predicted 20 ms sooner.\n\
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
         state               ok after 2,300 ms\n\
         cached              5,136 of 6,001 tokens"
    );
}

#[test]
fn the_sentence_names_the_term_that_decides() {
    let first = |decision: Value| explained(decision).lines().next().unwrap().to_owned();
    let cold = |wait: f64, home: f64| terms("gpu-1", 0, 6_000, [wait, 300.0, 1.0, home]);
    let warm = terms("gpu-0", 5_136, 864, [0.0, 50.0, 1.0, 0.0]);
    assert_eq!(
        first(decision([warm, cold(0.0, 0.0)])),
        "gpu-0 chosen: 53 ms predicted, 250 ms ahead of gpu-1, because computing 5,136 more tokens on gpu-1 would \
         take 250 ms longer."
    );
    let idle = terms("gpu-0", 0, 6_000, [0.0, 300.0, 1.0, 0.0]);
    assert_eq!(
        first(decision([idle.clone(), cold(90.0, 0.0)])),
        "gpu-0 chosen: 303 ms predicted, 90 ms ahead of gpu-1, because gpu-1 has 90 ms more of work waiting."
    );
    assert_eq!(
        first(decision([idle.clone(), cold(0.0, 4.0)])),
        "gpu-0 chosen: 303 ms predicted, the same as gpu-1, because gpu-1 is home to more conversations (home: 4.0 ms \
         more)."
    );
    let mut alone = decision([idle, cold(0.0, 0.0)]);
    alone["runner_up"] = Value::Null;
    alone["terms"][1]["ready"] = json!(false);
    assert_eq!(
        first(alone),
        "gpu-0 chosen: 303 ms predicted; no other worker could be chosen."
    );
}

#[test]
fn a_rule_without_costs_is_named_and_the_parts_add_up_to_the_prediction() {
    let mut turn = behind();
    turn["reason"] = json!("rotation");
    turn["policy"] = json!("round_robin");
    turn["terms"][0]["score"] = json!(0.0);
    turn["terms"][1]["score"] = json!(1.0);
    let shown = explained(turn.clone());
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[0],
        "gpu-0 chosen as the next in rotation (round_robin): 403 ms predicted, 47 ms behind gpu-1."
    );
    assert_eq!(
        lines[3..6],
        [
            "worker  cached  computed   wait  prefill  fixed  = predicted  score",
            "gpu-0     5136       864  350.0     50.0    3.0        403.0  0.000",
            "gpu-1        0      6000    3.0    350.0    3.0        356.0  1.000",
        ]
    );
    turn["runner_up"] = Value::Null;
    assert_eq!(
        explained(turn).lines().next(),
        Some(
            "gpu-0 chosen as the next in rotation (round_robin): 403 ms predicted; no other worker could be chosen."
        )
    );
}

#[test]
fn a_weighted_wait_and_rounded_parts_still_add_up() {
    let mut turn = behind();
    // A load weight of 2, and parts between two tenths.
    for (at, home) in [(0, 0.14), (1, 0.16)] {
        let terms = &mut turn["terms"][at];
        let score = terms["score"].as_f64().unwrap() + terms["wait_ms"].as_f64().unwrap() + home;
        let spread = home;
        terms["spread_ms"] = json!(spread);
        terms["score"] = json!(score);
    }
    let shown = explained(turn);
    for line in shown
        .lines()
        .filter(|line| line.starts_with("gpu-") && !line.contains("chosen"))
    {
        let cells: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .map(|cell| cell.parse().unwrap())
            .collect();
        let (score, parts) = cells.split_last().unwrap();
        let sum: f64 = parts[3..].iter().sum();
        assert!((sum - score).abs() < 1e-6, "{line}");
    }
    assert!(shown.contains("700.0"), "the wait counts twice: {shown}");
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
    assert!(listed(&Page::default()).contains("keeps no decisions"));
    let none = Page {
        capacity: 11_335,
        ..Page::default()
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
    assert_eq!(query(&[]), "limit=20");
    assert_eq!(query(&["--late"]), "limit=20&late=true");
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
        "limit=5&late=false&cause=queue&worker=a%20b&class=batch&trace=ab&decision=7&before=40"
    );
}
