//! The workers that a capture is replayed on: the captured, configured or running ones, or identical ones.

use std::path::PathBuf;

use config::{Config, HintRule, OF_HEADER, Overrides, Routing};
use policy::cost::PrefillCost;
use policy::fleet_record::FleetRecord;
use policy::route::Settings;
use policy::units::{Millis, Tokens};
use simulator::args::{non_negative, positive};
use simulator::fleet::{CacheRule, Target, WorkerSpec};
use simulator::trace::BLOCK_TOKENS;
use simulator::trace_source::Trace;
use state::State;

use super::costs::{CostsFrom, SimWorker};

const WORKERS: u32 = 4;
/// Default number of blocks of each cache.
const CAPACITY_BLOCKS: u64 = 8000;
/// Default α, in milliseconds per uncached token.
const ALPHA: f64 = 0.05;

/// Options for the workers.
#[derive(Debug, Default, clap::Args)]
pub(super) struct FleetArgs {
    /// The configuration that `serve` runs: its workers, with their calibration and caches, and its objectives. Without
    /// it, the workers are those that the capture recorded.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "capacity_blocks", "alpha", "beta", "gamma"])]
    config: Option<PathBuf>,
    /// Number of identical workers to simulate in place of the captured ones; 4 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Option<u32>,
    /// Blocks that the cache of an identical worker holds; 8000 by default.
    #[arg(long)]
    capacity_blocks: Option<u64>,
    /// Tokens per block; the default is the capture's own, else the configuration's, or 512.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: Option<u32>,
    /// α of identical workers, in ms per uncached token; 0.05 by default.
    #[arg(long, value_parser = positive)]
    alpha: Option<f64>,
    /// β of identical workers, in ms per turn; 0 by default.
    #[arg(long, value_parser = non_negative)]
    beta: Option<f64>,
    /// γ of identical workers, in ms per uncached token and token of context; 0 by default.
    #[arg(long, value_parser = non_negative)]
    gamma: Option<f64>,
    /// Time to first token of the objective, in ms; the default is the configuration's, else the captured one, or 1000.
    #[arg(long, value_parser = positive)]
    xi_ms: Option<f64>,
}

/// Simulated workers, their objective, and the policy to compare with.
#[derive(Debug)]
pub struct ReplayFleet {
    pub(super) workers: Vec<SimWorker>,
    pub(super) settings: Settings,
    pub(super) utilisation_window: Millis,
    /// Time since which `settings` are in force, on the clock of the captured turns.
    pub(super) settings_since_s: f64,
    /// Objective of turns without a class of their own.
    pub(super) target: Target,
    block_tokens: Option<u32>,
    asked_block_tokens: Option<u32>,
    /// Classes with an objective of their own.
    classes: Vec<config::Class>,
    own_objectives: OwnObjectives,
    /// Whether the workers follow hints.
    follows_hints: bool,
    /// Rule of the hints.
    hint_rule: HintRule,
}

/// The settings of a play.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// Policy and weights.
    pub(super) settings: Settings,
    /// Window over which utilisation is measured.
    pub(super) utilisation_window: Millis,
    /// Eviction order of the workers' caches.
    pub(super) cache: CacheRule,
}

/// Turns that keep their captured objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnObjectives {
    None,
    /// Turns whose request named the objective.
    OfHeader,
    All,
}

impl FleetArgs {
    /// Reads the configuration, if one is named, as `serve` does, including the environment.
    pub(super) fn config(&self) -> anyhow::Result<Option<Config>> {
        let path = self.config.as_ref();
        let load = |path| config::load_file(Some(path), config::environment(), Overrides::default());
        Ok(path.map(|path| load(path)).transpose()?)
    }

