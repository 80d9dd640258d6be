//! `tailroute replay` through the binary: instances that can be computed by hand, and rejected input.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Four turns of three conversations, spaced by more than a prefill, so that no good router makes a turn wait.
const CALM: &str = r#"{"ts":0,"conv":1,"turn":0,"prompt_tokens":100,"history_tokens":0,"response_tokens":10,"class":"chat"}
{"ts":1,"conv":2,"turn":0,"prompt_tokens":50,"history_tokens":0,"response_tokens":0,"class":"agent"}
{"ts":1.5,"conv":3,"turn":0,"prompt_tokens":50,"history_tokens":0,"response_tokens":0,"class":"agent"}
{"ts":2,"conv":1,"turn":1,"prompt_tokens":20,"history_tokens":110,"response_tokens":0,"class":"chat"}
"#;

/// A conversation returns while both workers are busy; the worker that caches it is busy for longer.
const BUSY: &str = r#"{"ts":0,"conv":1,"turn":0,"prompt_tokens":100,"history_tokens":0,"response_tokens":0}
{"ts":0.2,"conv":2,"turn":0,"prompt_tokens":1000,"history_tokens":0,"response_tokens":0}
{"ts":0.25,"conv":3,"turn":0,"prompt_tokens":1200,"history_tokens":0,"response_tokens":0}
{"ts":0.35,"conv":1,"turn":1,"prompt_tokens":50,"history_tokens":100,"response_tokens":0}
"#;

const LEAST_TTFT: &str = "[routing]\npolicy = \"least_ttft\"\n";
const ROUND_ROBIN: &str = "[routing]\npolicy = \"round_robin\"\n";

