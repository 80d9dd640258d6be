//! FLOP-aware eviction and selective admission, for hybrid models (Marconi: Pan et al., MLSys 2025).
//!
//! A hybrid model's recurrent layers keep one state of fixed size, updated in place, which cannot be cut back to a
//! shorter prefix. So a cached sequence can be resumed only where a state was saved, and every saved state costs
//! memory: it counts against the capacity as a number of tokens. Marconi's solution is
//! - *admission by speculative insertion*: save at most two states of a sequence, at the point where it diverges from
//!   cached sequences, and at its last token. Others would never be hit;
//! - *eviction by utility*, `S = recency + w · FLOPs saved per byte`, with `w` tuned from the workload.
//!
//! Private conversations never branch, so one state is admitted per conversation, at its end; a turn whose history does
//! not contain exactly what was cached resumes nothing. On shared blocks [`super::blocks::hybrid`] admits both states.
//!
//! # Gaps in the source, and the choices made
//! - *Recency* is `∫dt/τ` up to the last turn, with τ the mean gap of returns: a rank that is fixed while nothing is
//!   touched, so the order can be stored, O(log n), where normalising over all candidates would rescan them.
//! - *FLOPs per byte* of a prefix of `L` tokens are `(L + γ·L²/2) / (L + S)`, in units of one token's linear FLOPs and
//!   its KV bytes: `γ` is attention's share, `S` the state in tokens' worth of KV. Divided by its value at the mean
//!   length, so that `w` has no unit.
//! - *The weight* is tuned by replaying recent turns from a snapshot of the cache: see [`tuning`].

pub(super) mod tuning;

use self::tuning::{Tunable, Tuning};
use super::ranked::Ranked;
use super::returns::Returns;
use super::{CacheConfig, CachePolicy, Served, round_up};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

/// Model parameters, and the weight of eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlopAwareOptions {
    /// γ: quadratic FLOPs of a token of context, in one token's linear FLOPs.
    pub attention: f64,
    /// S: bytes of a recurrent state, in one token's KV bytes.
    pub state_tokens: f64,
    /// w; tuned when `None`.
    pub weight: Option<f64>,
    /// Minimum and maximum turns of a tuning window.
    pub windows: (usize, usize),
}

impl Default for FlopAwareOptions {
    /// Returns the options of a 7B hybrid: four attention layers in thirty-two, states worth a thousand tokens of their
    /// KV.
    fn default() -> Self {
        Self {
            attention: 5e-5,
            state_tokens: 1000.0,
            weight: None,
            windows: (256, 16_384),
        }
    }
}

impl FlopAwareOptions {
    /// Returns the tuning windows, unless the weight is given.
    pub(super) fn tuning(&self) -> Option<(usize, usize)> {
        let (least, most) = self.windows;
        self.weight
            .is_none()
            .then_some((least.max(1), most.max(least).max(1)))
    }
}

/// The terms of a state's utility when it was last touched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Worth {
    /// Mean gaps elapsed up to that touch.
    recency: f64,
    /// FLOPs saved per byte, relative to a state after the mean length.
    efficiency: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Utility {
    options: FlopAwareOptions,
    weight: f64,
    returns: Returns,
    mean_length: f64,
    turns: f64,
    now: Millis,
    /// Mean gaps elapsed up to `now`.
    recency: f64,
}

