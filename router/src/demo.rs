//! `tailroute demo`: compares routing policies in half a minute on one machine.
//!
//! Runs four simulated engines with small caches and the router in one process, over HTTP on loopback. The same
//! conversations ([`workload`]) are played once against each [`Contender`], two at a time, each with its own fleet,
//! which starts cold. Every figure is measured on the client's side of the router; times are on the engines' clock,
//! which runs [`TIME_SCALE`] times as fast as wall time.

pub mod keep;
pub mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use config::{Config, Dialect, PolicyName};
use indicatif::ProgressBar;
use policy::cost::PrefillCost;
use policy::stats;
use policy::units::Millis;
use serde::Serialize;
use sim_engine::{Engine, EngineConfig};

use crate::serve::Server;
use client::drive::client::ChatClient;
use client::drive::plan::Plan;
use client::drive::run::{self, replay};
use client::drive::stats::Run;

/// Number of engines.
pub const WORKERS: usize = 4;
/// Speed of the engines' clock relative to wall time.
pub const TIME_SCALE: f64 = 5.0;
/// Number of contenders that play at the same time. Each has its own engines, and all of them need little of the processor.
pub const SIDE_BY_SIDE: usize = 2;
/// Objective on the engines' clock.
pub const TTFT_OBJECTIVE_MS: f64 = 400.0;
/// α and β on the engines' clock.
const COST: PrefillCost = PrefillCost::linear(0.1, 15.0);
const BLOCK_SIZE: u32 = 16;
const CAPACITY_BLOCKS: u64 = 1500;
/// Time limit for a fleet to become ready.
const START_LIMIT: Duration = Duration::from_secs(10);

/// One configuration of the fleet.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Name in the table.
    pub name: &'static str,
    policy: PolicyName,
    hints: bool,
}

/// The contenders, in the order of the table.
pub const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "round_robin",
        policy: PolicyName::RoundRobin,
        hints: false,
    },
    Contender {
        name: "cache_aware",
        policy: PolicyName::CacheAware,
        hints: false,
    },
    Contender {
        name: "tail (no hints)",
        policy: PolicyName::Tail,
        hints: false,
    },
    Contender {
        name: "tail",
        policy: PolicyName::Tail,
        hints: true,
    },
];

/// One row of the table. Times in milliseconds on the engines' clock.
#[derive(Clone, Debug, Serialize)]
pub struct DemoRow {
    /// Name of the contender.
    pub policy: &'static str,
    /// Turns sent.
    pub requests: usize,
    /// Turns without a complete response.
    pub errors: u64,
    /// Median time to first token.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Mean.
    pub mean_ms: f64,
    /// Cached prompt tokens over prompt tokens, as the engines count them.
    pub hit_ratio: f64,
    /// Share of turns whose first token came within the objective.
    pub slo_share: f64,
}

/// A running router with its engines.
pub struct DemoStage {
    /// The router.
    pub router: Server,
    engines: Vec<Engine>,
}

impl DemoStage {
    /// Starts engines on free ports of the loopback, and a router in front of them on `ports`: those of the data port
    /// and the admin port, where 0 is any free one. Fails if a port cannot be bound, or the engines do not become ready.
    pub async fn start(contender: Contender, ports: [u16; 2]) -> anyhow::Result<Self> {
        let mut engines = Vec::with_capacity(WORKERS);
        for _ in 0..WORKERS {
            engines.push(
                Engine::start(engine_config())
                    .await
                    .context("cannot start a simulated engine")?,
            );
        }
        let router = Server::start(router_config(contender, &engines, ports)?).await?;
        anyhow::ensure!(
            router.wait_ready(START_LIMIT).await,
            "the simulated engines did not become ready"
        );
        Ok(Self { router, engines })
    }

    /// Stops router and engines.
    pub async fn stop(self) {
        self.router.drain().await;
        for engine in self.engines {
            engine.shutdown().await;
        }
    }
}

fn engine_config() -> EngineConfig {
    EngineConfig {
        block_size: BLOCK_SIZE,
        capacity_blocks: CAPACITY_BLOCKS,
        prefill: COST,
        tpot_ms: 10.0,
        tpot_batch_ms: 0.1,
        time_scale: TIME_SCALE,
        ..EngineConfig::default()
    }
}

/// Returns the router's configuration. The router uses wall time, so every time is divided by the scale.
fn router_config(contender: Contender, engines: &[Engine], ports: [u16; 2]) -> anyhow::Result<Config> {
    let [listen, admin] = ports.map(|port| Some(format!("127.0.0.1:{port}")));
    let overrides = config::Overrides {
        listen,
        admin,
        workers: engines
            .iter()
            .map(|engine| format!("http://{}", engine.addr()))
            .collect(),
        policy: Some(contender.policy.to_string()),
    };
    let mut config = config::load_file(None, std::collections::BTreeMap::new(), overrides)?;
    let wall = |millis: f64| millis / TIME_SCALE;
    for (number, worker) in config.workers.iter_mut().enumerate() {
        worker.name = format!("engine-{number}");
        worker.cost = PrefillCost::linear(wall(COST.alpha_ms_per_token), wall(COST.beta_ms));
        worker.cost_is_known = true;
        worker.capacity_is_known = true;
        worker.capacity = policy::units::Tokens(CAPACITY_BLOCKS * u64::from(BLOCK_SIZE));
        worker.block_size = BLOCK_SIZE;
        worker.dialect = if contender.hints {
            Dialect::Tailroute
        } else {
            Dialect::None
        };
    }
    config.objective.ttft = Millis(wall(TTFT_OBJECTIVE_MS));
    config.routing.utilisation_window = Millis(wall(config.routing.utilisation_window.0));
    config.limits.drain_timeout = Duration::from_secs(5);
    Ok(config)
}

