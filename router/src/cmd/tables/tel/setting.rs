//! The workloads that adaptive ξ is measured on: one worker each, its cost, its objective, and two sizes of its cache.

use anyhow::Context as _;
use policy::cost::PrefillCost;
use policy::ids::ConversationId;
use policy::simulate::fleet::{CacheRule, FleetConfig, Pace, Workload};
use policy::trace::Turn;
use policy::units::{Millis, Tokens};
use serde::Serialize;

use crate::cmd::sim::fleet::BLOCK_TOKENS;
use crate::trace_source::TraceSource;

/// Share of the worker's time that the trace would take without a cache: nobody waits for anybody.
pub(super) const LOAD: f64 = 0.02;

/// A 7B model on one A100, as the T-LRU paper has it.
const A100: PrefillCost = PrefillCost::linear(0.1027, 23.07);
/// A 7B model on one large GPU.
const LARGE: PrefillCost = PrefillCost::linear(0.05, 0.0);

/// Turns of a generated workload.
const TURNS: usize = 4000;
/// Tells the conversations of a second workload from those of the first.
const LATER: u64 = 1 << 40;

/// What comes after what, where the traffic changes: by name.
pub(super) const SHIFTS: [(&str, &str); 5] = [
    ("wildchat", "support"),
    ("support", "wildchat"),
    ("sharegpt", "wildchat"),
    ("wildchat", "documents"),
    ("documents", "support"),
];

/// The setting of this name.
pub(super) fn named(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// A workload, and the worker that it is served by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// `gen:…` with `SEED` for the seed; empty for the trace of the command line, whose arrivals the seed jitters.
    trace: &'static str,
    cost: PrefillCost,
    objective_ms: f64,
    next_prompt: u64,
    block_tokens: u32,
    /// A cache that little of it fits in, and one that most of it does.
    pub(super) capacities: [u64; 2],
}

/// Shared by the generated chats: blocks as engines have them.
const CHAT: Setting = Setting {
    name: "wildchat",
    trace: "gen:wildchat:SEED",
    cost: A100,
    objective_ms: 150.0,
    next_prompt: 200,
    block_tokens: 16,
    capacities: [10_000, 40_000],
};

/// Five generated ones, and the trace.
pub(super) const SETTINGS: [Setting; 6] = [
    CHAT,
    Setting {
        name: "sharegpt",
        trace: "gen:sharegpt:SEED",
        objective_ms: 200.0,
        next_prompt: 100,
        capacities: [10_000, 25_000],
        ..CHAT
    },
    // Few, long-lived conversations with even short prompts.
    Setting {
        name: "support",
        trace: "gen:wildchat:SEED:births_per_s=0.05,gap_s=120,mean_turns=8,rate_shape=3,prompt_mean=150,\
                prompt_sigma=1,response_mean=300,response_sigma=0.7,max_prompt=2000,max_context=16000",
        next_prompt: 150,
        capacities: [20_000, 80_000],
        ..CHAT
    },
    // Whole documents are pasted, turn after turn.
    Setting {
        name: "documents",
        trace: "gen:wildchat:SEED:mean_turns=4,prompt_mean=4000,prompt_sigma=1.2,max_prompt=30000,\
                response_mean=400,response_sigma=0.8,max_context=64000",
        cost: LARGE,
        objective_ms: 500.0,
        next_prompt: 2000,
        // Thousands of smaller ones per document would make this take as long as all the rest.
        block_tokens: 64,
        capacities: [150_000, 1_000_000],
    },
    Setting {
        name: "agents",
        trace: "gen:agentic:SEED",
        cost: LARGE,
        objective_ms: 1000.0,
        next_prompt: 200,
        block_tokens: BLOCK_TOKENS,
        capacities: [2_048_000, 6_144_000],
    },
    Setting {
        name: "mooncake",
        trace: "",
        cost: LARGE,
        objective_ms: 1000.0,
        next_prompt: 200,
        block_tokens: BLOCK_TOKENS,
        capacities: [512_000, 4_096_000],
    },
];

