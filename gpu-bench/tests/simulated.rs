//! A worker whose cost is known is measured as what it is.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

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
        error.contains("no calibration was written; the 18 samples are in"),
        "{error}"
    );
    assert!(!folder.path().join("engine.json").exists());
    engine.shutdown().await;
}
