//! Coding agents: long contexts, many turns, bursts.
//!
//! A session opens with a repository's worth of context, and then calls tools dozens of times, seconds apart. Nearly
//! all of its prefill can be cached, so a router that scatters it multiplies the fleet's work by ten or more.
//!
//! A session has 30 to 200 turns, or fewer if its context reaches 400,000 tokens, and shares nothing with others. A
//! session opens with a lognormal context of median 60,000 tokens; a turn adds a tool's output of median 300 tokens and
//! a response of median 200. Gaps between turns are exponential with mean 6 s, one in twenty with a human's 90 s.
//! Sessions come in bursts, as builds and batch jobs start them: a geometric number with mean 6 within some seconds,
//! with exponential gaps of mean 240 s between bursts.

use rand::SeedableRng;
use rand_pcg::Pcg64;

use super::draw::{self, Agenda, Pending};
use crate::trace::{Captured, ClassId, Turn};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Mean seconds between bursts.
const BURST_GAP_S: f64 = 240.0;
/// Mean sessions per burst.
const BURST_SESSIONS: f64 = 6.0;
/// Seconds over which a burst's sessions start.
const BURST_SPREAD_S: f64 = 8.0;
/// Mean seconds before a turn that a tool's output begins.
const TOOL_GAP_S: f64 = 6.0;
/// Mean seconds before a turn that a human begins.
const HUMAN_GAP_S: f64 = 90.0;
/// Share of turns that wait for a human.
const HUMAN: f64 = 0.05;
const MAX_CONTEXT: u64 = 400_000;

/// An endless stream of turns.
#[derive(Clone, Debug)]
pub struct Agentic {
    rng: Pcg64,
    next_burst_s: f64,
    sessions: u64,
    waiting: Agenda<Session>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    turn: u32,
    turns: u32,
    history: u64,
}

impl Agentic {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64::seed_from_u64(seed),
            next_burst_s: 0.0,
            sessions: 0,
            waiting: Agenda::default(),
        }
    }

    fn burst(&mut self) {
        let at_s = self.next_burst_s;
        self.next_burst_s += draw::exponential(&mut self.rng, BURST_GAP_S);
        loop {
            let turns = 30 + (draw::unit(&mut self.rng) * 171.0) as u32;
            let start = Pending {
                at_s: at_s + draw::unit(&mut self.rng) * BURST_SPREAD_S,
                conversation: self.sessions,
                of: Session {
                    turn: 0,
                    turns,
                    history: 0,
                },
            };
            self.sessions += 1;
            self.waiting.push(start);
            if draw::unit(&mut self.rng) < 1.0 / BURST_SESSIONS {
                return;
            }
        }
    }
}

impl Iterator for Agentic {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        while self
            .waiting
            .first_at_s()
            .is_none_or(|first| first >= self.next_burst_s)
        {
            self.burst();
        }
        let pending = self.waiting.pop()?;
        let session = pending.of;
        let prompt = if session.turn == 0 {
            draw::lognormal(&mut self.rng, 60_000.0, 0.5).min(MAX_CONTEXT / 2)
        } else {
            draw::lognormal(&mut self.rng, 300.0, 1.0).min(20_000)
        };
        let response = draw::lognormal(&mut self.rng, 200.0, 0.8).min(4_000);
        let length = session.history + prompt + response;
        if session.turn + 1 < session.turns && length < MAX_CONTEXT {
            let mean = if draw::unit(&mut self.rng) < HUMAN {
                HUMAN_GAP_S
            } else {
                TOOL_GAP_S
            };
            self.waiting.push(Pending {
                at_s: pending.at_s + draw::exponential(&mut self.rng, mean),
                of: Session {
                    turn: session.turn + 1,
                    history: length,
                    ..session
                },
                ..pending
            });
        }
        Some(Turn {
            ts_s: pending.at_s,
            conversation: ConversationId(pending.conversation),
            turn: session.turn,
            prompt_tokens: Tokens(prompt),
            history_tokens: Tokens(session.history),
            response_tokens: Tokens(response),
            blocks: None,
            class: ClassId::DEFAULT,
            captured: Captured::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_shape_that_it_says() {
        let turns: Vec<Turn> = Agentic::new(1).take(20_000).collect();
        assert!(turns.is_sorted_by(|a, b| a.ts_s <= b.ts_s));
        let mut contexts: Vec<u64> = turns.iter().map(|turn| turn.input_tokens().0).collect();
        contexts.sort_unstable();
        let median = contexts[contexts.len() / 2];
        assert!((85_000..115_000).contains(&median), "{median}");
        let longest = turns.iter().map(|turn| turn.turn).max();
        assert!(
            longest.is_some_and(|turn| (150..200).contains(&turn)),
            "{longest:?}"
        );
        assert_eq!(turns, Agentic::new(1).take(20_000).collect::<Vec<_>>());
    }
}
