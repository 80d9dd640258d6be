//! A worker whose cost is known is measured as what it is.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

use clap::Parser as _;
use gpu_bench::worker::{Args, measure};
use policy::cost::PrefillCost;
use sim_engine::{Engine, EngineConfig};

const GRID: [&str; 6] = [
    "--history",
    "0,1024,8192",
    "--uncached",
    "64,512,2048",
    "--repeats",
    "3",
];

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

fn args(engine: &Engine, grid: &[&str]) -> Args {
    let url = engine.url().to_string();
    Cli::parse_from(["worker", &url].iter().chain(grid)).args
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_simulated_worker_is_found() {
    let truth = PrefillCost {
        alpha_ms_per_token: 0.03,
        beta_ms: 6.0,
        gamma_ms_per_token2: 4e-6,
    };
    let engine = engine(truth, |_| ()).await;
    let found = measure(&args(&engine, &GRID)).await.unwrap();
    let cost = found.fit.cost;
    // Wide enough for a machine that does other things; a missing cross term would be off by more than this.
    assert!(
        (cost.alpha_ms_per_token / truth.alpha_ms_per_token - 1.0).abs() < 0.2,
        "{found:?}"
    );
    assert!(
        (cost.gamma_ms_per_token2 / truth.gamma_ms_per_token2 - 1.0).abs() < 0.2,
        "{found:?}"
    );
    assert!(
        (0.0..truth.beta_ms + 10.0).contains(&(cost.beta_ms - truth.beta_ms / 2.0)),
        "{found:?}"
    );
    assert_eq!((found.failed_probes, found.partly_cached_probes), (0, 0));
    assert!(
        found.range.history.1 > 8000 && found.range.uncached.0 < 100,
        "{:?}",
        found.range
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_keeps_its_cache_to_itself_is_refused() {
    let engine = engine(PrefillCost::linear(0.001, 1.0), |config| {
        config.cached_tokens_report = false
    })
    .await;
    let error = measure(&args(&engine, &GRID)).await.unwrap_err();
    assert!(
        format!("{error:#}").contains("no cached tokens reported"),
        "{error:#}"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_time_does_not_depend_on_the_prompt_is_refused() {
    let engine = engine(PrefillCost::linear(0.0, 5.0), |_| ()).await;
    let small = ["--history", "0,256", "--uncached", "64,128,256", "--repeats", "3"];
    let error = measure(&args(&engine, &small)).await.unwrap_err();
    assert!(format!("{error:#}").contains("nothing was written"), "{error:#}");
    engine.shutdown().await;
}
