//! A worker whose cost is known is measured as what it is.

use std::path::Path;

use clap::Parser as _;
use gpu_bench::calibration::{Calibration, Ended};
use gpu_bench::cmd::worker::{Args, measure};
use gpu_bench::record;
use gpu_bench::sample::Clock;
use policy::cost::PrefillCost;
use sim_engine::{Engine, EngineConfig, Jitter};
use tempfile::TempDir;

const TRUTH: PrefillCost = PrefillCost {
    alpha_ms_per_token: 0.08,
    beta_ms: 15.0,
    gamma_ms_per_token2: 8e-6,
    floor_ms: 0.0,
};

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

async fn engine(prefill: PrefillCost, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig {
        prefill,
        tpot_ms: 0.5,
        tpot_batch_ms: 0.0,
        ..EngineConfig::default()
    };
    change(&mut config);
    Engine::start(config).await.unwrap()
}

/// Measures into a folder of its own.
async fn measured(engine: &Engine, more: &str) -> (TempDir, anyhow::Result<Calibration>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("engine.json");
    let done = measure(&args(engine, &out, more)).await;
    let calibration = done.map(|_| Calibration::read(&out).unwrap());
    (folder, calibration)
}

fn args(engine: &Engine, out: &Path, more: &str) -> Args {
    let (url, out) = (engine.url(), out.to_str().unwrap().to_owned());
    let words = ["worker", &url, "--out", &out];
    let args = words.into_iter().chain(more.split_whitespace());
    Cli::parse_from(args).args
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_per_cent_noise_and_stalls_are_seen_through_over_http() {
    for seed in [1, 2] {
        // By the engine's own clock, so that a busy machine measures the same; two hundred times as fast.
        let engine = engine(TRUTH, |config| {
            config.time_scale = 200.0;
            config.per_request_metrics = true;
            config.jitter = Jitter {
                share: 0.1,
                stalls: 0.02,
                seed,
            };
        })
        .await;
        let grid = "--history 0,1024,4096,16384 --uncached 64,256,1024,4096 --precision 0.025 --repeats 4 --max-repeats 60";
        let (_folder, found) = measured(&engine, grid).await;
        let found = found.unwrap();
        let (fit, cost) = (&found.fit, &found.fit.cost);
        let near = |value: f64, truth: f64, share: f64| {
            assert!(
                (value * 200.0 / truth - 1.0).abs() <= share,
                "{value} is not {truth}: {fit:?}"
            );
        };
        // The noise is its seed's, so that luck has no part in this.
        near(cost.alpha_ms_per_token, TRUTH.alpha_ms_per_token, 0.03);
        near(cost.beta_ms, TRUTH.beta_ms, 0.1);
        near(cost.gamma_ms_per_token2, TRUTH.gamma_ms_per_token2, 0.1);
        assert_eq!(
            (found.clock, found.ended),
            (Clock::Engine, Ended::Precise),
            "{found:?}"
        );
        assert_eq!((found.failed_probes, found.partly_cached_probes), (0, 0));
        assert!(
            found.range.history.1 > 16_000 && found.range.uncached.0 < 100,
            "{:?}",
            found.range
        );
        let facts = &found.facts;
        assert_eq!(facts.engine.as_deref(), Some("sim-engine"));
        assert_eq!(
            (facts.block_tokens, facts.capacity_tokens),
            (Some(16), Some(8192 * 16))
        );
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_its_own_clock_the_cost_of_a_simulated_worker_is_found() {
    let truth = PrefillCost {
        alpha_ms_per_token: 0.03,
        beta_ms: 6.0,
        gamma_ms_per_token2: 4e-6,
        floor_ms: 0.0,
    };
    let engine = engine(truth, |_| ()).await;
    // On a machine that does other things a measurement may be off: one of several has to be right.
    let mut said = String::new();
    for _ in 0..20 {
        let grid = "--history 0,1024,8192 --uncached 64,512,2048 --repeats 3 --max-repeats 3 --min-r2 0.8";
        let (_folder, found) = measured(&engine, grid).await;
        match found {
            Ok(found) => {
                assert_eq!(found.clock, Clock::Client);
                let cost = found.fit.cost;
                let near = |value: f64, truth: f64| (value / truth - 1.0).abs() < 0.2;
                if near(cost.alpha_ms_per_token, truth.alpha_ms_per_token)
                    && near(cost.gamma_ms_per_token2, truth.gamma_ms_per_token2)
                {
                    engine.shutdown().await;
                    return;
                }
                said = format!("{cost:?}");
            }
            Err(error) => said = format!("{error:#}"),
        }
    }
    unreachable!("in twenty measurements none was right: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_out_of_time_is_continued_where_it_stopped() {
    let engine = engine(TRUTH, |config| {
        config.time_scale = 200.0;
        config.per_request_metrics = true;
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("engine.json");
    let grid = "--history 0,1024 --uncached 64,256,1024 --repeats 4 --max-repeats 4";
    // As if it had been stopped after five samples.
    measure(&args(&engine, &out, grid)).await.unwrap();
    let (whole, part) = record::paths(&out);
    let text = std::fs::read_to_string(&whole).unwrap();
    let five: Vec<&str> = text.lines().take(6).collect();
    std::fs::write(&part, five.join("\n") + "\n").unwrap();
    std::fs::remove_file(&out).unwrap();

    let before = engine.stats().received;
    measure(&args(&engine, &out, &format!("{grid} --resume")))
        .await
        .unwrap();
    let asked = engine.stats().received - before;
    // Three to prepare, one to prime, and what was left of four times six.
    assert_eq!(asked, 3 + 1 + 24 - 5);
    let (_, samples) = record::read(&whole).unwrap();
    assert_eq!(samples.len(), 24);
    assert_eq!(Calibration::read(&out).unwrap().fit.samples, 24);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_keeps_its_cache_to_itself_is_refused() {
    let engine = engine(PrefillCost::linear(0.001, 1.0), |config| {
        config.cached_tokens_report = false
    })
    .await;
    let error = measured(&engine, "--history 0 --uncached 64")
        .await
        .1
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("no cached tokens reported"),
        "{error:#}"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_time_does_not_depend_on_the_prompt_is_refused() {
    let engine = engine(PrefillCost::linear(0.0, 5.0), |config| {
        config.per_request_metrics = true;
        config.jitter.share = 0.05;
    })
    .await;
    let small = "--history 0,256 --uncached 64,128,256 --repeats 3 --max-repeats 3";
    let (folder, done) = measured(&engine, small).await;
    let error = format!("{:#}", done.unwrap_err());
    assert!(
        error.contains("no calibration was written; the 18 samples are in")
            && error.contains("samples.refused.jsonl"),
        "{error}"
    );
    let left = record::read(&folder.path().join("engine.samples.refused.jsonl"))
        .unwrap()
        .1;
    assert_eq!(
        left.len(),
        18,
        "to look at; a new attempt does not trip over them"
    );
    assert!(!folder.path().join("engine.json").exists());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slower_worker_fails_the_comparison_and_the_same_one_does_not() {
    let slower = PrefillCost {
        alpha_ms_per_token: 1.4 * TRUTH.alpha_ms_per_token,
        ..TRUTH
    };
    let mut files = Vec::new();
    for (prefill, seed) in [(TRUTH, 1), (TRUTH, 2), (slower, 3)] {
        let engine = engine(prefill, |config| {
            config.time_scale = 200.0;
            config.per_request_metrics = true;
            config.jitter = Jitter {
                share: 0.05,
                stalls: 0.01,
                seed,
            };
        })
        .await;
        let grid = "--history 0,4096 --uncached 64,512,4096 --repeats 12 --max-repeats 12";
        let (folder, found) = measured(&engine, grid).await;
        found.unwrap();
        files.push(folder);
        engine.shutdown().await;
    }
    let compare = |after: usize| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_gpu-bench"));
        program
            .arg("compare")
            .args([&files[0], &files[after]].map(|folder| folder.path().join("engine.json")));
        program.args(["--tolerance", "0.1"]).output().unwrap()
    };
    let same = compare(1);
    assert_eq!(
        same.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );
    let slow = compare(2);
    let said = String::from_utf8_lossy(&slow.stdout);
    assert_eq!(slow.status.code(), Some(1), "{said}");
    assert!(
        said.trim_end().ends_with("slower than before") && said.contains("%  slower"),
        "{said}"
    );
    // The report stands beside the file, with its pictures in it.
    let folder = files[0].path();
    let html = std::fs::read_to_string(folder.join("engine.html")).unwrap();
    assert_eq!(html.matches("<svg").count(), 3, "fit, residuals, leverage");
    let markdown = std::fs::read_to_string(folder.join("engine.md")).unwrap();
    for picture in ["engine.fit.svg", "engine.residuals.svg", "engine.leverage.svg"] {
        assert!(
            markdown.contains(picture) && folder.join(picture).exists(),
            "{markdown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polite_measurement_leaves_a_busy_worker_alone() {
    let engine = engine(TRUTH, |config| {
        config.per_request_metrics = true;
        config.tpot_ms = 1e9;
    })
    .await;
    // Somebody's answer that does not end.
    let client =
        gpu_bench::source::http::Client::new(engine.url(), None, std::time::Duration::from_secs(600))
            .unwrap();
    let ask = gpu_bench::source::http::chat::Ask {
        model: "sim",
        prompt: "a",
        tokens: 9,
        tiers: false,
    };
    let other = tokio::spawn(async move { client.chat(ask).await.map(drop) });
    engine.stats_when(|stats| stats.running == 1).await;
    let (_folder, done) = measured(&engine, "--polite --polite-wait-s 1").await;
    let said = format!("{:#}", done.unwrap_err());
    assert!(said.contains("the worker still had other work"), "{said}");
    assert_eq!(engine.stats().received, 1, "it was sent nothing");
    other.abort();
    engine.shutdown().await;
}
