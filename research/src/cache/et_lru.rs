//! Expected-Tail-Optimized LRU: T-LRU for prompts of uncertain length.
//!
//! Conversation `i` sends the next turn with a probability proportional to its hazard `λᵢ·πᵢ(t)`, and the token at the
//! end of its `Xᵢ` resident ones spares a token of excess iff `Q ≥ ξ − (Lᵢ − Xᵢ)`. So evict, one token at a time, from
//! the conversation that minimises (paper, Policy 2 and Definition 1)
//!
//! ```text
//! vᵢ = λᵢ · e^{−μ·age} · ( P(Q ≥ ξ − (Lᵢ − Xᵢ)) + ε )
//! ```
//!
//! As tokens are evicted, the next one is worth more, so the greedy choice minimises expected TEL at the next turn, and
//! under the paper's stochastic model over any horizon (Theorem 2; with forced caching only at equal rates, see
//! `research/tests/stochastic_model.rs`). With equal hazards and a known `Q` it is T-LRU.
//!
//! # Gaps in the paper, and the choices made
//! - *ε*: with ε = 0 all tokens that cannot matter for TEL tie, at the expense of the mean. ε > 0 keeps their hazard in
//!   the order. The default, 0.1, is a compromise: see `docs/cache-policies.md`.
//! - *λ*: the paper has a known rate per conversation. Here it is the hazard `λ_c` of the turn's class (traffic class
//!   and turn number), by default ([`Hazards`]) corrected by the conversation's own returns: `(k + n)/(k/λ_c + T)`
//!   after `n` of them in a time `T`, the posterior mean under a gamma prior of shape `k`.
//! - *μ*: one decay for all, learned as 4/3 of the inverse mean gap unless given. Then the order of any two untouched
//!   conversations never changes, and can be stored: `ln λ + ∫μ dt + ln(P + ε)`, the integral up to the last turn.
//!   (With `μ·t_last`, every correction of μ would move old conversations past new ones.)
//! - *P*: learned from the prompts, as a step function ([`super::survival`]).
//!
//! Between two steps of `P` all tokens of a conversation have the same value and are evicted together. A turn costs
//! O(log n), and so does each step that a conversation passes, at most once after each of its turns. Ranks are computed
//! when a conversation is touched or cut, and not updated when the estimates change.

use std::collections::BTreeSet;

use super::lengths::{Lengths, SlotId};
use super::ranked::Rank;
use super::returns::Returns;
use super::survival::{LearnedSurvival, Survival};
use super::{CacheConfig, CachePolicy, Served, residency_of};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

/// μ in inverse mean gaps. More than one: a silent conversation is likelier to be over, and also likelier to be slow.
const DECAY_PER_GAP: f64 = 4.0 / 3.0;

/// Turn numbers told apart within a traffic class: first, second, third, fourth and later.
const TURN_CLASSES: u32 = 4;

/// The source of the hazard λᵢ.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Hazards {
    /// Equal hazards.
    Equal,
    /// The hazard of the turn class (traffic class and turn number), learned from all conversations' returns.
    TurnClass,
    /// The conversation's own hazard: that of its turn class, corrected by its own returns.
    #[default]
    Conversation,
    /// Given, by the number of the conversation.
    Known(Vec<f64>),
}

/// Options of ET-LRU.
#[derive(Clone, Debug, PartialEq)]
pub struct EtLruOptions {
    /// ε: weight of the mean.
    pub epsilon: f64,
    /// μ per second; learned when `None`.
    pub decay_per_s: Option<f64>,
    /// Length of next prompts; learned when `None`.
    pub prompts: Option<Survival>,
    /// The source of the hazards.
    pub hazards: Hazards,
}