/// Plays the workload against one contender. Fails if its fleet cannot be started.
pub async fn play(contender: Contender, seed: u64, bar: &ProgressBar) -> anyhow::Result<DemoRow> {
    let plan = workload::plan(seed, TIME_SCALE);
    let stage = DemoStage::start(contender, [0, 0]).await?;
    let row = play_on(&stage, contender.name, &plan, seed, bar).await?;
    stage.stop().await;
    Ok(row)
}

/// Plays a plan against a running stage. Fails if the stage's address is not a valid URL.
pub async fn play_on(
    stage: &DemoStage,
    name: &'static str,
    plan: &Plan,
    seed: u64,
    bar: &ProgressBar,
) -> anyhow::Result<DemoRow> {
    let settings = settings(stage, seed)?;
    let client = ChatClient::new(Duration::from_secs(60))?;
    let samples = replay(client, settings, plan, |_| bar.inc(1), std::future::pending()).await;
    let run = Run::of(&samples, Some(TTFT_OBJECTIVE_MS / TIME_SCALE), None);
    let ttft = &run.ttft_ms;
    let scaled = |millis: f64| millis * TIME_SCALE;
    Ok(DemoRow {
        policy: name,
        requests: run.turns,
        errors: run.errors + run.incomplete,
        p50_ms: scaled(ttft.p50),
        p95_ms: scaled(ttft.p95),
        p99_ms: scaled(ttft.p99),
        mean_ms: scaled(ttft.mean),
        hit_ratio: run.hit_ratio.unwrap_or(f64::NAN),
        slo_share: run.slo_share.unwrap_or(f64::NAN),
    })
}

/// Returns the settings of a run against a stage. Fails if the stage's address is not a valid URL.
fn settings(stage: &DemoStage, seed: u64) -> anyhow::Result<run::RunSettings> {
    Ok(run::RunSettings {
        urls: vec![format!("http://{}/v1/chat/completions", stage.router.address).parse()?],
        model: "sim".to_owned(),
        session: true,
        seed,
        concurrency_limit: 4096,
    })
}

/// Returns each contender's medians over the seeds, in the order of the table; errors are summed.
pub fn medians(played: &BTreeMap<u64, Vec<DemoRow>>) -> Vec<DemoRow> {
    (0..CONTENDERS.len())
        .filter_map(|place| {
            let of: Vec<&DemoRow> = played.values().filter_map(|rows| rows.get(place)).collect();
            let median = |figure: fn(&DemoRow) -> f64| stats::median(of.iter().map(|row| figure(row)));
            Some(DemoRow {
                policy: of.first()?.policy,
                requests: median(|row| row.requests as f64).round() as usize,
                errors: of.iter().map(|row| row.errors).sum(),
                p50_ms: median(|row| row.p50_ms),
                p95_ms: median(|row| row.p95_ms),
                p99_ms: median(|row| row.p99_ms),
                mean_ms: median(|row| row.mean_ms),
                hit_ratio: median(|row| row.hit_ratio),
                slo_share: median(|row| row.slo_share),
            })
        })
        .collect()
}

/// Returns the number of seeds in which `tail` has a lower 95th percentile with hints than without.
pub fn seeds_won_by_hints(played: &BTreeMap<u64, Vec<DemoRow>>) -> usize {
    played
        .values()
        .filter(|rows| {
            let p95 = |name| rows.iter().find(|row| row.policy == name).map(|row| row.p95_ms);
            p95("tail") < p95("tail (no hints)")
        })
        .count()
}

/// Formats the table.
pub fn table(rows: &[DemoRow]) -> String {
    use std::fmt::Write as _;
    let mut out = format!(
        "{:<16} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7} {:>16}\n",
        "policy", "requests", "errors", "p50 ms", "p95 ms", "p99 ms", "mean ms", "hits", "within objective"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<16} {:>8} {:>6} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>6.1}% {:>15.1}%",
            row.policy,
            row.requests,
            row.errors,
            row.p50_ms,
            row.p95_ms,
            row.p99_ms,
            row.mean_ms,
            row.hit_ratio * 100.0,
            row.slo_share * 100.0
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(contender: &Contender, p95_ms: f64) -> DemoRow {
        DemoRow {
            policy: contender.name,
            requests: 10,
            errors: 1,
            p50_ms: 1.0,
            p95_ms,
            p99_ms: 1.0,
            mean_ms: 1.0,
            hit_ratio: 0.5,
            slo_share: 1.0,
        }
    }

    #[test]
    fn the_table_shows_medians_and_sums_errors() {
        let seeds = [
            (1, [9.0, 8.0, 7.0, 5.0]),
            (2, [3.0, 8.0, 6.0, 6.5]),
            (3, [4.0, 8.0, 8.0, 7.0]),
        ];
        let played = seeds
            .map(|(seed, p95s)| {
                (
                    seed,
                    CONTENDERS
                        .iter()
                        .zip(p95s)
                        .map(|(who, p95)| row(who, p95))
                        .collect(),
                )
            })
            .into();
        let rows = medians(&played);
        let p95s: Vec<f64> = rows.iter().map(|row| row.p95_ms).collect();
        assert_eq!(p95s, [4.0, 8.0, 7.0, 6.5]);
        assert_eq!(rows[0].errors, 3);
        assert_eq!(seeds_won_by_hints(&played), 2);
    }
}
