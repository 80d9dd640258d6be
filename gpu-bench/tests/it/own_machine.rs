//! `gpu-bench gpu` and `gpu-bench serve`, with shell scripts in the place of Python: which interpreter they take, what
//! they hand on, and what becomes of the answers. The transformer itself has tests of its own (`make test-gpu-bench`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use policy::cost::PrefillCost;

/// Asked for what is missing it answers nothing; else it measures what costs 5 + 0.02·u + 0.000004·u·(h + u/2) ms.
const MEASURES: &str = r#"[ "$1" = -c ] && exit 0
echo "$@" > "$(dirname "$0")/arguments"
roofline='{"flops_per_s": 1e12, "bytes_per_s": 1e11, "from": "a test"}'
echo '{"hello": {"model": "shell", "device": "a lathe", "context_tokens": 8192, "roofline": '"$roofline"'}}'
while read -r line; do
    echo "$line" | tr -c '0-9\n' ' ' | {
        read -r h u k
        nanos=$((5000000 + 20000 * u + 4 * u * (h + u / 2)))
        echo "{\"cached_tokens\": $h, \"uncached_tokens\": $u, \"prefill_ms\": ${nanos}e-6, \"flops\": ${u}e6, \"bytes\": 1e3}"
    }
done"#;

fn interpreter(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("python");
    // By another process: what other tests start meanwhile would inherit the file while it is open, and a file that is
    // open for writing cannot be executed.
    let written = Command::new("sh")
        .args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#])
        .arg(&path)
        .arg(format!("#!/bin/sh\n{script}\n"))
        .status();
    assert!(written.unwrap().success());
    path
}

fn gpu_bench(arguments: &[&str], python: &Path) -> Output {
    let (command, rest) = arguments.split_first().unwrap();
    Command::new(env!("CARGO_BIN_EXE_gpu-bench"))
        .arg(command)
        .arg("--python")
        .arg(python)
        .args(rest)
        .output()
        .unwrap()
}

#[test]
fn what_was_measured_here_becomes_a_calibration_like_any() {
    let folder = tempfile::tempdir().unwrap();
    let python = interpreter(folder.path(), MEASURES);
    let out = folder.path().join("gpu.json");
    let mut arguments = vec![
        "gpu",
        "--shape",
        "llama-3-8b",
        "--layers",
        "2",
        "--context-tokens",
        "8192",
    ];
    arguments.extend([
        "--history",
        "0,1024,4096",
        "--uncached",
        "64,512,2048",
        "--out",
        out.to_str().unwrap(),
    ]);
    let done = gpu_bench(&arguments, &python);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    let asked = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert_eq!(
        asked.trim_end(),
        "-m tailroute_torch measure --shape llama-3-8b --device auto --dtype auto --block-tokens 16 --layers 2 \
         --seed 1 --context-tokens 8192"
    );
    let text = fs::read_to_string(&out).unwrap();
    let written: gpu_bench::calibration::Calibration = serde_json::from_str(&text).unwrap();
    let truth = PrefillCost {
        alpha_ms_per_token: 0.02,
        beta_ms: 5.0,
        gamma_ms_per_token2: 4e-6,
        floor_ms: 0.0,
    };
    let cost = written.fit.cost;
    let near = |is: f64, should: f64| (is / should - 1.0).abs() < 0.01;
    assert!(
        near(cost.alpha_ms_per_token, truth.alpha_ms_per_token)
            && near(cost.beta_ms, truth.beta_ms)
            && near(cost.gamma_ms_per_token2, truth.gamma_ms_per_token2),
        "{cost:?}"
    );
    assert_eq!(written.facts.device.as_deref(), Some("a lathe"));
    // 2048 tokens over none: 2048e6 operations at 1e12 in a second, in 5 + 40.96 + 8.39 ms.
    let share = written.best_roofline_share.unwrap();
    assert!((share - 2.048 / 54.35).abs() < 1e-3, "{share}");
}

#[test]
fn a_python_without_the_package_is_told_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let python = interpreter(folder.path(), "echo tailroute_torch torch");
    for command in ["gpu", "serve"] {
        let done = gpu_bench(&[command], &python);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(
            said.contains("has no tailroute_torch, torch: `scripts/gpu-bench env` creates"),
            "{said}"
        );
    }
}

#[test]
fn an_interpreter_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    let said = gpu_bench(&["gpu"], &nowhere).stderr;
    assert!(String::from_utf8_lossy(&said).contains("nowhere: cannot be started; pass a Python"));
    let broken = interpreter(folder.path(), "exit 3");
    let said = gpu_bench(&["serve"], &broken).stderr;
    assert!(String::from_utf8_lossy(&said).contains("is not a usable Python"));
}

#[test]
fn serving_becomes_the_worker_with_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let python = interpreter(folder.path(), "[ \"$1\" = -c ] && exit 0\necho \"$@\"; exit 7");
    let done = gpu_bench(
        &[
            "serve",
            "--shape",
            "vicuna-7b",
            "--port",
            "0",
            "--",
            "--max-running",
            "4",
        ],
        &python,
    );
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&done.stdout).trim_end(),
        "-m tailroute_torch serve --shape vicuna-7b --device auto --dtype auto --block-tokens 16 --host 127.0.0.1 \
         --port 0 --max-running 4"
    );
}