impl Default for EtLruOptions {
    fn default() -> Self {
        Self {
            epsilon: 0.1,
            decay_per_s: None,
            prompts: None,
            hazards: Hazards::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    length: u64,
    /// `ln λᵢ + ∫μ dt`.
    weight: f64,
    rank: Rank,
    served: u64,
}

/// Expected-Tail-Optimized LRU.
#[derive(Clone, Debug)]
pub struct EtLru {
    lengths: Lengths,
    config: CacheConfig,
    excess: ExpectedExcess,
    order: BTreeSet<(Rank, u64, SlotId)>,
    states: Vec<Standing>,
    served: u64,
}

/// The value of tokens, from the learned prompt lengths and returns.
#[derive(Clone, Debug)]
pub(super) struct ExpectedExcess {
    xi_tokens: f64,
    options: EtLruOptions,
    learned: LearnedSurvival,
    returns: Returns,
    now: Millis,
    /// ∫ μ dt up to `now`.
    clock: f64,
}

impl ExpectedExcess {
    pub(super) fn new(config: &CacheConfig, options: EtLruOptions) -> Self {
        Self {
            xi_tokens: config.xi_tokens,
            learned: LearnedSurvival::new(config.next_prompt.as_f64()),
            returns: Returns::default(),
            now: Millis::ZERO,
            clock: 0.0,
            options,
        }
    }

    fn prompts(&self) -> &Survival {
        self.options
            .prompts
            .as_ref()
            .unwrap_or_else(|| self.learned.current())
    }

    /// Returns `ln vᵢ` of the last of `resident` tokens, and the number of tokens at which the value rises next.
    pub(super) fn value(&self, weight: f64, length: u64, resident: u64) -> (f64, u64) {
        let z = self.xi_tokens - (length - resident) as f64;
        let (probability, change) = self.prompts().level(z);
        let alike = change.map_or(resident, |edge| {
            ((z - edge).ceil() as u64).clamp(1, resident.max(1))
        });
        (weight + (probability + self.options.epsilon).ln(), alike)
    }

    /// Learns from a turn, and returns `ln λᵢ + ∫μ dt` of its conversation.
    pub(super) fn learn(&mut self, turn: &Served) -> f64 {
        if self.options.prompts.is_none() && turn.turn > 0 {
            self.learned.observe(turn.prompt.0);
        }
        let are_learned = matches!(self.options.hazards, Hazards::TurnClass | Hazards::Conversation);
        let class = if are_learned {
            turn.class.index() * TURN_CLASSES as usize + turn.turn.min(TURN_CLASSES - 1) as usize
        } else {
            turn.class.index()
        };
        if are_learned || self.options.decay_per_s.is_none() {
            self.returns.observe(turn.conversation, class, turn.at);
        }
        let hazard = match &self.options.hazards {
            Hazards::Equal => 1.0,
            Hazards::TurnClass => self.returns.hazard(class),
            Hazards::Conversation => self.returns.own_hazard(turn.conversation, class),
            Hazards::Known(rates) => rates.get(turn.conversation.0 as usize).copied().unwrap_or(0.0),
        };
        let learned = || {
            self.returns
                .overall_gap_ms()
                .map_or(0.0, |gap| DECAY_PER_GAP / gap)
        };
        let decay_per_ms = self.options.decay_per_s.map_or_else(learned, |per_s| per_s / 1e3);
        // Integrated, so that a corrected estimate changes all ages equally.
        self.clock += decay_per_ms * turn.at.saturating_sub(self.now).0;
        self.now = self.now.max(turn.at);
        hazard.ln() + self.clock
    }
}

impl EtLru {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig, options: EtLruOptions) -> Self {
        Self {
            lengths: Lengths::new(&config),
            excess: ExpectedExcess::new(&config, options),
            order: BTreeSet::new(),
            states: Vec::new(),
            served: 0,
            config,
        }
    }

    /// Returns the rank of the slot's last token, and how many tokens share it.
    fn rank(&self, slot: SlotId) -> (Rank, u64) {
        let standing = self.states[slot as usize];
        let resident = self.lengths.resident_at(slot);
        let (value, alike) = self.excess.value(standing.weight, standing.length, resident);
        (Rank::of(value), alike)
    }

    fn enlist(&mut self, slot: SlotId) {
        let (rank, _) = self.rank(slot);
        let standing = &mut self.states[slot as usize];
        standing.rank = rank;
        self.order.insert((rank, standing.served, slot));
    }

    fn delist(&mut self, slot: SlotId) {
        if let Some(standing) = self.states.get(slot as usize) {
            self.order.remove(&(standing.rank, standing.served, slot));
        }
    }

    fn evict(&mut self) {
        while !self.lengths.fits() {
            let Some((_, _, slot)) = self.order.pop_first() else {
                return;
            };
            let (_, alike) = self.rank(slot);
            let block = self.config.block();
            let keep = self
                .lengths
                .resident_at(slot)
                .saturating_sub(alike.div_ceil(block) * block);
            let gone = keep == 0 && self.lengths.resident_at(slot) <= self.lengths.excess();
            self.lengths.cut_excess(slot, keep);
            if !gone {
                self.enlist(slot);
            }
        }
    }
}

impl CachePolicy for EtLru {
    residency_of!(lengths);

    fn served(&mut self, turn: &Served) {
        let weight = self.excess.learn(turn);
        if let Some(slot) = self.lengths.slot(turn.conversation) {
            self.delist(slot);
        }
        self.served += 1;
        let Some(slot) = self.lengths.touch(turn.conversation, turn.length) else {
            return;
        };
        let standing = Standing {
            length: turn.length.0,
            weight,
            rank: Rank::of(0.0),
            served: self.served,
        };
        if self.states.len() <= slot as usize {
            self.states.resize(slot as usize + 1, standing);
        }
        self.states[slot as usize] = standing;
        if !self.config.forced {
            self.enlist(slot);
        }
        self.evict();
        if self.config.forced {
            // No other conversation has anything left to evict.
            let keep = self
                .lengths
                .resident_at(slot)
                .saturating_sub(self.lengths.excess());
            self.lengths.cut(slot, keep);
            if keep > 0 {
                self.enlist(slot);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        self.lengths.check()?;
        let (resident, ranked) = (self.lengths.len(), self.order.len());
        if resident == ranked {
            Ok(())
        } else {
            Err(format!("{resident} resident, {ranked} ranked"))
        }
    }
}
