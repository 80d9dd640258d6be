//! The rules by which a simulated fleet's workers rank their blocks, other than those of the LRU family.

use std::sync::Arc;

use policy::slo;
use policy::units::{Millis, Tokens};
use simulator::fleet::{
    CacheRule, FleetConfig, RankedCache, RankedRule, UnknownCacheRule, WorkerSpec, Workload,
};

use super::CacheConfig;
use super::blocks::scored::leased;
use super::blocks::uses::{Upcoming, Uses};

/// All rules.
pub const RULES: [RankedRule; 4] = [
    // Furthest next turn of the trace that uses the block first (hindsight).
    RankedRule {
        name: "belady",
        caches: belady,
    },
    // Blocks that the next use does not miss under the objective, then the furthest next use (hindsight).
    RankedRule {
        name: "to-belady",
        caches: to_belady,
    },
    // Lowest probability of reuse first, by the turn's class, as observed by this worker.
    RankedRule {
        name: "workload-aware",
        caches: workload_aware,
    },
    // Greedy-Dual-Frequency-Size, with the worker's prefill cost.
    RankedRule {
        name: "gdfs",
        caches: gdfs,
    },
];

type Caches = Vec<Box<dyn RankedCache>>;

/// Returns the cache rule of this name: one of the fleet's own, or one of [`RULES`].
///
/// # Errors
/// If there is none.
pub fn cache_rule(name: &str) -> Result<CacheRule, String> {
    match RULES.into_iter().find(|rule| rule.name == name) {
        Some(rule) => Ok(CacheRule::Ranked(rule)),
        None => name.parse().map_err(|unknown: UnknownCacheRule| {
            let names = RULES.map(|rule| rule.name).join(", ");
            format!("{unknown}, {names}")
        }),
    }
}

fn config_of(spec: &WorkerSpec, workload: &Workload) -> CacheConfig {
    CacheConfig {
        block_tokens: workload.block_tokens(),
        ..CacheConfig::new(spec.capacity)
    }
}

fn uses(workload: &Workload) -> Arc<Uses> {
    Arc::new(Uses::new(workload.prompts().map(|prompt| prompt.blocks)))
}

fn belady(workload: &Workload, config: &FleetConfig) -> Caches {
    let uses = uses(workload);
    let cache = |spec| {
        let score = Upcoming::new(Arc::clone(&uses), workload.len(), None);
        leased::hindsight(config_of(spec, workload), score)
    };
    config.workers.iter().map(cache).collect()
}

fn to_belady(workload: &Workload, config: &FleetConfig) -> Caches {
    let uses = uses(workload);
    let cache = |spec| {
        let budgets = budgets(spec, workload, config.target.ttft);
        let score = Upcoming::new(Arc::clone(&uses), workload.len(), Some(budgets));
        leased::hindsight(config_of(spec, workload), score)
    };
    config.workers.iter().map(cache).collect()
}

fn workload_aware(workload: &Workload, config: &FleetConfig) -> Caches {
    let cache = |spec| leased::workload_aware(config_of(spec, workload));
    config.workers.iter().map(cache).collect()
}

fn gdfs(workload: &Workload, config: &FleetConfig) -> Caches {
    let cache = |spec: &WorkerSpec| {
        let linear = spec.cost.alpha_ms_per_token.max(f64::MIN_POSITIVE);
        let attention = spec.cost.gamma_ms_per_token2 / linear;
        leased::gdfs(config_of(spec, workload), attention)
    };
    config.workers.iter().map(cache).collect()
}

/// Returns, by turn, the prompt tokens that this worker must hold for the turn to start within its objective.
fn budgets(spec: &WorkerSpec, workload: &Workload, objective: Millis) -> Vec<Tokens> {
    let budget = workload.prompts().map(|prompt| {
        let objective = prompt.objective.unwrap_or(objective);
        let xi = slo::xi_tokens(&spec.cost, objective, Millis::ZERO, prompt.tokens);
        // A budget rounded up: the cast is the floor of ξ, and saturates.
        prompt.tokens.saturating_sub(Tokens(xi as u64))
    });
    budget.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rules_survive_a_round_trip() {
        for rule in RULES {
            assert_eq!(cache_rule(rule.name), Ok(CacheRule::Ranked(rule)));
            assert_eq!(CacheRule::Ranked(rule).to_string(), rule.name);
        }
        assert_eq!(cache_rule("lru"), Ok(CacheRule::Lru));
        let unknown = cache_rule("mru").unwrap_err();
        assert!(unknown.contains("t-lru") && unknown.contains("gdfs"), "{unknown}");
    }
}
