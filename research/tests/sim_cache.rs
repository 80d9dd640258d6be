//! `tailroute-lab sim cache` against exact instances: through the binary, its files and its JSON.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

#[path = "sim_cache/traces.rs"]
mod traces;

use std::fmt::Write as _;
use std::process::{Command, Output};

use serde_json::Value;

fn tailroute(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailroute-lab"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns the reports, by policy name.
fn reports(arguments: &[&str]) -> Vec<Value> {
    let output = tailroute(arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes `[conversation, prompt, response]` rows as a turn trace.
fn trace_file(rows: &Value) -> tempfile::NamedTempFile {
    let mut text = String::new();
    let mut conversations: std::collections::HashMap<u64, (u64, u64)> = Default::default();
    for (at, row) in rows.as_array().unwrap().iter().enumerate() {
        let [conv, prompt, response] = [0, 1, 2].map(|column| row[column].as_u64().unwrap());
        let (turn, history) = conversations.entry(conv).or_default();
        writeln!(
            text,
            r#"{{"ts":{at},"conv":{conv},"turn":{turn},"prompt_tokens":{prompt},"history_tokens":{history},"response_tokens":{response}}}"#
        )
        .unwrap();
        (*turn, *history) = (*turn + 1, *history + prompt + response);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Runs one instance; `names` maps the names of the expectations to ours.
fn check_instance(instance: &Value, keys: [&str; 3], name: impl Fn(&str) -> String) {
    let file = trace_file(&instance["turns"]);
    let expect = instance["expect"].as_object().unwrap();
    let policies: Vec<_> = expect.keys().map(|key| name(key)).collect();
    let [capacity, xi, next_prompt] = keys.map(|key| instance[key].to_string());
    let policies = policies.join(",");
    let path = file.path().to_str().unwrap();
    let mut arguments = vec![
        "sim",
        "cache",
        "--trace",
        path,
        "--alpha",
        "1",
        "--beta",
        "0",
        "--per-turn",
        "--json",
    ];
    arguments.extend([
        "--capacity-tokens",
        &capacity,
        "--xi-tokens",
        &xi,
        "--next-prompt-tokens",
        &next_prompt,
    ]);
    arguments.extend(["--policies", &policies]);
    if instance["forced"] == true {
        arguments.push("--forced");
    }
    for (report, (key, wanted)) in reports(&arguments).iter().zip(expect) {
        assert_eq!(report["policy"], name(key).as_str());
        assert_eq!(report["uncached"], wanted["uncached"], "{key} of {instance}");
        assert!(
            (report["tel_ms"].as_f64().unwrap() - wanted["tel"].as_f64().unwrap()).abs() < 0.01,
            "{key}"
        );
    }
}

#[test]
fn small_instances_come_out_token_by_token() {
    let text = include_str!("fixtures/cache_instances.json");
    let fixtures: Value = serde_json::from_str(text).unwrap();
    for instance in fixtures["instances"].as_array().unwrap() {
        check_instance(instance, ["capacity", "xi", "next_prompt"], str::to_owned);
    }
}

/// Returns the expected results of a token-by-token reference computation; see the fixtures' README.
fn reference() -> Value {
    serde_json::from_str(include_str!("fixtures/cache_reference.json")).unwrap()
}

fn ours(theirs: &str) -> String {
    match theirs.strip_prefix("threshold_lru_") {
        Some(threshold) => format!("threshold-lru:{threshold}").replace(":1024", ""),
        None => theirs.replace('_', "-"),
    }
}

#[test]
fn the_published_small_vectors_come_out_token_by_token() {
    for instance in reference()["small"].as_array().unwrap() {
        check_instance(instance, ["C", "xi", "Qhat"], ours);
    }
}

#[test]
fn the_published_headline_comes_out_to_a_hundredth_of_a_millisecond() {
    let trace = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/synth_wildchat_table_s1.jsonl.gz"
    );
    let reference = reference();
    for row in reference["headline"].as_array().unwrap() {
        assert_eq!(row["trace"], "synth_wildchat_table_s1");
        let [capacity, xi, q] = ["C", "xi_tokens", "Qhat"].map(|key| row[key].to_string());
        let policy = ours(row["policy"].as_str().unwrap());
        let mut arguments = vec!["sim", "cache", "--trace", trace, "--turns", "2000", "--json"];
        arguments.extend(["--alpha", "0.1027", "--beta", "23.07", "--slo-ms", "200"]);
        arguments.extend([
            "--capacity-tokens",
            &capacity,
            "--xi-tokens",
            &xi,
            "--next-prompt-tokens",
            &q,
        ]);
        arguments.extend(["--policies", &policy]);
        let report = &reports(&arguments)[0];
        assert_eq!(report["sum_uncached"], row["sum_uncached"], "{row}");
        assert_eq!(report["slo_violations"], row["slo200"], "{row}");
        let pairs = [
            ("tel_ms", "tel_ms"),
            ("p50_ms", "p50"),
            ("p90_ms", "p90"),
            ("p95_ms", "p95"),
            ("p99_ms", "p99"),
        ];
        for (ours, theirs) in pairs {
            let (got, wanted) = (report[ours].as_f64().unwrap(), row[theirs].as_f64().unwrap());
            assert!((got - wanted).abs() < 0.01, "{ours}: {got} for {row}");
        }
    }
}

#[test]
fn bad_traces_fail_with_line_and_reason_and_bad_usage_is_two() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let row = |ts: f64| {
        format!(
            r#"{{"ts":{ts},"conv":{},"turn":0,"prompt_tokens":1,"response_tokens":1}}"#,
            ts as u64
        )
    };
    std::fs::write(file.path(), format!("{}\n{}\n", row(5.0), row(4.0))).unwrap();
    let path = file.path().to_str().unwrap();
    let common = ["sim", "cache", "--capacity-tokens", "10", "--xi-ms", "1"];
    let run = |more: &[&str]| tailroute(&[&common[..], more].concat());
    let output = run(&["--trace", path]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("line 2: not sorted by time"), "{complaint}");
    assert_eq!(run(&["--trace", "gen:mars:1"]).status.code(), Some(2));
    assert_eq!(
        run(&["--trace", "gen:wildchat:1", "--policies", "fifo"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        run(&["--trace", "gen:wildchat:1", "--xi-tokens", "3"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(run(&["--trace", "/nowhere/at/all"]).status.code(), Some(1));
}

#[test]
fn an_odd_generator_is_refused_with_the_parameter_to_blame() {
    let common = [
        "sim",
        "cache",
        "--capacity-tokens",
        "10",
        "--xi-ms",
        "1",
        "--trace",
    ];
    for (trace, reason) in [
        (
            "gen:wildchat:1:rate_shape=1e-310",
            "`rate_shape` must be a number from 1e-9",
        ),
        (
            "gen:wildchat:1:mean_turns=1e308",
            "`mean_turns` must be a number from 1e0",
        ),
        (
            "gen:wildchat:1:max_prompt=1e300,prompt_mean=1e300,max_context=1e300",
            "`prompt_mean`",
        ),
        ("gen:wildchat:1:speed=1", "there are births_per_s"),
        ("gen:mars:1", "wildchat, sharegpt, agentic and hot"),
        ("gen:agentic", "gen:agentic:SEED"),
        ("gen:agentic:1:gap_s=1", "takes no parameters"),
        ("hot:1:gap_s=1", "gen:hot:SEED, which takes no parameters"),
    ] {
        let output = tailroute(&[&common[..], &[trace]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains(reason),
            "{trace}: {said}"
        );
    }
}

/// Returns a policy's gain over another in per cent, by figure, as the mean of seeds 1 to 5.
fn gains(base: &str, other: &str, figures: &[&str]) -> Vec<f64> {
    let mut sums = vec![0.0; figures.len()];
    for seed in 1..=5 {
        let trace = format!("gen:wildchat:{seed}");
        let policies = format!("{base},{other}");
        let mut arguments = vec![
            "sim",
            "cache",
            "--json",
            "--capacity-tokens",
            "10000",
            "--xi-ms",
            "150",
        ];
        arguments.extend(["--trace", &trace, "--policies", &policies]);
        let pair = reports(&arguments);
        for (sum, figure) in sums.iter_mut().zip(figures) {
            let [base, other] = [0, 1].map(|at: usize| pair[at][figure].as_f64().unwrap());
            *sum += 20.0 * (1.0 - other / base);
        }
    }
    sums
}

#[test]
fn the_published_gains_hold_on_generated_conversations() {
    let tail = gains("lru", "t-lru", &["p90_ms", "p95_ms"]);
    assert!(tail.iter().all(|gain| *gain >= 15.0), "{tail:?}");
    let expected = gains("t-lru", "et-lru", &["tel_ms", "mean_ms"]);
    assert!(expected[0] >= 3.0 && expected[1] >= 0.0, "{expected:?}");
}

#[test]
fn generated_workloads_and_tables_are_for_reading_too() {
    let output = tailroute(&[
        "sim",
        "cache",
        "--trace",
        "gen:wildchat:1",
        "--turns",
        "300",
        "--capacity-tokens",
        "4000",
        "--xi-ms",
        "150",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (table, legend) = text
        .split_once("\n\n")
        .unwrap_or_else(|| panic!("no legend: {text}"));
    assert!(
        table.lines().count() == 7 && table.contains("to-belady"),
        "{text}"
    );
    assert!(legend.contains("TEL"), "{text}");
}

#[test]
fn a_hybrid_model_resumes_shared_blocks_only_where_a_state_was_saved() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let row = |(at, last): (usize, u64)| {
        format!(r#"{{"timestamp":{at},"input_length":1536,"output_length":1,"hash_ids":[1,2,{last}]}}"#)
    };
    let rows: Vec<_> = [3, 4, 5].into_iter().enumerate().map(row).collect();
    std::fs::write(file.path(), rows.join("\n")).unwrap();
    let policies = "lru,flop-aware,gdfs,workload-aware,et-lru,belady,to-belady,t-lru,t-lru-printed,t-lru-trim-all,\
                    t-lru-tiers:4096/0.01/64,threshold-lru,end-aware,length-aware";
    let mut arguments = vec!["sim", "cache", "--shared", "--per-turn", "--json", "--xi-ms", "1"];
    arguments.extend(["--capacity-tokens", "100000", "--policies", policies]);
    arguments.extend(["--trace", file.path().to_str().unwrap()]);
    for report in reports(&arguments) {
        // The second prompt reveals the shared part, and saves the state there that the third resumes.
        let uncached = match report["policy"].as_str().unwrap() {
            "flop-aware" => serde_json::json!([1536, 1536, 512]),
            // Each conversation ends with its only turn, and blocks without a known return are evicted at once.
            "end-aware" | "length-aware" => serde_json::json!([1536, 1536, 1536]),
            _ => serde_json::json!([1536, 512, 512]),
        };
        assert_eq!(report["uncached"], uncached, "{report}");
    }
}
