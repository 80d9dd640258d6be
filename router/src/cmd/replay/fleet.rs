//! The workers that a capture is replayed on: the configuration's, or some that are all alike.

use std::path::PathBuf;
use std::sync::Arc;

use config::{Overrides, Routing};
use lab::simulate::fleet::{CacheRule, Target, WorkerSpec};
use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};

use crate::app::App;
use crate::path::objective::OF_HEADER;
use fleet::Worker;
use fleet::dialect::trims;
use lab::args::{non_negative, positive};
use lab::trace::BLOCK_TOKENS;
use lab::trace_source::Trace;

/// Workers, unless others are given.
const WORKERS: u32 = 4;
/// Blocks of each one's cache.
const CAPACITY_BLOCKS: u64 = 8000;
/// ms per uncached token.
const ALPHA: f64 = 0.05;

/// Which workers.
#[derive(Debug, clap::Args)]
pub(super) struct FleetArgs {
    /// The configuration that `serve` runs: its workers with their costs and caches, its objective, and its [routing]
    /// section to compare with.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "capacity_blocks", "alpha", "beta", "gamma"])]
    config: Option<PathBuf>,
    /// Without a configuration: workers.
    #[arg(long, default_value_t = WORKERS, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Without a configuration: blocks that each worker's cache holds.
    #[arg(long, default_value_t = CAPACITY_BLOCKS)]
    capacity_blocks: u64,
    /// Tokens per block. The capture's own unless given; else the configuration's, or 512.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: Option<u32>,
    /// Without a configuration: α, ms per uncached token.
    #[arg(long, default_value_t = ALPHA, value_parser = positive)]
    alpha: f64,
    /// Without a configuration: β, ms that every turn costs.
    #[arg(long, default_value = "0", value_parser = non_negative)]
    beta: f64,
    /// Without a configuration: γ, ms per uncached token and token of context.
    #[arg(long, default_value = "0", value_parser = non_negative)]
    gamma: f64,
    /// The objective's time to first token, in ms. The configuration's unless given; 1000 without one.
    #[arg(long, value_parser = positive)]
    xi_ms: Option<f64>,
}

/// The workers, and what has to be met.
#[derive(Debug)]
pub struct Fleet {
    /// Their names.
    pub names: Vec<String>,
    /// Settings in force.
    pub(super) routing: Routing,
    /// The objective of turns without a class of their own.
    pub(super) target: Target,
    /// The first one's cost, for what is the same for all.
    pub(super) cost: PrefillCost,
    workers: Workers,
    asked_block_tokens: Option<u32>,
    /// Classes with an objective of their own.
    classes: Vec<config::Class>,
    /// Whether turns keep the objective that their request brought along.
    own_objectives: bool,
    /// Whether the workers are told what they may drop first, and do so.
    trims: bool,
}

#[derive(Debug)]
enum Workers {
    Configured(Vec<config::Worker>),
    Alike { count: usize, blocks: u64 },
}

impl Default for FleetArgs {
    /// What is played on where nothing is said.
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
    /// Reads the configuration, where one is named: the way `serve` reads it, environment included.
    pub(super) fn load(&self) -> anyhow::Result<Fleet> {
        let Some(path) = &self.config else {
            return Ok(self.alike());
        };
        let config = config::load_file(Some(path), crate::cmd::environment(), Overrides::default())?;
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
            // A time on the command line is for all.
            classes: if self.xi_ms.is_some() {
                Vec::new()
            } else {
                config.objective.classes
            },
            own_objectives: self.xi_ms.is_none(),
            // What each of them understands is seen only by asking it.
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
    /// The workers that are given work now, at what they are believed to cost; `None` if there is none.
    #[must_use]
    pub fn live(app: &App) -> Option<Self> {
        let live = |worker: &Arc<Worker>| config::Worker {
            cost: worker.cost(),
            ..worker.spec.clone()
        };
        let ready: Vec<_> = app
            .fleet
            .workers()
            .iter()
            .filter(|worker| worker.is_ready())
            .cloned()
            .collect();
        let hints = &app.config.hints;
        let trim = ready
            .iter()
            .filter(|worker| trims(&*worker.dialect(), hints))
            .count();
        let workers: Vec<_> = ready.iter().map(live).collect();
        let objective = &app.live().objective;
        Some(Self {
            names: workers.iter().map(|worker| worker.name.clone()).collect(),
            routing: app.config.routing.clone(),
            target: Target {
                ttft: objective.ttft,
                share: objective.share,
                next_prompt: app.next_prompt(),
            },
            cost: workers.first()?.cost,
            workers: Workers::Configured(workers),
            asked_block_tokens: None,
            classes: objective.classes.clone(),
            own_objectives: true,
            // The simulated workers are all alike in this.
            trims: 2 * trim > ready.len(),
        })
    }

    /// What a turn of this class has to meet: its class's time, or the one that its request brought along.
    fn objective(&self, class: &str, captured: Option<Millis>) -> Millis {
        let own = self.classes.iter().find(|known| known.name == class);
        let brought = captured.filter(|_| self.own_objectives && class == OF_HEADER);
        own.map(|class| class.ttft)
            .or(brought)
            .unwrap_or(self.target.ttft)
    }

    /// What the turn at this place of a trace has to meet.
    pub(super) fn objective_of(&self, trace: &Trace, at: usize) -> Millis {
        let Some(turn) = trace.turns.get(at) else {
            return self.target.ttft;
        };
        let class = trace.classes.get(usize::from(turn.class.0));
        self.objective(class.map_or("", String::as_str), turn.captured.objective)
    }

    /// What the workers drop first, unless somebody wants to know of something else.
    pub(super) fn cache(&self) -> CacheRule {
        if self.trims {
            CacheRule::Tail
        } else {
            CacheRule::Lru
        }
    }

    /// Tokens per block of a capture that names blocks of `named` tokens.
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

    /// The workers, as the simulator takes them.
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
