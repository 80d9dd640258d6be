//! FLOP-aware eviction and sparing admission, for hybrid models (Marconi: Pan et al., MLSys 2025).
//!
//! A hybrid model's recurrent layers keep one state of fixed size, updated in place: it cannot be cut back to a shorter
//! prefix. So a cached sequence can be resumed only exactly where a state was saved, and every saved state costs
//! memory, however short its prefix: it counts into the capacity, as so many tokens. Marconi answers with
//!
//! - *admission by speculative insertion*: save at most two states of a sequence, at the point where it branches off
//!   what is cached already, and at its last token. Others would never be hit;
//! - *eviction by utility*, `S = recency + w · FLOPs saved per byte`, with `w` tuned from the workload.
//!
//! Private conversations never branch, so one state is admitted per conversation, at its end; a turn whose history is
//! not exactly what was cached, or more, resumes nothing. Where prompts share blocks, [`super::blocks::hybrid`] admits
//! both states, and shares what is in this file: the utility and its tuning.
//!
//! # What the source leaves open, and the reading taken
//! - *Recency* is `∫dt/τ` up to the last turn, with τ the mean gap of returns: a rank that does not change while nothing
//!   is touched, so that the order can be kept, O(log n), where normalising over all candidates would rescan them.
//! - *FLOPs per byte* of a prefix of `L` tokens are `(L + γ·L²/2) / (L + S)`, in units of one token's linear FLOPs and
//!   its KV bytes: `γ` is attention's share, `S` the state in tokens' worth of KV. Divided by its value at the mean
//!   length, so that `w` has no unit.
//! - *Tuning*: turns of a window are recorded, replayed under each `w` of a grid, and the one that saves most tokens is
//!   kept until the next window, four times as long. A window's replay is bounded, and paid by its turns.

use rustc_hash::FxHashMap;

use super::ranked::Ranked;
use super::returns::Returns;
use super::{CacheConfig, CachePolicy, Served};
use crate::ids::ConversationId;
use crate::units::{Millis, Tokens};

/// Weights tried.
const GRID: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Turns of the first window, and of the longest.
const WINDOW: (usize, usize) = (256, 16_384);

/// The model, and how eviction weighs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopAwareOptions {
    /// γ: quadratic FLOPs of a token of context, in one token's linear FLOPs.
    pub attention: f64,
    /// S: bytes of a recurrent state, in one token's KV bytes.
    pub state_tokens: f64,
    /// w; tuned when `None`.
    pub weight: Option<f64>,
}

impl Default for FlopAwareOptions {
    /// A 7B hybrid: four attention layers in thirty-two, states worth a thousand tokens of their KV.
    fn default() -> Self {
        Self {
            attention: 5e-5,
            state_tokens: 1000.0,
            weight: None,
        }
    }
}

/// S of what is touched now: recency + w · FLOPs saved per byte, both kept from the turns.
#[derive(Clone, Debug)]
pub(super) struct Utility {
    options: FlopAwareOptions,
    weight: f64,
    returns: Returns,
    mean_length: f64,
    turns: f64,
    now: Millis,
    /// Mean gaps passed up to `now`.
    recency: f64,
}

impl Utility {
    pub(super) fn new(options: FlopAwareOptions) -> Self {
        Self {
            options,
            weight: options.weight.unwrap_or(1.0),
            returns: Returns::default(),
            mean_length: 0.0,
            turns: 0.0,
            now: Millis::ZERO,
            recency: 0.0,
        }
    }

    pub(super) fn weight(&self) -> f64 {
        self.weight
    }

    pub(super) fn state_tokens(&self) -> Tokens {
        Tokens(self.options.state_tokens as u64)
    }

    pub(super) fn learn(&mut self, turn: &Served) {
        self.turns += 1.0;
        self.mean_length += (turn.length.as_f64() - self.mean_length) / self.turns.min(1000.0);
        self.returns
            .observe(turn.conversation, turn.class.index(), turn.at);
        // Integrated, so that a corrected gap changes the recency of all alike.
        let gap_ms = self
            .returns
            .overall_gap_ms()
            .map_or(f64::INFINITY, |gap| gap.max(1e-6));
        self.recency += turn.at.saturating_sub(self.now).0 / gap_ms;
        self.now = self.now.max(turn.at);
    }

    fn flops_per_byte(&self, length: f64) -> f64 {
        (length + self.options.attention * length * length / 2.0)
            / (length + self.options.state_tokens).max(1.0)
    }

