//! The demo's conversations: assistants with shared system prompts, and users who pause between turns.
//!
//! Conversations arrive as a Poisson process and belong to assistants of popularity 1/rank. They have a geometric
//! number of turns, lognormal prompts and replies, and exponential pauses. The caches hold about a third of the live
//! conversations, so that both routing and eviction matter.

use policy::ids::ConversationId;
use policy::units::Tokens;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp, LogNormal};
use rand_pcg::Pcg64Mcg;
use simulator::trace::{Captured, ClassId, Turn};

use client::drive::plan::Plan;

/// Tokens per block of the shared system prompts.
const BLOCK: u64 = 16;
const ASSISTANTS: u64 = 12;
/// Length of the workload in seconds on the engines' clock.
const SPAN_S: f64 = 55.0;
const ARRIVALS_PER_S: f64 = 6.0;
const LAST_TURN: f64 = 0.16;
const PAUSE_S: f64 = 6.0;
/// Share of turns that warm up the caches and are not counted.
const WARM_UP: f64 = 0.15;

/// Returns the workload of a seed, played at `time_scale` times its own pace.
pub fn plan(seed: u64, time_scale: f64) -> Plan {
    Plan::new(turns(seed), Some(BLOCK as u32), time_scale, WARM_UP)
}

/// Returns the workload's turns in order of time.
pub fn turns(seed: u64) -> Vec<Turn> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut sampler = Sampler::new();
    let mut turns = Vec::new();
    let mut at_s = 0.0;
    let mut conversation = 0;
    loop {
        at_s += sampler.exponential(&mut rng, 1.0 / ARRIVALS_PER_S);
        if at_s > SPAN_S {
            break;
        }
        conversation += 1;
        sampler.conversation(&mut rng, conversation, at_s, &mut turns);
    }
    turns.sort_by(|a, b| a.ts_s.total_cmp(&b.ts_s));
    turns
}

struct Sampler {
    prompt: Option<LogNormal<f64>>,
    reply: Option<LogNormal<f64>>,
    next_block: u64,
}

impl Sampler {
    fn new() -> Self {
        Self {
            prompt: LogNormal::new(140f64.ln(), 1.0).ok(),
            reply: LogNormal::new(45f64.ln(), 0.6).ok(),
            // Lower ids belong to the system prompts.
            next_block: ASSISTANTS << 32,
        }
    }

    fn exponential(&self, rng: &mut Pcg64Mcg, mean: f64) -> f64 {
        Exp::new(1.0 / mean).map_or(mean, |distribution| distribution.sample(rng))
    }

    fn tokens(&self, rng: &mut Pcg64Mcg, of: Option<LogNormal<f64>>, most: f64) -> u64 {
        of.map_or(1.0, |distribution| distribution.sample(rng))
            .clamp(4.0, most)
            .round() as u64
    }

    fn conversation(&mut self, rng: &mut Pcg64Mcg, id: u64, start_s: f64, turns: &mut Vec<Turn>) {
        let assistant = zipf(rng, ASSISTANTS);
        let system = 40 + 13 * assistant;
        let mut blocks: Vec<u64> = (0..system).map(|block| assistant << 32 | block).collect();
        let (mut at_s, mut history, mut number) = (start_s, 0, 0);
        loop {
            let said = self.tokens(rng, self.prompt, 2500.0);
            let new = if number == 0 { system * BLOCK + said } else { said };
            let reply = self.tokens(rng, self.reply, 160.0);
            let input = history + new;
            while (blocks.len() as u64) < input.div_ceil(BLOCK) {
                blocks.push(self.next_block);
                self.next_block += 1;
            }
            turns.push(Turn {
                ts_s: at_s,
                conversation: ConversationId(id),
                turn: number,
                prompt_tokens: Tokens(new),
                history_tokens: Tokens(history),
                response_tokens: Tokens(reply),
                blocks: Some(blocks.clone()),
                class: ClassId::DEFAULT,
                captured: Captured::default(),
            });
            history = input + reply;
            number += 1;
            at_s += self.exponential(rng, PAUSE_S);
            if at_s > SPAN_S || rng.random_bool(LAST_TURN) {
                return;
            }
        }
    }
}

/// Draws a rank below `count`, with probability proportional to 1/(rank + 1).
fn zipf(rng: &mut Pcg64Mcg, count: u64) -> u64 {
    let total: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
    let mut left = rng.random::<f64>() * total;
    (0..count)
        .find(|rank| {
            left -= 1.0 / (rank + 1) as f64;
            left < 0.0
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_workload() {
        assert_eq!(turns(7), turns(7));
        assert_ne!(turns(7), turns(8));
    }

    #[test]
    fn turns_are_in_order_and_each_extends_its_conversation() {
        let turns = turns(1);
        assert!(turns.is_sorted_by(|a, b| a.ts_s <= b.ts_s));
        let mut lengths = std::collections::HashMap::new();
        for turn in &turns {
            let known = lengths.insert(turn.conversation, turn.total_tokens());
            assert_eq!(known.unwrap_or_default(), turn.history_tokens);
        }
        assert!(turns.len() > 500, "{} turns", turns.len());
        let shared = turns.iter().filter(|turn| turn.turn == 0).count();
        assert!(shared > 100);
    }
}