    /// Returns the workers to simulate for a trace.
    pub(super) fn fleet(&self, config: Option<Config>, trace: &Trace) -> ReplayFleet {
        let mut fleet = match (config, &trace.fleet) {
            (Some(config), captured) => ReplayFleet::configured(config, captured.as_ref()),
            (None, Some(captured)) if !self.are_alike() => ReplayFleet {
                own_objectives: OwnObjectives::All,
                ..ReplayFleet::recorded(captured, CostsFrom::Capture)
            },
            (None, captured) => self.alike(trace.block_tokens, captured.as_ref()),
        };
        fleet.asked_block_tokens = self.block_tokens;
        // A time on the command line applies to all classes.
        if let Some(ms) = self.xi_ms {
            fleet.target.ttft = Millis(ms);
            fleet.classes = Vec::new();
            fleet.own_objectives = OwnObjectives::None;
        }
        fleet
    }

    fn are_alike(&self) -> bool {
        let numbers = [self.alpha, self.beta, self.gamma];
        self.workers.is_some() || self.capacity_blocks.is_some() || numbers.iter().any(Option::is_some)
    }

    fn alike(&self, named: Option<u32>, captured: Option<&FleetRecord>) -> ReplayFleet {
        let block_tokens = self.block_tokens.or(named).unwrap_or(BLOCK_TOKENS);
        let blocks = self.capacity_blocks.unwrap_or(CAPACITY_BLOCKS);
        let worker = |at: u32| SimWorker {
            name: at.to_string(),
            cost: PrefillCost {
                gamma_ms_per_token2: self.gamma.unwrap_or(0.0),
                ..PrefillCost::linear(self.alpha.unwrap_or(ALPHA), self.beta.unwrap_or(0.0))
            },
            overhead_ms: Millis::ZERO,
            capacity_tokens: Tokens(blocks.saturating_mul(u64::from(block_tokens))),
            costs_from: if self.are_alike() {
                CostsFrom::Options
            } else {
                CostsFrom::Assumed
            },
            cost_source: None,
        };
        let routing = Routing::default();
        let fleet = ReplayFleet {
            workers: Vec::new(),
            settings: routing.settings(),
            utilisation_window: routing.utilisation_window,
            settings_since_s: 0.0,
            target: Target {
                ttft: Millis(1000.0),
                share: 0.95,
                next_prompt: Tokens(200),
            },
            block_tokens: None,
            asked_block_tokens: None,
            classes: Vec::new(),
            own_objectives: OwnObjectives::OfHeader,
            follows_hints: true,
            hint_rule: HintRule::default(),
        };
        ReplayFleet {
            workers: (0..self.workers.unwrap_or(WORKERS)).map(worker).collect(),
            ..captured.map_or(fleet, |captured| {
                ReplayFleet::recorded(captured, CostsFrom::Capture)
            })
        }
    }
}

impl ReplayFleet {
    /// Returns the ready workers with their costs in force; `None` if no worker is ready.
    #[must_use]
    pub fn live(state: &State) -> Option<Self> {
        let record = state.routing.ready_fleet()?;
        Some(Self {
            classes: state.routing.live().objective.classes.clone(),
            ..Self::recorded(&record, CostsFrom::Router)
        })
    }

    #[must_use]
    pub fn size(&self) -> usize {
        self.workers.len()
    }

    fn recorded(record: &FleetRecord, costs_from: CostsFrom) -> Self {
        let worker = |worker| SimWorker::of(worker, costs_from);
        Self {
            workers: record.workers.iter().map(worker).collect(),
            settings: record.settings.clone(),
            utilisation_window: record.utilisation_window_ms,
            settings_since_s: record.settings_since_s,
            target: Target {
                ttft: record.objective_ms,
                share: record.objective_share,
                next_prompt: record.next_prompt_tokens,
            },
            block_tokens: None,
            asked_block_tokens: None,
            classes: Vec::new(),
            own_objectives: OwnObjectives::OfHeader,
            follows_hints: record.follows_hints,
            hint_rule: record.hint_rule,
        }
    }