impl Utility {
    pub(super) fn new(options: FlopAwareOptions) -> Self {
        Self {
            options,
            weight: options.weight.unwrap_or(0.0),
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

    pub(super) fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    pub(super) fn state_tokens(&self) -> Tokens {
        Tokens(self.options.state_tokens as u64)
    }

    pub(super) fn learn(&mut self, turn: &Served) {
        self.turns += 1.0;
        self.mean_length += (turn.length.as_f64() - self.mean_length) / self.turns.min(1000.0);
        self.returns
            .observe(turn.conversation, turn.class.index(), turn.at);
        // Integrated, so that a corrected gap changes all recencies equally.
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

    /// Returns the terms of a state after `length` tokens, at the last turn learned.
    pub(super) fn of(&self, length: Tokens) -> Worth {
        let usual = self.flops_per_byte(self.mean_length).max(1e-9);
        Worth {
            recency: self.recency,
            efficiency: self.flops_per_byte(length.as_f64()) / usual,
        }
    }

    pub(super) fn score(&self, worth: Worth) -> f64 {
        worth.recency + self.weight * worth.efficiency
    }
}

/// FLOP-aware eviction for hybrid models.
#[derive(Clone, Debug)]
pub struct FlopAware {
    held: Held,
    tuning: Tuning<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    ranked: Ranked,
    /// By slot: tokens before the state, and the terms of its utility.
    states: Vec<(Tokens, Worth)>,
    config: CacheConfig,
    utility: Utility,
}

impl FlopAware {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        let held = Held {
            ranked: Ranked::new(&config),
            states: Vec::new(),
            config,
            utility: Utility::new(options),
        };
        let tuning = Tuning::new(options.tuning());
        Self { held, tuning }
    }

    /// Returns the current weight.
    pub fn weight(&self) -> f64 {
        self.held.utility.weight()
    }
}

impl Held {
    fn state(&self, conversation: ConversationId) -> Tokens {
        let slot = self.ranked.lengths.slot(conversation);
        slot.map_or(Tokens::ZERO, |slot| self.states[slot as usize].0)
    }

    /// Serves a turn and returns whether anything was evicted.
    fn serve(&mut self, turn: &Served) -> bool {
        self.utility.learn(turn);
        // States are saved at the ends of blocks, and take whole blocks themselves.
        let block = self.config.block();
        let end = Tokens(turn.length.0 - turn.length.0 % block);
        let size = end + Tokens(round_up(self.utility.state_tokens().0, block));
        let worth = self.utility.of(turn.length);
        let slot = self
            .ranked
            .touch(turn.conversation, size, self.utility.score(worth));
        if let Some(slot) = slot {
            if self.states.len() <= slot as usize {
                self.states.resize(slot as usize + 1, <_>::default());
            }
            self.states[slot as usize] = (end, worth);
        }
        let fits = self.ranked.lengths.fits();
        while !self.ranked.lengths.fits() {
            let Some(victim) = self.ranked.victim(slot.filter(|_| self.config.forced)) else {
                break;
            };
            // A state cannot be cut back: all or nothing.
            self.ranked.cut(victim, 0);
        }
        !fits
    }
}

impl Tunable for Held {
    type Record = Served;

    fn reweigh(&mut self, weight: f64) {
        self.utility.set_weight(weight);
        let score = |slot| self.utility.score(self.states[slot as usize].1);
        self.ranked.rerank(score);
    }

    fn replay(&mut self, turn: &Served) -> u64 {
        // The response is not distinguished from the history.
        let state = self.state(turn.conversation);
        let resumed = state <= turn.length.saturating_sub(turn.prompt);
        self.serve(turn);
        if resumed { state.0 } else { 0 }
    }
}

impl CachePolicy for FlopAware {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.held.state(conversation)
    }

    fn cached(&self, conversation: ConversationId, history: Tokens) -> Tokens {
        // A state past the end of the history is useless, and there is none before it.
        let state = self.resident(conversation);
        if state <= history { state } else { Tokens::ZERO }
    }

    fn served(&mut self, turn: &Served) {
        let evicted = self.held.serve(turn);
        self.tuning.served(&mut self.held, evicted, || (*turn, 1));
    }

    fn used(&self) -> Tokens {
        self.held.ranked.lengths.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        let prefix = |(id, _): (ConversationId, Tokens)| (id, self.held.state(id));
        self.held.ranked.lengths.dump().into_iter().map(prefix).collect()
    }

    fn check(&self) -> Result<(), String> {
        self.held.ranked.check()
    }
}
