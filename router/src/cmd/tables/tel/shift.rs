//! How soon the controller is where it belongs after the traffic changed.
//!
//! Half a run of one workload, then half a run of another. Beside it runs a twin that has had the other one all the time:
//! of another seed, so that every conversation after the change is new to both, and their caches are as full.

use anyhow::Context as _;
use policy::simulate::fleet::{self, CacheRule, FleetConfig, Workload};
use serde::Serialize;

use super::setting::{self, Named, SHIFTS, Setting};
use super::settle::{self, Settled};
use super::{CACHES, Seeds, pool};

/// What is between the seed of a run's second half and that of its twin's first.
const ANOTHER: u64 = 1000;

/// One workload after another, through a cache.
#[derive(Debug, Serialize)]
pub(super) struct Shift {
    pub(super) from: &'static str,
    #[serde(flatten)]
    pub(super) to: Named,
    pub(super) cache: &'static str,
    pub(super) rows: Vec<Row>,
}

/// One seed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    seed: u64,
    #[serde(flatten)]
    pub(super) settled: Settled,
}

struct Job {
    from: &'static Setting,
    to: &'static Setting,
    seed: u64,
}

/// Plays every change of traffic.
pub(super) fn measure(turns: Option<usize>, seeds: &Seeds) -> anyhow::Result<Vec<Shift>> {
    let mut jobs = Vec::new();
    for (from, to) in SHIFTS {
        let find = |name| setting::named(name).with_context(|| format!("there is no workload {name}"));
        let (from, to) = (find(from)?, find(to)?);
        jobs.extend(seeds.0.iter().map(|&seed| Job { from, to, seed }));
    }
    let played = pool::map(&jobs, |job| play(job, turns))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut shifts = Vec::new();
    for (jobs, played) in jobs.chunks(seeds.0.len()).zip(played.chunks(seeds.0.len())) {
        let Some(Job { from, to, .. }) = jobs.first() else {
            continue;
        };
        for (at, (capacity, cache)) in to.capacities.into_iter().zip(CACHES).enumerate() {
            let of_cache = played.iter().filter_map(|rows| rows.get(at).cloned());
            shifts.push(Shift {
                from: from.name,
                to: to.named(capacity),
                cache,
                rows: of_cache.collect(),
            });
        }
    }
    Ok(shifts)
}

/// A seed, through both caches.
fn play(job: &Job, turns: Option<usize>) -> anyhow::Result<Vec<Row>> {
    let Job { from, to, seed } = *job;
    let (changes, half) = to.after((from, seed), seed, turns)?;
    let (twin, _) = to.after((to, seed + ANOTHER), seed, turns)?;
    let row = |capacity| {
        let run = |workload: &Workload| {
            let config = FleetConfig {
                per_turn: true,
                ..to.config(capacity, seed, CacheRule::Adaptive, 1.0)
            };
            let objective = config.target.ttft;
            (fleet::run(workload, &config), objective)
        };
        let ((run, objective), (twin, _)) = (run(&changes), run(&twin));
        let settled = settle::compare(&run, &twin, objective, |record| record.turn as usize >= half);
        Row { seed, settled }
    };
    Ok(to.capacities.into_iter().map(row).collect())
}
