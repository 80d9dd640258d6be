//! `tailroute-lab tables` through the binary: output, plots and refusals.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn tables(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailroute-lab"))
        .current_dir(folder)
        .arg("tables")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_trace_of_ones_own_is_played_and_drawn_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let turn = |at: u32| {
        format!(
            "{{\"ts\":{at},\"conv\":{},\"turn\":{},\"prompt_tokens\":900,\"history_tokens\":{},\"response_tokens\":100}}\n",
            at % 5,
            at / 5,
            at / 5 * 1000
        )
    };
    let trace: String = (0..15).map(turn).collect();
    std::fs::write(folder.path().join("own.jsonl"), trace).unwrap();
    let output = tables(
        folder.path(),
        &[
            "--routing",
            "--trace",
            "own.jsonl",
            "--seeds",
            "4,5",
            "--json",
            "--svg",
            "own.svg",
        ],
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["trace"], &report["generated"]),
        (&"own.jsonl".into(), &false.into())
    );
    assert_eq!(
        (&report["turns"], &report["seeds"]),
        (&15.into(), &serde_json::json!([4, 5]))
    );
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    let change = &cells[0]["tail_against"]["cache_aware_tree"]["p95"];
    assert!(change["least"].as_f64() <= change["most"].as_f64());
    assert_eq!(cells[0]["contenders"]["round_robin"].as_array().unwrap().len(), 2);
    assert!(
        report["aims"]
            .as_array()
            .unwrap()
            .iter()
            .all(|aim| aim["of"] == 12 || aim["of"] == 1)
    );
    let drawn = std::fs::read_to_string(folder.path().join("own.svg")).unwrap();
    assert!(drawn.contains("15 turns of own.jsonl"));
}

#[test]
fn the_frontier_begins_at_the_tail_and_moves_to_the_median() {
    let folder = tempfile::tempdir().unwrap();
    let few = [
        "--frontier",
        "--trace",
        "gen:agentic:1",
        "--turns",
        "2000",
        "--seeds",
        "4,5",
        "--json",
        "--svg",
        "own.svg",
    ];
    let output = tables(folder.path(), &few);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["panels"].as_array().unwrap().len(), 3);
    let points = report["panels"][0]["curves"][0][1].as_array().unwrap();
    let (first, last) = (&points[0], points.last().unwrap());
    let [p50, p95] = ["p50_ms", "p95_ms"].map(|name| (first[name].as_f64(), last[name].as_f64()));
    assert!(p50.0 > p50.1 && p95.0 < p95.1, "{first} to {last}");
    let drawn = std::fs::read_to_string(folder.path().join("own.svg")).unwrap();
    assert!(
        ["LRU", "T-LRU", "by ε", "by μ"]
            .iter()
            .all(|text| drawn.contains(text))
    );
}

#[test]
fn what_cannot_be_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let code = |arguments: &[&str]| tables(folder.path(), arguments).status.code();
    assert_eq!(code(&[]), Some(2), "which tables?");
    assert_eq!(code(&["--routing", "--paper"]), Some(2));
    assert_eq!(code(&["--agents", "--trace", "x.jsonl"]), Some(2));
    assert_eq!(code(&["--frontier", "--out", "x"]), Some(2));
    assert_eq!(code(&["--paper", "--svg", "x.svg"]), Some(2));
    assert_eq!(code(&["--routing", "--seeds", "0"]), Some(2));
    assert_eq!(code(&["--routing", "--trace", "nowhere.jsonl"]), Some(1));
    assert_eq!(code(&["--routing", "--turns", "0"]), Some(2));
    assert_eq!(code(&["--paper", "--turns", "0"]), Some(2));
    std::fs::write(folder.path().join("empty.jsonl"), "").unwrap();
    let empty = tables(folder.path(), &["--routing", "--trace", "empty.jsonl"]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&empty.stderr).contains("empty.jsonl: the trace has no turns"));
    let listed = tables(folder.path(), &["--paper", "--seeds", "4,5"]);
    assert!(String::from_utf8_lossy(&listed.stderr).contains("a number of seeds, not a list"));
}

#[test]
fn the_papers_tables_are_printed_and_written_alike() {
    let folder = tempfile::tempdir().unwrap();
    let few = [
        "--paper", "--seeds", "1", "--turns", "200", "--json", "--out", "tables",
    ];
    let output = tables(folder.path(), &few);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["extent"], serde_json::json!({"seeds": 1, "turns": 200}));
    let numbers: Vec<_> = report["tables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["number"])
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    for table in report["tables"].as_array().unwrap() {
        let (rows, columns) = (table["rows"].as_array().unwrap(), &table["columns"]);
        assert_eq!(rows.len(), 6);
        for row in rows {
            assert_eq!(row.as_array().unwrap().len(), columns.as_array().unwrap().len());
            assert!(
                row.as_array().unwrap().iter().all(|cell| cell["ours"].is_f64()),
                "{row}"
            );
        }
    }
    let written = |name: &str| std::fs::read_to_string(folder.path().join("tables").join(name)).unwrap();
    let json: Value = serde_json::from_str(&written("tables.json")).unwrap();
    assert_eq!(json, report);
    assert!(written("tables.md").contains("## Table 6."));
    assert!(written("ttft.svg").starts_with("<svg"));
}
