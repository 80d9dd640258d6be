//! From a measurement to a router that goes by it: the file that `gpu-bench` writes is the file that `serve` loads.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_measured_is_what_the_router_begins_with() {
    let engine = Engine::start(EngineConfig {
        prefill: TRUTH,
        tpot_ms: 0.5,
        tpot_batch_ms: 0.0,
        ..EngineConfig::default()
    })
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.json");
    measure(&engine, &file).await;

    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[workers]]\nurl = \"{}\"\ncalibration = {:?}\n",
        engine.url(),
        file.display().to_string()
    );
    let config = config::load(&Sources {
        file: Some(("tailroute.toml", &text)),
        ..Sources::default()
    })
    .unwrap();
    let server = Server::start(config).await.unwrap();
    assert!(server.wait_ready(Duration::from_secs(30)).await);
    let written = gpu_bench_file(&file);
    let serves = server.app().fleet.workers()[0].cost();
    // What the file says, but for the rounding of the estimator that it goes through.
    for (is, says) in [
        (serves.alpha_ms_per_token, written.alpha_ms_per_token),
        (serves.beta_ms, written.beta_ms),
        (serves.gamma_ms_per_token2, written.gamma_ms_per_token2),
    ] {
        assert!((is / says - 1.0).abs() < 1e-9, "{serves:?} {written:?}");
    }
    assert!(off(serves) < 0.25, "{serves:?}");
    server.drain().await;
    engine.shutdown().await;
}
