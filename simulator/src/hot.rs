//! Assistants with long system prompts of which few are popular; `docs/traces.md` has lengths, popularity and times.
//! Much of a prompt is cached wherever its assistant was used before, and a router that follows the cache alone sends
//! half of the traffic to one worker.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::{self, Agenda, Pending};
use crate::trace::{Captured, ClassId, Turn};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Tokens per block.
pub const BLOCK_TOKENS: u32 = 16;
/// Tokens of each assistant's system prompt, most popular first, in whole blocks.
const SYSTEM_PROMPTS: [u64; 4] = [6_000, 2_000, 8_000, 4_000];
/// Mean seconds between the beginnings of two conversations.
const BIRTH_GAP_S: f64 = 2.0;
/// Mean seconds between a conversation's turns.
const TURN_GAP_S: f64 = 60.0;
const MEAN_TURNS: f64 = 8.0;
/// Median, and σ of the logarithm, of the tokens that a turn adds.
const PROMPT: (f64, f64) = (300.0, 1.0);
/// Median, and σ of the logarithm, of a response's tokens.
const RESPONSE: (f64, f64) = (150.0, 0.6);
/// Upper bound on the tokens that a turn adds, without the system prompt.
const MAX_PROMPT: u64 = 8_000;
/// Upper bound on a response's tokens.
const MAX_RESPONSE: u64 = 2_000;

/// Upper bound on a chain's blocks, so that a chain's number and a position make a block's name.
const POSITIONS: u64 = 1 << 24;

/// An endless stream of turns.
#[derive(Clone, Debug)]
pub struct Hot {
    rng: Pcg64Mcg,
    next_birth_s: f64,
    born: u64,
    waiting: Agenda<Conversation>,
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    assistant: usize,
    turn: u32,
    history: u64,
}

impl Hot {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
            next_birth_s: 0.0,
            born: 0,
            waiting: Agenda::default(),
        }
    }

    fn assistant(&mut self) -> usize {
        let weights = SYSTEM_PROMPTS
            .iter()
            .zip(1..)
            .map(|(_, rank)| 1.0 / f64::from(rank));
        let mut left = draw::unit(&mut self.rng) * weights.clone().sum::<f64>();
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
            of: Conversation {
                assistant: self.assistant(),
                turn: 0,
                history: 0,
            },
        };
        self.born += 1;
        self.next_birth_s += draw::exponential(&mut self.rng, BIRTH_GAP_S);
        self.waiting.push(born);
    }
}

impl Conversation {
    /// Returns the names of a prompt's full blocks: the assistant's, then the conversation's.
    fn blocks(self, number: u64, input: u64) -> Vec<u64> {
        let block = u64::from(BLOCK_TOKENS);
        let shared = SYSTEM_PROMPTS[self.assistant] / block;
        let own = SYSTEM_PROMPTS.len() as u64 + number;
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
            .first_at_s()
            .is_none_or(|first| first >= self.next_birth_s)
        {
            self.birth();
        }
        let pending = self.waiting.pop()?;
        let conversation = pending.of;
        let system = if conversation.turn == 0 {
            SYSTEM_PROMPTS[conversation.assistant]
        } else {
            0
        };
        let mut length = |(median, sigma)| draw::lognormal(&mut self.rng, median, sigma);
        let prompt = system + length(PROMPT).min(MAX_PROMPT);
        let response = length(RESPONSE).min(MAX_RESPONSE);
        let input = conversation.history + prompt;
        if draw::unit(&mut self.rng) >= 1.0 / MEAN_TURNS {
            self.waiting.push(Pending {
                at_s: pending.at_s + draw::exponential(&mut self.rng, TURN_GAP_S),
                of: Conversation {
                    turn: conversation.turn + 1,
                    history: input + response,
                    ..conversation
                },
                ..pending
            });
        }
        Some(Turn {
            ts_s: pending.at_s,
            conversation: ConversationId(pending.conversation),
            turn: conversation.turn,
            prompt_tokens: Tokens(prompt),
            history_tokens: Tokens(conversation.history),
            response_tokens: Tokens(response),
            blocks: Some(conversation.blocks(pending.conversation, input)),
            class: ClassId::DEFAULT,
            captured: Captured::default(),
        })
    }
}

#[cfg(test)]
mod tests;
