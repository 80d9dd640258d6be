//! The runs: cells, contenders, weights, and the threads that play them.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use policy::cost::PrefillCost;
use policy::route::{PolicyName, Settings};
use policy::units::{Millis, Tokens};
use serde::Serialize;
use simulator::fleet::{self, CacheRule, FleetConfig, FleetReport, Order, Pace, View, Workload};

use crate::sim::fleet::default_view;
use simulator::progress::Progress;

/// α = 0.05 ms per token, β = 0: a 7B model on one large GPU.
const COST: PrefillCost = PrefillCost::linear(0.05, 0.0);
pub(super) const OBJECTIVE: Millis = Millis(1000.0);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Cell {
    pub(super) workers: usize,
    pub(super) blocks: u64,
    pub(super) load: f64,
}

const fn cell(workers: usize, blocks: u64, load: f64) -> Cell {
    Cell {
        workers,
        blocks,
        load,
    }
}

pub(super) const CELLS: [Cell; 12] = [
    cell(4, 1000, 0.5),
    cell(4, 1000, 0.8),
    cell(4, 1000, 1.1),
    cell(4, 8000, 0.5),
    cell(4, 8000, 0.8),
    cell(4, 8000, 1.1),
    cell(8, 1000, 0.5),
    cell(8, 1000, 0.8),
    cell(8, 1000, 1.1),
    cell(8, 8000, 0.5),
    cell(8, 8000, 0.8),
    cell(8, 8000, 1.1),
];

/// The cells in which weights are varied: each number of workers, size and load at least once.
pub(super) const WEIGHT_CELLS: [usize; 4] = [1, 5, 6, 10];

/// A policy with an eviction policy of the workers and a view of their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contender {
    Tail,
    /// `tail` on engines that support priorities.
    TailPriority,
    TailLru,
    LeastTtft,
    CacheAwareTree,
    CacheAwareIndex,
    RoundRobin,
}

impl Contender {
    pub(super) const ALL: [Self; 7] = [
        Self::Tail,
        Self::TailPriority,
        Self::TailLru,
        Self::LeastTtft,
        Self::CacheAwareTree,
        Self::CacheAwareIndex,
        Self::RoundRobin,
    ];

    /// Contenders of the plot: all but [`Self::TailLru`], which only the table has.
    pub(super) const DRAWN: [Self; 6] = [
        Self::TailPriority,
        Self::Tail,
        Self::LeastTtft,
        Self::CacheAwareIndex,
        Self::CacheAwareTree,
        Self::RoundRobin,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tail => "tail",
            Self::TailPriority => "tail_priority",
            Self::TailLru => "tail_lru",
            Self::LeastTtft => "least_ttft",
            Self::CacheAwareTree => "cache_aware_tree",
            Self::CacheAwareIndex => "cache_aware_index",
            Self::RoundRobin => "round_robin",
        }
    }

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Tail => "tail (default)",
            Self::TailPriority => "tail, engines take priorities",
            Self::TailLru => "tail on LRU",
            Self::LeastTtft => "least_ttft",
            Self::CacheAwareTree => "cache_aware, own tree",
            Self::CacheAwareIndex => "cache_aware, our index",
            Self::RoundRobin => "round_robin",
        }
    }

    fn setup(self) -> (PolicyName, CacheRule, View) {
        let plain = |policy| (policy, CacheRule::Lru, default_view(policy));
        match self {
            Self::Tail | Self::TailPriority => (PolicyName::Tail, CacheRule::Tail, View::Mirror),
            Self::TailLru => plain(PolicyName::Tail),
            Self::LeastTtft => plain(PolicyName::LeastTtft),
            Self::CacheAwareTree => plain(PolicyName::CacheAware),
            Self::CacheAwareIndex => (PolicyName::CacheAware, CacheRule::Lru, View::Mirror),
            Self::RoundRobin => plain(PolicyName::RoundRobin),
        }
    }
}

pub(super) struct Variant {
    pub(super) weight: &'static str,
    pub(super) value: f64,
    set: fn(&mut FleetConfig, f64),
}

const fn variant(weight: &'static str, value: f64, set: fn(&mut FleetConfig, f64)) -> Variant {
    Variant { weight, value, set }
}

