//! Assistants with long system prompts of which few are popular: hot prefixes.
//!
//! Every conversation is with one of four assistants. Its prompts begin with the assistant's system prompt, of 2,000,
//! 4,000, 6,000 or 8,000 tokens; popularity falls as 1/rank, so that the first takes 48 % of the conversations. Much of a
//! prompt can be cached wherever anybody has talked to its assistant, and a router that follows the cache alone sends
//! half of the traffic to one worker.
//!
//! Conversations begin as a Poisson process, one per two seconds, and have a geometric number of turns with mean 4, the
//! next an exponential 6 s after the last. A turn adds a lognormal prompt of median 140 tokens (σ 1), and an answer of
//! median 45 (σ 0.6).
//!
//! Prompts name their blocks, of 16 tokens: an assistant's are the same in all of its conversations, and every other
//! block is of one conversation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1, LogNormal, Uniform};
use rand_pcg::Pcg64Mcg;

use crate::ids::ConversationId;
use crate::trace::{Captured, ClassId, Turn};
use crate::units::Tokens;

/// Tokens per block.
pub const BLOCK_TOKENS: u32 = 16;
/// Tokens of each assistant's system prompt, the most popular first: whole blocks.
const SYSTEM_PROMPTS: [u64; 4] = [6_000, 2_000, 8_000, 4_000];
/// Mean seconds between the beginnings of two conversations, and between a conversation's turns.
const BIRTH_GAP_S: f64 = 2.0;
const TURN_GAP_S: f64 = 6.0;
const MEAN_TURNS: f64 = 4.0;
/// Median and σ of what a turn adds, and of its answer.
const PROMPT: (f64, f64) = (140.0, 1.0);
const RESPONSE: (f64, f64) = (45.0, 0.6);
/// The longest prompt and answer.
const MAX_PROMPT: u64 = 8_000;
const MAX_RESPONSE: u64 = 2_000;

/// Positions of a chain: more than any has, so that a chain's name and a position make a block's name.
const POSITIONS: u64 = 1 << 24;

/// An endless stream of turns.
#[derive(Clone, Debug)]
pub struct Hot {
    rng: Pcg64Mcg,
    next_birth_s: f64,
    born: u64,
    waiting: BinaryHeap<Reverse<Pending>>,
}

/// A conversation that will send a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pending {
    at_s: f64,
    conversation: u64,
    assistant: usize,
    turn: u32,
    history: u64,
}

impl Eq for Pending {}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_s.total_cmp(&other.at_s)).then(self.conversation.cmp(&other.conversation))
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Hot {
    /// The workload of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
            next_birth_s: 0.0,
            born: 0,
            waiting: BinaryHeap::new(),
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        let unit: f64 = Exp1.sample(&mut self.rng);
        unit * mean
    }

    fn unit(&mut self) -> f64 {
        Uniform::new(0.0, 1.0).map_or(0.5, |unit| unit.sample(&mut self.rng))
    }

    fn lognormal(&mut self, (median, sigma): (f64, f64)) -> u64 {
        let sample = LogNormal::new(median.ln(), sigma).map_or(median, |length| length.sample(&mut self.rng));
        sample.round().max(1.0) as u64
    }

    /// By popularity, as 1/rank.
    fn assistant(&mut self) -> usize {
        let weights = SYSTEM_PROMPTS
            .iter()
            .zip(1..)
            .map(|(_, rank)| 1.0 / f64::from(rank));
        let mut left = self.unit() * weights.clone().sum::<f64>();
        let taken = weights.take_while(|weight| {
            left -= weight;
            left >= 0.0
        });
        taken.count().min(SYSTEM_PROMPTS.len() - 1)
    }

    fn birth(&mut self) {
        let born = Pending {
            at_s: self.next_birth_s,
            conversation: self.born,
            assistant: self.assistant(),
            turn: 0,
            history: 0,
        };
        self.born += 1;
        self.next_birth_s += self.exponential(BIRTH_GAP_S);
        self.waiting.push(Reverse(born));
    }
}

impl Pending {
    /// Names of the full blocks of a prompt: the assistant's, and then the conversation's.
    fn blocks(&self, input: u64) -> Vec<u64> {
        let block = u64::from(BLOCK_TOKENS);
        let shared = SYSTEM_PROMPTS[self.assistant] / block;
        let own = SYSTEM_PROMPTS.len() as u64 + self.conversation;
        let name = |position: u64| {
            let chain = if position < shared {
                self.assistant as u64
            } else {
                own
            };
            chain.wrapping_mul(POSITIONS).wrapping_add(position)
        };
        (0..input / block).map(name).collect()
    }
}

impl Iterator for Hot {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        while self
            .waiting
            .peek()
            .is_none_or(|first| first.0.at_s >= self.next_birth_s)
        {
            self.birth();
        }
        let Reverse(pending) = self.waiting.pop()?;
        let system = if pending.turn == 0 {
            SYSTEM_PROMPTS[pending.assistant]
        } else {
            0
        };
        let prompt = system + self.lognormal(PROMPT).min(MAX_PROMPT);
        let response = self.lognormal(RESPONSE).min(MAX_RESPONSE);
        let input = pending.history + prompt;
        if self.unit() >= 1.0 / MEAN_TURNS {
            let next = Pending {
                at_s: pending.at_s + self.exponential(TURN_GAP_S),
                turn: pending.turn + 1,
                history: input + response,
                ..pending
            };
            self.waiting.push(Reverse(next));
        }
        Some(Turn {
            ts_s: pending.at_s,
            conversation: ConversationId(pending.conversation),
            turn: pending.turn,
            prompt_tokens: Tokens(prompt),
            history_tokens: Tokens(pending.history),
            response_tokens: Tokens(response),
            blocks: Some(pending.blocks(input)),
            class: ClassId::DEFAULT,
            captured: Captured::default(),
        })
    }
}

#[cfg(test)]
mod tests;
