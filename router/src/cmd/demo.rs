//! `tailroute demo`: compares routing policies without a GPU.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use futures_util::future::try_join_all;
use serde_json::json;

use crate::demo::{self, CONTENDERS, keep};
use client::drive::command::progress;

/// Compare routing policies on simulated engines, in half a minute a seed.
///
/// Example: tailroute demo --seeds 10 --json
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
    /// Keep a fleet under `tail` running afterwards, with light traffic, for the console and `tailroute top`.
    #[arg(long)]
    keep: bool,
    /// Seed of the workload and its text.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workloads to play, with consecutive seeds; the table shows medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
}

/// Plays the workload against each contender and prints the table. Fails if a fleet cannot be started.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(compare(&args))
}

async fn compare(args: &Args) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let turns = |seed| demo::workload::plan(seed, demo::TIME_SCALE).turns;
    let bar = progress(seeds.clone().map(turns).sum::<usize>() * CONTENDERS.len());
    let mut played = BTreeMap::new();
    for seed in seeds {
        let mut rows = Vec::new();
        for pair in CONTENDERS.chunks(demo::SIDE_BY_SIDE) {
            bar.set_message(
                pair.iter()
                    .map(|contender| contender.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            );
            let plays = pair.iter().map(|contender| demo::play(*contender, seed, &bar));
            rows.extend(try_join_all(plays).await?);
        }
        played.insert(seed, rows);
    }
    bar.finish_and_clear();
    let rows = demo::medians(&played);
    if args.json {
        let report = json!({
            "workers": demo::WORKERS, "time_scale": demo::TIME_SCALE, "slo_ttft_ms": demo::TTFT_OBJECTIVE_MS,
            "wall_s": started.elapsed().as_secs_f64(), "rows": rows, "seeds": played,
        });
        simulator::terminal::print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        simulator::terminal::print(&demo::table(&rows))?;
        simulator::terminal::print(&format!(
            "{} engines; {}; TTFT on the engines' clock ({}x the wall's), objective {} ms; {:.0} s",
            demo::WORKERS,
            match args.seeds {
                1 => format!("seed {}", args.seed),
                seeds => format!(
                    "medians of {seeds} seeds, hints lower p95 in {} of them",
                    demo::seeds_won_by_hints(&played)
                ),
            },
            demo::TIME_SCALE,
            demo::TTFT_OBJECTIVE_MS,
            started.elapsed().as_secs_f64()
        ))?;
    }
    if args.keep {
        keep_one(args.seed).await?;
    } else if !args.json {
        simulator::terminal::print(&format!(
            "To look at a fleet in the console, run: {} demo --keep",
            program()
        ))?;
    }
    let errors: u64 = played.values().flatten().map(|row| row.errors).sum();
    Ok(if errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Keeps a fleet with traffic until Ctrl-C.
async fn keep_one(seed: u64) -> anyhow::Result<()> {
    let stage = keep::start(CONTENDERS[CONTENDERS.len() - 1]).await?;
    simulator::terminal::print(&keep::describe(&stage, &program()))?;
    tokio::select! {
        never = keep::traffic(&stage, seed) => match never? {},
        interrupt = tokio::signal::ctrl_c() => interrupt?,
    }
    stage.stop().await;
    Ok(())
}

/// Returns the name that this program was called by.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "tailroute".to_owned())
}