fn tailroute(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailroute"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .unwrap()
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Two workers at 1 ms per token with large caches.
const TWO: [&str; 15] = [
    "replay",
    "--capture",
    "trace.jsonl",
    "--weights",
    "after.toml",
    "--baseline",
    "before.toml",
    "--workers",
    "2",
    "--alpha",
    "1",
    "--block-tokens",
    "10",
    "--warmup-share",
    "0",
];

fn replay(trace: &str, before: &str, after: &str, more: &[&str]) -> Output {
    let folder = folder(&[
        ("trace.jsonl", trace),
        ("before.toml", before),
        ("after.toml", after),
    ]);
    tailroute(folder.path(), &[&TWO, more].concat())
}

fn report(trace: &str, before: &str, after: &str, more: &[&str]) -> Value {
    let output = replay(trace, before, after, &[&["--json"], more].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(output: &Output) -> String {
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(output.stdout.is_empty(), "nothing is played");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn figures(side: &Value) -> [f64; 7] {
    [
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "mean_ms",
        "tel_ms",
        "hit_ratio",
        "slo_share",
    ]
    .map(|name| side[name].as_f64().unwrap())
}

#[track_caller]
fn close(actual: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
    assert!(
        actual.len() == expected.len() && actual.iter().zip(expected).all(near),
        "{actual:?} is not {expected:?}"
    );
}

/// By hand: `least_ttft` sends the three openings to workers 0, 1 and 0 (equal costs take turns), each as long as its
/// prompt, and the second turn of conversation 1 back to worker 0, which computes its 20 new tokens. `round_robin`
/// sends that turn to worker 1, which computes all 130.
#[test]
fn figures_of_both_sides_are_those_computed_by_hand() {
    let report = report(CALM, LEAST_TTFT, ROUND_ROBIN, &["--xi-ms", "100"]);
    close(
        &figures(&report["baseline"]),
        &[50.0, 92.5, 98.5, 55.0, 0.0, 110.0 / 330.0, 1.0],
    );
    close(
        &figures(&report["proposed"]),
        &[75.0, 125.5, 129.1, 82.5, 30.0, 0.0, 0.75],
    );
    assert_eq!(report["turns"], 4);
    assert_eq!(
        (&report["moved"], &report["better"], &report["worse"]),
        (&1.into(), &0.into(), &1.into())
    );
    assert_eq!(report["baseline"]["settings"]["policy"], "least_ttft");
}

#[test]
fn classes_come_by_name_and_add_up() {
    let report = report(CALM, LEAST_TTFT, ROUND_ROBIN, &["--xi-ms", "100"]);
    let classes = report["classes"].as_array().unwrap();
    let names: Vec<_> = classes
        .iter()
        .map(|class| class["class"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["chat", "agent"]);
    let (chat, agent) = (&classes[0], &classes[1]);
    close(
        &figures(&chat["baseline"]),
        &[60.0, 96.0, 99.2, 60.0, 0.0, 110.0 / 230.0, 1.0],
    );
    close(
        &figures(&chat["proposed"]),
        &[115.0, 128.5, 129.7, 115.0, 30.0, 0.0, 0.5],
    );
    assert_eq!(agent["baseline"], agent["proposed"], "nothing changes for them");
    assert_eq!(agent["turns"], 2);
}

#[test]
fn the_turns_that_change_are_named_with_their_workers_and_what_decided() {
    let report = report(CALM, LEAST_TTFT, ROUND_ROBIN, &[]);
    let changes = report["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1);
    let change = &changes[0];
    assert_eq!(
        (&change["turn"], &change["conversation"], &change["number"]),
        (&3.into(), &1.into(), &1.into())
    );
    assert_eq!(
        (&change["class"], &change["change_ms"]),
        (&"chat".into(), &110.0.into())
    );
    assert_eq!(
        (&change["baseline"]["worker"], &change["baseline"]["ttft_ms"]),
        (&"0".into(), &20.0.into())
    );
    assert_eq!(
        (&change["proposed"]["worker"], &change["proposed"]["ttft_ms"]),
        (&"1".into(), &130.0.into())
    );
    assert_eq!(
        change["decided_by"]["term"], "rotation",
        "no cost made round_robin do it"
    );
}

/// By hand: conversation 1's second turn arrives at 350 ms. Worker 0 caches its 100 tokens and is busy until 1450
/// ms, worker 1 does not and is busy until 1200 ms: 1100 + 50 against 850 + 150. Without a weight on waiting,
/// only the 50 against 150 count.
#[test]
fn the_deciding_term_is_the_one_in_which_the_new_worker_is_ahead_by_most() {
    let plain = "[routing.weights]\nlocality = 0.0\nhome = 0.0\n";
    let careless = "[routing.weights]\nlocality = 0.0\nhome = 0.0\nload = 0.0\n";
    let worse = report(BUSY, plain, careless, &[]);
    close(
        &figures(&worse["baseline"])[..4],
        &[1000.0, 1170.0, 1194.0, 825.0],
    );
    let change = &worse["changes"][0];
    assert_eq!(
        (&change["turn"], &change["change_ms"]),
        (&3.into(), &150.0.into())
    );
    assert_eq!(
        (&change["baseline"]["worker"], &change["proposed"]["worker"]),
        (&"1".into(), &"0".into())
    );
    assert_eq!(change["decided_by"]["term"], "prefill");
    assert_eq!(change["decided_by"]["ms"], -100.0);
    let scores = change["proposed"]["scores"].as_array().unwrap();
    assert_eq!(
        (scores[0]["score"].as_f64(), scores[1]["score"].as_f64()),
        (Some(50.0), Some(150.0))
    );
    assert_eq!(
        (&scores[0]["chosen"], &scores[0]["cached"]),
        (&true.into(), &100.into())
    );

    let better = report(BUSY, careless, plain, &[]);
    let change = &better["changes"][0];
    assert_eq!(change["decided_by"]["term"], "wait");
    assert_eq!(change["decided_by"]["ms"], -250.0);
}

#[test]
fn equal_settings_change_nothing() {
    let report = report(BUSY, "", "[routing]\npolicy = \"tail\"\n", &[]);
    assert_eq!(report["changes"], Value::Array(Vec::new()));
    assert_eq!(figures(&report["baseline"]), figures(&report["proposed"]));
    let text = replay(BUSY, "", "", &[]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("no turn changes") && text.contains("the same settings as in force"));
}

#[test]
fn the_table_reads_before_and_after() {
    let output = replay(CALM, LEAST_TTFT, ROUND_ROBIN, &["--xi-ms", "100"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(line("p95 ms"), ["p95", "ms", "92.5", "125.5", "+35.7", "%"]);
    assert_eq!(
        line("within objective"),
        ["within", "objective", "100.0", "%", "75.0", "%", "-25.0", "pp"]
    );
    assert!(
        text.contains("class chat, 2 turns") && text.contains("0 → 1: rotation"),
        "{text}"
    );
    assert!(
        text.contains("proposed: policy least_ttft → round_robin\n"),
        "{text}"
    );
    assert!(output.stderr.is_empty(), "no progress for what is over at once");
}

#[test]
fn the_configuration_brings_workers_objective_and_the_weights_in_force() {
    let config = "[routing]\npolicy = \"least_ttft\"\n[objective]\nttft_ms = 60\n\
        [[objective.classes]]\nname = \"agent\"\nttft_ms = 20\n\
        [[workers]]\nname = \"a\"\nurl = \"http://10.0.0.1:1\"\nalpha_ms_per_token = 1.0\nbeta_ms = 0.0\n\
        [[workers]]\nname = \"b\"\nurl = \"http://10.0.0.2:1\"\nalpha_ms_per_token = 2.0\nbeta_ms = 0.0\n";
    let folder = folder(&[
        ("trace.jsonl", CALM),
        ("tailroute.toml", config),
        ("after.toml", ROUND_ROBIN),
    ]);
    let arguments = [
        "replay",
        "--capture",
        "trace.jsonl",
        "--weights",
        "after.toml",
        "--config",
        "tailroute.toml",
        "--block-tokens",
        "10",
        "--warmup-share",
        "0",
        "--json",
    ];
    let output = tailroute(folder.path(), &arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Worker b costs twice as much and no turn waits, so all turns go to a.
    close(&figures(&report["baseline"])[..4], &[50.0, 92.5, 98.5, 55.0]);
    assert_eq!(
        (&report["objective_ms"], &report["workers"]),
        (&60.0.into(), &serde_json::json!(["a", "b"]))
    );
    // Against each class's objective: chat's 100 and 20 ms against 60, agent's 50 and 50 ms against 20.
    close(&figures(&report["baseline"])[4..], &[100.0, 110.0 / 330.0, 0.25]);
    let objectives: Vec<_> = report["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|class| &class["objective_ms"])
        .collect();
    assert_eq!(objectives, [60.0, 20.0]);
    close(
        &figures(&report["classes"][1]["baseline"])[4..],
        &[60.0, 0.0, 0.0],
    );
    // round_robin: 100 on a, 50 on b, 50 on a, 130 on b.
    close(&figures(&report["proposed"])[..4], &[100.0, 236.0, 255.2, 127.5]);
    let clash = tailroute(folder.path(), &[&arguments[..], &["--workers", "2"]].concat());
    assert_eq!(clash.status.code(), Some(2), "a fleet is named once");
}

/// The two long turns take 100 and 20 ms under `least_ttft`; the fleet's objective is 60 ms.
#[test]
fn a_turn_that_brought_its_objective_along_is_held_to_that_unless_one_is_named_for_all() {
    let brought = CALM.replace(
        r#""class":"chat""#,
        r#""class":"header","objective_ms":10,"ttft_ms":1,"took_ms":1"#,
    );
    let capture = format!("{}\n{brought}", r#"{"meta":{"bs":10,"capture":true}}"#);
    let folder = folder(&[
        ("trace.jsonl", &capture),
        ("before.toml", LEAST_TTFT),
        ("after.toml", ROUND_ROBIN),
    ]);
    let judged = |more: &[&str]| -> Value {
        let output = tailroute(folder.path(), &[&TWO[..], &["--json"], more].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let own = judged(&[]);
    close(
        &figures(&own["baseline"])[4..],
        &[90.0 + 10.0, 110.0 / 330.0, 0.5],
    );
    assert_eq!(
        (&own["classes"][0]["class"], &own["classes"][0]["objective_ms"]),
        (&"header".into(), &10.0.into())
    );
    let named = judged(&["--xi-ms", "60"]);
    close(&figures(&named["baseline"])[4..], &[40.0, 110.0 / 330.0, 0.75]);
}

/// Like [`CALM`], but the first response takes two seconds, so the conversation's next turn cannot arrive at 2 s.
#[test]
fn answers_take_as_long_as_they_were_seen_to() {
    let capture = CALM.replacen(
        r#""response_tokens":10,"#,
        r#""response_tokens":11,"ttft_ms":100,"took_ms":2100,"#,
        1,
    );
    let capture = capture.replacen(r#""history_tokens":110"#, r#""history_tokens":111"#, 1);
    // By hand: 200 ms per token, so the response ends at 2.3 s; worker 0 caches it and computes 21 new tokens.
    let report = report(&capture, LEAST_TTFT, ROUND_ROBIN, &["--xi-ms", "100"]);
    let change = &report["changes"][0];
    assert_eq!(
        (
            &change["turn"],
            &change["baseline"]["ttft_ms"],
            &change["proposed"]["ttft_ms"]
        ),
        (&3.into(), &21.0.into(), &131.0.into())
    );
}

#[test]
fn bad_settings_are_refused_by_line_and_field() {
    for (text, expected) in [
        (
            "[routing.weights]\nlocalty = 1\n",
            "after.toml:2:1: routing.weights.localty: unknown key; did you mean `locality`?",
        ),
        (
            "[routing.weights]\n\nload = -1\n",
            "after.toml:3:1: routing.weights.load: expected a number of at least 0",
        ),
        (
            "[routing]\npolicy = \"tial\"\n",
            "after.toml:2:1: routing.policy: expected one of tail",
        ),
        ("[routing\n", "after.toml:1:"),
        ("{\"policy\": \"tail\"}", "after.toml:1:1: not TOML"),
    ] {
        let refused = refusal(&replay(CALM, "", text, &[]));
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    let missing = refusal(&tailroute(
        tempfile::tempdir().unwrap().path(),
        &[
            "replay",
            "--capture",
            "gen:wildchat:1",
            "--weights",
            "nowhere.toml",
        ],
    ));
    assert!(missing.contains("nowhere.toml: cannot be read"), "{missing}");
}

#[test]
fn a_bad_capture_is_refused_by_line_and_field() {
    let unsorted = CALM.replace(r#""ts":1.5"#, r#""ts":0.5"#);
    for (trace, expected) in [
        (
            CALM.replace(r#""ts":1.5"#, r#""ts":"x""#),
            "trace.jsonl: line 3: field `ts`: expected a number",
        ),
        (
            unsorted,
            "trace.jsonl: line 3: not sorted by time: 0.5 s comes after 1 s",
        ),
        (String::new(), "the trace has no turns"),
    ] {
        let refused = refusal(&replay(&trace, "", "", &[]));
        assert!(refused.contains(expected), "{refused}");
    }
    let unknown = replay(CALM, "", "", &["--cache", "magic"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_generated_workload_can_be_replayed_too() {
    let folder = folder(&[("after.toml", ROUND_ROBIN)]);
    for source in ["gen:wildchat:1", "gen:agentic:1"] {
        let arguments = [
            "replay",
            "--capture",
            source,
            "--weights",
            "after.toml",
            "--turns",
            "150",
            "--load",
            "0.5",
            "--json",
        ];
        let output = tailroute(folder.path(), &arguments);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["turns"], 135, "a tenth warms the caches up");
        assert!(report["changes"].as_array().unwrap().len() <= 10);
        assert!(report["proposed"]["hit_ratio"].as_f64() < report["baseline"]["hit_ratio"].as_f64());
    }
}

#[test]
fn help_shows_an_example_and_the_form_of_the_weights() {
    let help = tailroute(tempfile::tempdir().unwrap().path(), &["replay", "--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.contains("tailroute replay --capture capture.jsonl") && text.contains("[routing.weights]"));
}
