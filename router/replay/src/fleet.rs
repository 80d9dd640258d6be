//! The workers that a capture is replayed on: those of the configuration, or identical ones.

use std::path::PathBuf;
use std::sync::Arc;

use config::{Overrides, Routing};
use lab::simulate::fleet::{CacheRule, Target, WorkerSpec};
use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};

use config::OF_HEADER;
use fleet::Worker;
use fleet::dialect::trims;
use lab::args::{non_negative, positive};
use lab::trace::BLOCK_TOKENS;
use lab::trace_source::Trace;
use state::State;

/// Default number of workers.
const WORKERS: u32 = 4;
/// Default blocks of each cache.
const CAPACITY_BLOCKS: u64 = 8000;
/// Default ms per uncached token.
const ALPHA: f64 = 0.05;

/// Options for the workers.
#[derive(Debug, clap::Args)]
pub(super) struct FleetArgs {
    /// The configuration that `serve` runs: its workers with their costs and caches, its objective, and its [routing]
    /// section to compare with.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "capacity_blocks", "alpha", "beta", "gamma"])]
    config: Option<PathBuf>,
    /// Number of workers, without a configuration.
    #[arg(long, default_value_t = WORKERS, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Blocks that each worker's cache holds, without a configuration.
    #[arg(long, default_value_t = CAPACITY_BLOCKS)]
    capacity_blocks: u64,
    /// Tokens per block; the default is the capture's own, else the configuration's, or 512.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: Option<u32>,
    /// α without a configuration, in ms per uncached token.
    #[arg(long, default_value_t = ALPHA, value_parser = positive)]
    alpha: f64,
    /// β without a configuration, in ms per turn.
    #[arg(long, default_value = "0", value_parser = non_negative)]
    beta: f64,
    /// γ without a configuration, in ms per uncached token and token of context.
    #[arg(long, default_value = "0", value_parser = non_negative)]
    gamma: f64,
    /// Time to first token of the objective, in ms; the default is the configuration's, or 1000 without one.
    #[arg(long, value_parser = positive)]
    xi_ms: Option<f64>,
}

/// Simulated workers, and the objective.
#[derive(Debug)]
pub struct Fleet {
    /// Names of the workers.
    pub names: Vec<String>,
    pub(super) routing: Routing,
    /// Objective of turns without a class of their own.
    pub(super) target: Target,
    /// Cost of the first worker, for values common to all.
    pub(super) cost: PrefillCost,
    workers: Workers,
    asked_block_tokens: Option<u32>,
    /// Classes with an objective of their own.
    classes: Vec<config::Class>,
    /// Whether turns keep the objective of their request.
    own_objectives: bool,
    /// Whether the workers follow hints.
    trims: bool,
}

#[derive(Debug)]
enum Workers {
    Configured(Vec<config::Worker>),
    Alike { count: usize, blocks: u64 },
}

impl Default for FleetArgs {
    /// Returns the defaults of the command line.
    fn default() -> Self {
        Self {
            config: None,
            workers: WORKERS,
            capacity_blocks: CAPACITY_BLOCKS,
            block_tokens: None,
            alpha: ALPHA,
            beta: 0.0,
            gamma: 0.0,
            xi_ms: None,
        }
    }
}

impl FleetArgs {
    /// Reads the configuration, if one is named, as `serve` does, including the environment.
    pub(super) fn load(&self) -> anyhow::Result<Fleet> {
        let Some(path) = &self.config else {
            return Ok(self.alike());
        };
        let config = config::load_file(Some(path), config::environment(), Overrides::default())?;
        let objective = &config.objective;
        Ok(Fleet {
            names: config.workers.iter().map(|worker| worker.name.clone()).collect(),
            target: Target {
                ttft: self.xi_ms.map_or(objective.ttft, Millis),
                share: objective.share,
                next_prompt: objective.next_prompt,
            },
            cost: config.workers.first().map_or(self.cost(), |worker| worker.cost),
            routing: config.routing,
            workers: Workers::Configured(config.workers),
            asked_block_tokens: self.block_tokens,
            // A time on the command line applies to all classes.
            classes: if self.xi_ms.is_some() {
                Vec::new()
            } else {
                config.objective.classes
            },
            own_objectives: self.xi_ms.is_none(),
            // Each worker's dialect is known only from probing it.
            trims: config.hints.enabled,
        })
    }