/// A setting as the report names it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Named {
    pub(super) workload: &'static str,
    pub(super) trace: String,
    pub(super) capacity_tokens: u64,
    pub(super) objective_ms: f64,
    pub(super) alpha_ms_per_token: f64,
    pub(super) beta_ms: f64,
    pub(super) next_prompt_tokens: u64,
}

impl Setting {
    /// Whether it is the trace of the command line.
    pub(super) fn is_trace(&self) -> bool {
        self.trace.is_empty()
    }

    /// The turns of a seed.
    pub(super) fn workload(
        &self,
        trace: Option<&TraceSource>,
        seed: u64,
        turns: Option<usize>,
    ) -> anyhow::Result<Workload> {
        let generated;
        let source = match trace {
            Some(trace) if self.is_trace() => trace,
            _ => {
                generated = self.trace.replace("SEED", &seed.to_string()).parse()?;
                &generated
            }
        };
        let limit = turns.or((!self.is_trace()).then_some(TURNS));
        let read = source.read(limit)?;
        let block_tokens = read.block_tokens.unwrap_or(self.block_tokens);
        self.playable(&read.turns, block_tokens)
    }

    /// Turns of another workload's seed, and then as many of this one's; and how many that is.
    pub(super) fn after(
        &self,
        (before, seed_before): (&Self, u64),
        seed: u64,
        turns: Option<usize>,
    ) -> anyhow::Result<(Workload, usize)> {
        let half = turns.unwrap_or(TURNS) / 2;
        let read = |setting: &Self, seed: u64| -> anyhow::Result<Vec<Turn>> {
            let source: TraceSource = setting.trace.replace("SEED", &seed.to_string()).parse()?;
            Ok(source.read(Some(half.max(1)))?.turns)
        };
        let mut joined = read(before, seed_before)?;
        let count = joined.len();
        let end_s = joined.last().map_or(0.0, |turn| turn.ts_s) + 1.0;
        joined.extend(read(self, seed)?.into_iter().map(|turn| Turn {
            ts_s: end_s + turn.ts_s,
            conversation: ConversationId(turn.conversation.0 | LATER),
            ..turn
        }));
        Ok((self.playable(&joined, self.block_tokens)?, count))
    }

    fn playable(&self, turns: &[Turn], block_tokens: u32) -> anyhow::Result<Workload> {
        Workload::new(turns, block_tokens).with_context(|| format!("{} cannot be played", self.name))
    }

    /// One idle worker with a cache of this many tokens that takes `slowness` times as long; arrivals are the same
    /// whatever the slowness.
    pub(super) fn config(&self, capacity: u64, seed: u64, cache: CacheRule, slowness: f64) -> FleetConfig {
        let cost = PrefillCost::linear(
            self.cost.alpha_ms_per_token * slowness,
            self.cost.beta_ms * slowness,
        );
        let mut config = FleetConfig::uniform(1, cost, Tokens(capacity));
        config.cache = cache;
        config.seed = seed;
        config.target.ttft = Millis(self.objective_ms);
        config.target.next_prompt = Tokens(self.next_prompt);
        config.pace = Pace::Load(LOAD * slowness);
        config
    }

    /// ξ fixed where it leaves this multiple of the objective's own free tail.
    pub(super) fn fixed(&self, scale: f64) -> CacheRule {
        if scale <= 0.0 {
            return CacheRule::Lru;
        }
        let xi = self.cost.tokens_within(Millis(self.objective_ms), Tokens::ZERO);
        let next_prompt = self.next_prompt as f64;
        CacheRule::TLruAt(Tokens((next_prompt + scale * (xi - next_prompt)) as u64))
    }

    pub(super) fn named(&self, capacity_tokens: u64) -> Named {
        Named {
            workload: self.name,
            trace: self.trace.to_owned(),
            capacity_tokens,
            objective_ms: self.objective_ms,
            alpha_ms_per_token: self.cost.alpha_ms_per_token,
            beta_ms: self.cost.beta_ms,
            next_prompt_tokens: self.next_prompt,
        }
    }
}