pub(super) const VARIANTS: [Variant; 18] = [
    variant("locality", 0.0, |c, v| c.settings.weights.locality = v),
    variant("locality", 0.3, |c, v| c.settings.weights.locality = v),
    variant("locality", 1.0, |c, v| c.settings.weights.locality = v),
    variant("locality", 2.0, |c, v| c.settings.weights.locality = v),
    variant("home", 0.0, |c, v| c.settings.weights.home = v),
    variant("home", 0.3, |c, v| c.settings.weights.home = v),
    variant("load", 0.5, |c, v| c.settings.weights.load = v),
    variant("load", 2.0, |c, v| c.settings.weights.load = v),
    variant("slo", 0.5, |c, v| c.settings.weights.slo = v),
    variant("slo", 2.0, |c, v| c.settings.weights.slo = v),
    variant("affinity_ms", 50.0, |c, v| c.settings.weights.affinity_ms = v),
    variant("affinity_ms", 500.0, |c, v| c.settings.weights.affinity_ms = v),
    variant("spread_ms", 20.0, |c, v| c.settings.weights.spread_ms = v),
    variant("spread_ms", 200.0, |c, v| c.settings.weights.spread_ms = v),
    variant("kappa_max", 3.0, |c, v| c.settings.kappa_max = v),
    variant("kappa_max", 10.0, |c, v| c.settings.kappa_max = v),
    variant("utilisation_window_s", 10.0, |c, v| {
        c.utilisation_window = Millis(v * 1e3)
    }),
    variant("utilisation_window_s", 300.0, |c, v| {
        c.utilisation_window = Millis(v * 1e3)
    }),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Job {
    cell: usize,
    contender: Contender,
    variant: Option<usize>,
    seed: u64,
}

impl Job {
    pub(super) fn contest(cell: usize, contender: Contender, seed: u64) -> Self {
        Self {
            cell,
            contender,
            variant: None,
            seed,
        }
    }

    pub(super) fn varied(cell: usize, variant: usize, seed: u64) -> Self {
        Self {
            variant: Some(variant),
            ..Self::contest(cell, Contender::Tail, seed)
        }
    }

    fn config(self, block_tokens: u32) -> FleetConfig {
        let cell = CELLS[self.cell];
        let capacity = Tokens(cell.blocks * u64::from(block_tokens));
        let mut config = FleetConfig::uniform(cell.workers, COST, capacity);
        let (policy, cache, view) = self.contender.setup();
        config.settings = Settings {
            policy,
            ..Settings::default()
        };
        config.cache = cache;
        config.view = view;
        if self.contender == Contender::TailPriority {
            config.order = Order::Edf;
        }
        config.target.ttft = OBJECTIVE;
        config.pace = Pace::Load(cell.load);
        config.seed = self.seed;
        if let Some(variant) = self.variant.and_then(|at| VARIANTS.get(at)) {
            (variant.set)(&mut config, variant.value);
        }
        config
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) mean_ms: f64,
    pub(super) tel_ms: f64,
    pub(super) hit_ratio: f64,
    pub(super) utilisation: f64,
    pub(super) slo_share: f64,
}

impl From<FleetReport> for Figures {
    fn from(report: FleetReport) -> Self {
        Self {
            p50_ms: report.p50_ms,
            p95_ms: report.p95_ms,
            p99_ms: report.p99_ms,
            mean_ms: report.mean_ms,
            tel_ms: report.tel_ms,
            hit_ratio: report.hit_ratio,
            utilisation: report.utilisation,
            slo_share: report.slo_share,
        }
    }
}

pub(super) fn play_all(workload: &Workload, block_tokens: u32, jobs: &[Job]) -> Vec<Figures> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Progress::new(jobs.len() as u64, "runs"), vec![None; jobs.len()]));
    let play = || {
        while let Some((at, job)) = claim(&next, jobs) {
            let figures = Figures::from(fleet::run(workload, &job.config(block_tokens)));
            let mut done = done.lock();
            done.0.step();
            done.1[at] = Some(figures);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(play);
        }
    });
    done.into_inner().1.into_iter().flatten().collect()
}

fn claim<'j>(next: &AtomicUsize, jobs: &'j [Job]) -> Option<(usize, &'j Job)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(at).map(|job| (at, job))
}