    fn cost(&self) -> PrefillCost {
        PrefillCost {
            gamma_ms_per_token2: self.gamma,
            ..PrefillCost::linear(self.alpha, self.beta)
        }
    }

    fn alike(&self) -> Fleet {
        let count = self.workers as usize;
        Fleet {
            names: (0..count).map(|at| at.to_string()).collect(),
            routing: Routing::default(),
            target: Target {
                ttft: Millis(self.xi_ms.unwrap_or(1000.0)),
                share: 0.95,
                next_prompt: Tokens(200),
            },
            cost: self.cost(),
            workers: Workers::Alike {
                count,
                blocks: self.capacity_blocks,
            },
            asked_block_tokens: self.block_tokens,
            classes: Vec::new(),
            own_objectives: self.xi_ms.is_none(),
            trims: true,
        }
    }
}

impl Fleet {
    /// Returns the ready workers with their costs in force; `None` if there is none.
    #[must_use]
    pub fn live(state: &State) -> Option<Self> {
        let live = |worker: &Arc<Worker>| config::Worker {
            cost: worker.cost(),
            ..worker.spec.clone()
        };
        let ready: Vec<_> = state
            .fleet
            .workers()
            .iter()
            .filter(|worker| worker.is_ready())
            .cloned()
            .collect();
        let hints = &state.config.hints;
        let trim = ready
            .iter()
            .filter(|worker| trims(&*worker.dialect(), hints))
            .count();
        let workers: Vec<_> = ready.iter().map(live).collect();
        let objective = &state.live().objective;
        Some(Self {
            names: workers.iter().map(|worker| worker.name.clone()).collect(),
            routing: state.config.routing.clone(),
            target: Target {
                ttft: objective.ttft,
                share: objective.share,
                next_prompt: state.next_prompt(),
            },
            cost: workers.first()?.cost,
            workers: Workers::Configured(workers),
            asked_block_tokens: None,
            classes: objective.classes.clone(),
            own_objectives: true,
            // The simulated workers all behave alike in this.
            trims: 2 * trim > ready.len(),
        })
    }

    /// Returns the objective of a turn of this class: that of the class, or that of the request.
    fn objective(&self, class: &str, captured: Option<Millis>) -> Millis {
        let own = self.classes.iter().find(|known| known.name == class);
        let brought = captured.filter(|_| self.own_objectives && class == OF_HEADER);
        own.map(|class| class.ttft)
            .or(brought)
            .unwrap_or(self.target.ttft)
    }

    /// Returns the objective of the turn at this index of a trace.
    pub(super) fn objective_of(&self, trace: &Trace, at: usize) -> Millis {
        let Some(turn) = trace.turns.get(at) else {
            return self.target.ttft;
        };
        let class = trace.classes.get(usize::from(turn.class.0));
        self.objective(class.map_or("", String::as_str), turn.captured.objective)
    }

    /// Returns the default eviction order of the caches.
    pub(super) fn cache(&self) -> CacheRule {
        if self.trims {
            CacheRule::Tail
        } else {
            CacheRule::Lru
        }
    }

    /// Returns the tokens per block for a capture with blocks of `named` tokens.
    pub(super) fn block_tokens(&self, named: Option<u32>) -> u32 {
        let configured = match &self.workers {
            Workers::Configured(workers) => workers.first().map(|worker| worker.block_size),
            Workers::Alike { .. } => None,
        };
        self.asked_block_tokens
            .or(named)
            .or(configured)
            .unwrap_or(BLOCK_TOKENS)
    }

    /// Returns the workers in the simulator's form.
    pub(super) fn specs(&self, block_tokens: u32) -> Vec<WorkerSpec> {
        match &self.workers {
            Workers::Configured(workers) => workers
                .iter()
                .map(|worker| WorkerSpec {
                    cost: worker.cost,
                    capacity: worker.capacity,
                })
                .collect(),
            Workers::Alike { count, blocks } => {
                let capacity = Tokens(blocks.saturating_mul(u64::from(block_tokens)));
                let cost = self.cost;
                vec![WorkerSpec { cost, capacity }; *count]
            }
        }
    }
}
