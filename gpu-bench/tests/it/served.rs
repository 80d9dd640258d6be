//! From a measurement to a router that goes by it: the file that `gpu-bench` writes is the file that `serve` loads.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use config::Sources;
use policy::cost::PrefillCost;
use sim_engine::{Engine, EngineConfig};
use tailroute::serve::Server;

/// Far from what a worker is taken to cost that nobody measured.
const TRUTH: PrefillCost = PrefillCost {
    alpha_ms_per_token: 0.04,
    beta_ms: 6.0,
    gamma_ms_per_token2: 4e-6,
    floor_ms: 0.0,
};

/// Measures until the file says what is true. Where the machine does other things the samples are noisy, so that they are
/// refused or miss it; that is not what this is about.
async fn measure(engine: &Engine, out: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-bench"));
    command
        .args(["worker", &engine.url().to_string(), "--out"])
        .arg(out);
    command.args(["--repeats", "3", "--max-repeats", "3", "--min-r2", "0.8"]);
    command.args(["--history", "0,1024,8192", "--uncached", "64,512,2048"]);
    let mut said = String::new();
    for _ in 0..20 {
        let output = tokio::task::block_in_place(|| command.output()).unwrap();
        if output.status.success() {
            let cost = gpu_bench_file(out);
            if off(cost) < 0.25 {
                return;
            }
            said = format!("{cost:?}");
        } else {
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
        }
    }
    unreachable!("in twenty measurements none was right: {said}");
}

/// How far a cost is from what is true.
fn off(cost: PrefillCost) -> f64 {
    let (u, h) = (policy::units::Tokens(1000), policy::units::Tokens(4000));
    (cost.prefill(u, h).0 / TRUTH.prefill(u, h).0 - 1.0).abs()
}

fn gpu_bench_file(path: &Path) -> PrefillCost {
    gpu_bench::calibration::Calibration::read(path).unwrap().fit.cost
}

/// A router in front of an engine, with a calibration file or without.
async fn routed(engine: &Engine, file: Option<&Path>) -> Server {
    let calibration = file.map_or(String::new(), |file| {
        format!("calibration = {:?}\n", file.display().to_string())
    });
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[workers]]\nname = \"gpu-0\"\nurl = \"{}\"\n{calibration}",
        engine.url(),
    );
    let config = config::load(&Sources {
        file: Some(("tailroute.toml", &text)),
        ..Sources::default()
    })
    .unwrap();
    let server = Server::start(config).await.unwrap();
    assert!(server.wait_ready(Duration::from_secs(60)).await);
    server
}

async fn engine() -> Engine {
    let config = EngineConfig {
        prefill: TRUTH,
        tpot_ms: 0.5,
        tpot_batch_ms: 0.0,
        per_request_metrics: true,
        ..EngineConfig::default()
    };
    Engine::start(config).await.unwrap()
}

/// What the router takes the worker's prefill to cost is what the file says, but for the rounding of its estimator.
fn says_the_file(server: &Server, file: &Path) {
    let (serves, written) = (
        server.parts().state.routing.fleet.workers()[0].cost(),
        gpu_bench_file(file),
    );
    for (is, says) in [
        (serves.alpha_ms_per_token, written.alpha_ms_per_token),
        (serves.beta_ms, written.beta_ms),
        (serves.gamma_ms_per_token2, written.gamma_ms_per_token2),
    ] {
        assert!((is / says - 1.0).abs() < 1e-9, "{serves:?} {written:?}");
    }
    assert!(off(serves) < 0.25, "{serves:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_measured_is_what_the_router_begins_with() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    measure(&engine, &file).await;
    let server = routed(&engine, Some(&file)).await;
    says_the_file(&server, &file);
    server.drain().await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_runs_takes_what_is_pushed_to_it() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    measure(&engine, &file).await;
    let server = routed(&engine, None).await;
    assert!(
        off(server.parts().state.routing.fleet.workers()[0].cost()) > 0.25,
        "nobody has measured it"
    );
    let push = async |more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_gpu-bench"));
        program
            .arg("push")
            .arg(&file)
            .arg(format!("http://{}", server.admin_address))
            .args(more);
        tokio::task::block_in_place(|| program.output()).unwrap()
    };
    let unknown = push(&["--push-worker", "nobody"]).await;
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(1), "{said}");
    assert!(said.contains("404") && said.contains("gpu-0"), "{said}");
    let pushed = push(&[]).await;
    assert_eq!(
        pushed.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&pushed.stderr)
    );
    says_the_file(&server, &file);
    server.drain().await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_wrong_by_two_is_corrected_within_two_hundred_requests() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    measure(&engine, &file).await;
    // As if the worker had been twice as slow when it was measured.
    let mut written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let alpha = &mut written["fit"]["cost"]["alpha_ms_per_token"];
    *alpha = (2.0 * alpha.as_f64().unwrap()).into();
    std::fs::write(&file, written.to_string()).unwrap();
    let server = routed(&engine, Some(&file)).await;
    let alpha = || {
        server.parts().state.routing.fleet.workers()[0]
            .cost()
            .alpha_ms_per_token
            / TRUTH.alpha_ms_per_token
    };
    assert!(alpha() > 1.5, "{}", alpha());
    let client = reqwest::Client::new();
    for number in 0..200_u64 {
        let words: Vec<String> = (0..20 + number * 7919 % 600)
            .map(|at| format!("w{number}x{at}"))
            .collect();
        let messages = serde_json::json!([{ "role": "user", "content": words.join(" ") }]);
        let body =
            serde_json::json!({ "model": "sim", "messages": messages, "max_tokens": 2, "stream": true });
        let request = client
            .post(format!("http://{}/v1/chat/completions", server.address))
            .body(body.to_string());
        let response = request.send().await.unwrap().error_for_status().unwrap();
        response.bytes().await.unwrap();
    }
    // What was learned last is applied beside the requests.
    let patience = std::time::Instant::now();
    while (alpha() - 1.0).abs() > 0.15 && patience.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((alpha() - 1.0).abs() <= 0.15, "{}", alpha());
    server.drain().await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_is_not_measured_in_place_of_a_worker() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    let server = routed(&engine, None).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-bench"));
    let url = format!("http://{}", server.address);
    command.args(["worker", &url, "--out"]).arg(&file);
    let output = tokio::task::block_in_place(|| command.output()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = format!("{url} is a tailroute router, which forwarded the prompt to gpu-0");
    assert!(said.contains(&expected), "{said}");
    assert!(!file.exists());
    server.drain().await;
    engine.shutdown().await;
}