    /// Of a state after `length` tokens, at the last turn learned.
    pub(super) fn of(&self, length: Tokens) -> f64 {
        let usual = self.flops_per_byte(self.mean_length).max(1e-9);
        self.recency + self.weight * self.flops_per_byte(length.as_f64()) / usual
    }
}

/// The turns of a window, to be replayed under every weight. Nothing is recorded where the weight is given.
#[derive(Clone, Debug)]
pub(super) struct Window<T> {
    records: Vec<T>,
    turns: usize,
    /// What the records weigh, for a bound on their memory.
    size: usize,
    /// What was known when the window began: a gap learned from a window alone is too short, and a weight tuned to it
    /// too great.
    start: Utility,
}

/// Most that a window's records may weigh, in blocks.
const WINDOW_SIZE: usize = 1 << 20;

impl<T> Window<T> {
    pub(super) fn new(start: &Utility) -> Self {
        Self {
            records: Vec::new(),
            turns: WINDOW.0,
            size: 0,
            start: start.clone(),
        }
    }

    /// Records a turn of some `size`. `saved` replays the window under a utility with a weight of its own and says how
    /// many tokens were saved; at the window's end the utility gets the weight that saved most.
    pub(super) fn record(
        &mut self,
        utility: &mut Utility,
        record: T,
        size: usize,
        saved: impl Fn(&[T], Utility) -> u64,
    ) {
        if utility.options.weight.is_some() {
            return;
        }
        self.records.push(record);
        self.size += size;
        if self.records.len() < self.turns && self.size < WINDOW_SIZE {
            return;
        }
        let records = std::mem::take(&mut self.records);
        let under = |weight: f64| {
            let mut replayed = self.start.clone();
            (replayed.weight, replayed.options.weight) = (weight, Some(weight));
            saved(&records, replayed)
        };
        // The least weight among the best: recency is the safer half.
        let best = GRID.iter().rev().copied().max_by_key(|weight| under(*weight));
        utility.weight = best.unwrap_or(utility.weight);
        self.turns = (self.turns * 4).min(WINDOW.1);
        self.size = 0;
        self.start = utility.clone();
    }
}

/// FLOP-aware eviction for hybrid models.
#[derive(Clone, Debug)]
pub struct FlopAware {
    ranked: Ranked,
    config: CacheConfig,
    utility: Utility,
    window: Window<Served>,
}

impl FlopAware {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        Self::with_utility(config, Utility::new(options))
    }

    fn with_utility(config: CacheConfig, utility: Utility) -> Self {
        Self {
            ranked: Ranked::new(&config),
            config,
            window: Window::new(&utility),
            utility,
        }
    }

    /// The weight in force.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.utility.weight()
    }

    fn state_tokens(&self) -> Tokens {
        self.utility.state_tokens()
    }

    /// Tokens that a cache with this utility would save of a window, starting empty.
    fn saved(config: CacheConfig, window: &[Served], utility: Utility) -> u64 {
        let mut replay = Self::with_utility(config, utility);
        let mut histories: FxHashMap<ConversationId, u64> = FxHashMap::default();
        let mut saved = 0;
        for turn in window {
            if let Some(history) = histories.insert(turn.conversation, turn.length.0) {
                saved += replay.cached(turn.conversation, Tokens(history)).0;
            }
            replay.served(turn);
        }
        saved
    }
}

impl CachePolicy for FlopAware {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.ranked
            .lengths
            .resident(conversation)
            .saturating_sub(self.state_tokens())
    }

    fn cached(&self, conversation: ConversationId, history: Tokens) -> Tokens {
        // A state past the end of the history is of no use, and there is none before it.
        let state = self.resident(conversation);
        if state <= history { state } else { Tokens::ZERO }
    }

    fn served(&mut self, turn: &Served) {
        self.utility.learn(turn);
        let size = turn.length + self.state_tokens();
        let slot = self
            .ranked
            .touch(turn.conversation, size, self.utility.of(turn.length));
        while !self.ranked.lengths.fits() {
            let Some(victim) = self.ranked.victim(slot.filter(|_| self.config.forced)) else {
                break;
            };
            // A state cannot be cut back: all or nothing.
            self.ranked.cut(victim, 0);
        }
        let config = self.config;
        let saved = |window: &[Served], utility| Self::saved(config, window, utility);
        self.window.record(&mut self.utility, *turn, 1, saved);
    }

    fn used(&self) -> Tokens {
        self.ranked.lengths.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        let prefix = |(id, size): (ConversationId, Tokens)| (id, size.saturating_sub(self.state_tokens()));
        self.ranked.lengths.dump().into_iter().map(prefix).collect()
    }

    fn check(&self) -> Result<(), String> {
        self.ranked.check()
    }
}
