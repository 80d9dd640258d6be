//! Goodput under overload: turns per second with the first token within the objective, at loads from half to three
//! times the engines' capacity, with and without admission.
//!
//! Prints one JSON line per load and mode:
//! `{"admission":bool,"load":x,"offered_per_s":…,"goodput_per_s":…,"served":…,"shed":…,"failed":…,"p50_ms":…,"p95_ms":…}`
//! (times to first token of served turns), and last `{"peak_per_s":…,"at_three_times":…,"share_of_peak":…}` for each
//! mode. Arrivals are a seeded Poisson process. Every prompt is new, so that a turn's work is known: capacity is
//! workers ÷ prefill.
//!
//! `make overload`, with `SECONDS=8`, the length of each run, and `ROUNDS=1`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an experiment that prints its table"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use policy::cost::PrefillCost;
use policy::stats::upper_median;
use policy::units::Millis;
use serde_json::json;
use sim_engine::EngineConfig;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::talk::{ask, words};

const WORKERS: usize = 2;
const WORDS: usize = 200;
/// 20 ms and 0.1 ms per token, in real time.
const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);
const OBJECTIVE_MS: f64 = 300.0;
const LOADS: [f64; 6] = [0.5, 0.8, 1.0, 1.5, 2.0, 3.0];

/// The outcome of a turn.
enum Ended {
    /// The time to its first token, in milliseconds.
    Served(f64),
    /// It was rejected with a Retry-After.
    Shed,
    Failed,
}

#[tokio::main]
async fn main() {
    let number = |name: &str, default: f64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (seconds, rounds) = (number("SECONDS_EACH", 8.0), number("ROUNDS", 1.0) as usize);
    let prefill = COST.beta_ms + COST.alpha_ms_per_token * WORDS as f64;
    let capacity = WORKERS as f64 * 1e3 / prefill;
    let mut goodput = [vec![Vec::new(); LOADS.len()], vec![Vec::new(); LOADS.len()]];
    for round in 0..rounds {
        for (at, load) in LOADS.into_iter().enumerate() {
            for admission in [true, false] {
                let seed = (round * 100 + at) as u64;
                let good = run(admission, load, load * capacity, seconds, seed).await;
                goodput[usize::from(admission)][at].push(good);
            }
        }
    }
    for (admission, of) in [false, true].into_iter().zip(goodput) {
        let medians: Vec<f64> = of.into_iter().filter_map(upper_median).collect();
        let peak = medians.iter().copied().fold(0.0, f64::max);
        let last = medians.last().copied().unwrap_or_default();
        println!(
            "{}",
            json!({ "admission": admission, "peak_per_s": peak, "at_three_times": last, "share_of_peak": last / peak })
        );
    }
}

/// Runs one load. Returns its goodput per second.
async fn run(admission: bool, load: f64, per_s: f64, seconds: f64, seed: u64) -> f64 {
    let engine = EngineConfig {
        prefill: COST,
        tpot_ms: 1.0,
        tpot_batch_ms: 0.0,
        time_scale: 1.0,
        ..EngineConfig::default()
    };
    let fleet = Fleet::start(vec![engine; WORKERS], |config| {
        config.objective.ttft = Millis(OBJECTIVE_MS);
        config.limits.drain_timeout = Duration::ZERO;
        if admission {
            config.admission.max_wait = Some(Millis(OBJECTIVE_MS / 3.0));
            config.admission.shed = true;
        }
    })
    .await;
    let (address, began) = (fleet.address(), Instant::now());
    let (mut state, mut at, mut turns) = (seed.wrapping_mul(2) | 1, 0.0, Vec::new());
    let mut number = 0;
    while at < seconds {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = ((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        at += -uniform.ln() / per_s;
        number += 1;
        tokio::time::sleep_until((began + Duration::from_secs_f64(at)).into()).await;
        turns.push(tokio::spawn(turn(address, seed << 32 | number)));
    }
    let offered = turns.len();
    let (mut times, mut shed, mut failed) = (Vec::new(), 0, 0);
    for turn in turns {
        match turn.await.unwrap() {
            Ended::Served(ms) => times.push(ms),
            Ended::Shed => shed += 1,
            Ended::Failed => failed += 1,
        }
    }
    times.sort_by(f64::total_cmp);
    let good = times.iter().filter(|ms| **ms <= OBJECTIVE_MS).count() as f64 / seconds;
    let quantile = |q: f64| times.get((times.len() as f64 * q) as usize).copied();
    println!(
        "{}",
        json!({
            "admission": admission, "load": load, "offered_per_s": offered as f64 / seconds, "goodput_per_s": good,
            "served": times.len(), "shed": shed, "failed": failed, "p50_ms": quantile(0.5), "p95_ms": quantile(0.95),
        })
    );
    good
}

async fn turn(address: SocketAddr, seed: u64) -> Ended {
    let body = ask(&words(seed, WORDS), json!({ "stream": true, "max_tokens": 4 }));
    let began = Instant::now();
    let Ok(mut answer) = client::open(address, "POST", CHAT, &[], body.to_string()).await else {
        return Ended::Failed;
    };
    match answer.status.as_u16() {
        200 => {}
        429 | 503 => return Ended::Shed,
        _ => return Ended::Failed,
    }
    while let Some(Ok(chunk)) = answer.chunk().await {
        if chunk.windows(9).any(|window| window == b"\"content\"") {
            let took = began.elapsed().as_secs_f64() * 1e3;
            let whole = answer.whole().await;
            return if whole.clean {
                Ended::Served(took)
            } else {
                Ended::Failed
            };
        }
    }
    Ended::Failed
}
