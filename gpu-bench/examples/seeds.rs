//! Measures a simulated engine of a known cost over HTTP, seed by seed, and prints as JSON how often the truth was found.
//!
//!     cargo run --release --locked -p gpu-bench --example seeds -- 100
//!
//! The engine's prefills have 10 % noise and 2 % stalls of 2 to 10 times their time; it tells its own times, so that a busy
//! machine measures the same as an idle one, and its clock is two hundred times as fast as the wall's.

use std::io::Write as _;

use anyhow::Context as _;
use clap::Parser as _;
use gpu_bench::calibration::Calibration;
use gpu_bench::cmd::worker::Args;
use gpu_bench::measure;
use gpu_bench::record::{Record, Unfinished};
use gpu_bench::source::http::worker::Worker;
use policy::cost::PrefillCost;
use serde_json::json;
use sim_engine::{Engine, EngineConfig, Jitter};

const TRUTH: PrefillCost = PrefillCost {
    alpha_ms_per_token: 0.08,
    beta_ms: 15.0,
    gamma_ms_per_token2: 8e-6,
    floor_ms: 0.0,
};
const SPEED: f64 = 200.0;
const GRID: &str =
    "--history 0,1024,4096,16384 --uncached 64,256,1024,4096 --precision 0.02 --repeats 4 --max-repeats 80";

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// How far one coefficient was found, over all seeds.
#[derive(Default)]
struct Tally {
    held: u32,
    within: u32,
    worst: f64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let seeds: u64 = std::env::args()
        .nth(1)
        .map_or(Ok(100), |count| count.parse())
        .context("expected a number of seeds")?;
    let mut tallies: [Tally; 3] = Default::default();
    let (mut samples, mut within_all) = (0, 0);
    for seed in 0..seeds {
        let found = measured(seed).await.with_context(|| format!("seed {seed}"))?;
        let (fit, cost) = (&found.fit, &found.fit.cost);
        let three = [
            (fit.alpha, cost.alpha_ms_per_token, TRUTH.alpha_ms_per_token, 0.03),
            (fit.beta, cost.beta_ms, TRUTH.beta_ms, 0.1),
            (
                fit.gamma,
                cost.gamma_ms_per_token2,
                TRUTH.gamma_ms_per_token2,
                0.1,
            ),
        ];
        let mut all = true;
        for (tally, (interval, value, truth, share)) in tallies.iter_mut().zip(three) {
            let off = (value * SPEED / truth - 1.0).abs();
            tally.held += u32::from(interval.holds(truth / SPEED));
            tally.within += u32::from(off <= share);
            tally.worst = tally.worst.max(off);
            all &= off <= share;
        }
        within_all += u32::from(all);
        samples += fit.samples;
    }
    let told = |tally: &Tally| json!({ "interval_holds": tally.held, "within": tally.within, "worst_error": tally.worst });
    let out = json!({
        "seeds": seeds, "mean_samples": samples as f64 / seeds as f64, "all_within": within_all,
        "alpha_within_3_percent": told(&tallies[0]), "beta_within_10_percent": told(&tallies[1]),
        "gamma_within_10_percent": told(&tallies[2]),
    });
    writeln!(std::io::stdout().lock(), "{out:#}")?;
    Ok(())
}

async fn measured(seed: u64) -> anyhow::Result<Calibration> {
    let engine = Engine::start(EngineConfig {
        prefill: TRUTH,
        time_scale: SPEED,
        tpot_ms: 0.5,
        tpot_batch_ms: 0.0,
        per_request_metrics: true,
        jitter: Jitter {
            share: 0.1,
            stalls: 0.02,
            seed,
        },
        ..EngineConfig::default()
    })
    .await?;
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("engine.json");
    let (url, seed) = (engine.url(), seed.to_string());
    let words = ["worker", &url, "--seed", &seed];
    let args = Cli::try_parse_from(words.into_iter().chain(GRID.split_whitespace()))?.args;
    let mut worker = Worker::prepare(args.reach.client()?, None, None).await?;
    let mut record = Record::open(&out, measure::head(&worker, &args.plan), Unfinished::Discard)?;
    let (ended, failed) = measure::samples(&mut worker, &args.plan, &mut record).await?;
    engine.shutdown().await;
    measure::calibrate(&record, args.plan.seed, args.output.min_r2, ended, failed)
}