    /// Returns the workers of a configuration. Costs and capacities that it does not set are the captured ones of the
    /// worker of this name. Workers that it does not list, because it discovers them, are the captured ones.
    fn configured(config: Config, captured: Option<&FleetRecord>) -> Self {
        let objective = config.objective;
        let worker = |worker: &config::Worker| {
            let found = captured.and_then(|fleet| fleet.workers.iter().find(|one| one.name == worker.name));
            let mut sim = found.map_or_else(
                || SimWorker {
                    name: worker.name.clone(),
                    cost: worker.cost,
                    overhead_ms: Millis::ZERO,
                    capacity_tokens: worker.capacity,
                    costs_from: CostsFrom::Assumed,
                    cost_source: None,
                },
                |found| SimWorker::of(found, CostsFrom::Capture),
            );
            if worker.cost_is_known {
                (sim.cost, sim.costs_from, sim.cost_source) = (worker.cost, CostsFrom::Configuration, None);
            }
            if worker.capacity_is_known {
                sim.capacity_tokens = worker.capacity;
            }
            sim
        };
        let listed: Vec<_> = config.workers.iter().map(worker).collect();
        let of_capture = captured.map(|captured| Self::recorded(captured, CostsFrom::Capture));
        let mut fleet = Self {
            workers: listed,
            settings: config.routing.settings(),
            utilisation_window: config.routing.utilisation_window,
            settings_since_s: 0.0,
            target: Target {
                ttft: objective.ttft,
                share: objective.share,
                next_prompt: objective.next_prompt,
            },
            block_tokens: config.workers.first().map(|worker| worker.block_size),
            asked_block_tokens: None,
            classes: objective.classes,
            own_objectives: OwnObjectives::OfHeader,
            // Each worker's dialect is known only from probing it.
            follows_hints: true,
            hint_rule: config.hints.rule,
        };
        if let Some(captured) = of_capture {
            fleet.settings = captured.settings;
            fleet.utilisation_window = captured.utilisation_window;
            fleet.settings_since_s = captured.settings_since_s;
            fleet.target.next_prompt = captured.target.next_prompt;
            (fleet.follows_hints, fleet.hint_rule) = (captured.follows_hints, captured.hint_rule);
            if fleet.workers.is_empty() {
                fleet.workers = captured.workers;
            }
        }
        fleet
    }

    /// Returns the objective of the turn at this index of a trace: that of its class, or its own.
    pub(super) fn objective_of(&self, trace: &Trace, at: usize) -> Millis {
        let Some(turn) = trace.turns.get(at) else {
            return self.target.ttft;
        };
        let class = trace.classes.get(usize::from(turn.class.0));
        let class = class.map_or("", String::as_str);
        let of_class = self.classes.iter().find(|known| known.name == class);
        let brought = turn.captured.objective.filter(|_| match self.own_objectives {
            OwnObjectives::None => false,
            OwnObjectives::OfHeader => class == OF_HEADER,
            OwnObjectives::All => true,
        });
        of_class
            .map(|class| class.ttft)
            .or(brought)
            .unwrap_or(self.target.ttft)
    }

    pub(super) fn in_force(&self) -> Tried {
        Tried {
            settings: self.settings.clone(),
            utilisation_window: self.utilisation_window,
            cache: self.cache_under(self.hint_rule),
        }
    }

    /// Returns what the workers evict first under a rule of hints.
    pub(super) fn cache_under(&self, rule: HintRule) -> CacheRule {
        match rule {
            _ if !self.follows_hints => CacheRule::Lru,
            HintRule::QueueAware => CacheRule::Tail,
            HintRule::TLru => CacheRule::AdaptiveTLru,
            HintRule::Both => CacheRule::Both,
            HintRule::Off => CacheRule::Lru,
        }
    }

    /// Returns the tokens per block for a capture with blocks of `named` tokens.
    pub(super) fn block_tokens(&self, named: Option<u32>) -> u32 {
        let asked = self.asked_block_tokens.or(named).or(self.block_tokens);
        asked.unwrap_or(BLOCK_TOKENS)
    }

    pub(super) fn specs(&self) -> Vec<WorkerSpec> {
        self.workers.iter().map(SimWorker::spec).collect()
    }

    pub(super) fn name(&self, worker: usize) -> String {
        let known = self.workers.get(worker);
        known.map_or_else(|| worker.to_string(), |worker| worker.name.clone())
    }

    /// Returns whether the workers are to be those that served the captured turns.
    pub(super) fn is_of_capture(&self) -> bool {
        !self
            .workers
            .iter()
            .any(|worker| worker.costs_from == CostsFrom::Options)
    }
}
