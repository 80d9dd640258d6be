//! Conversations as they come and go, and what their classes are seen to do next.
//!
//! Of each conversation it is remembered how far it has come, how long it is, how its last answer ended and when. The
//! next turn then teaches its class how long the gap was and how much the prompt added; a silence that outlasts the class's
//! patience teaches that there was no next turn.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use lru::LruCache;
use policy::estimate::{Class, Finish, HabitTable, Habits, Stage};
use policy::units::{Millis, Tokens};

/// Conversations that are remembered.
const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// An answer's length before any was seen.
const RESPONSE: Tokens = Tokens(256);
/// A gap between turns before any was seen.
const GAP: Millis = Millis(30_000.0);
/// Longest turn that is waited for before its conversation counts as silent.
const LONGEST_TURN: Millis = Millis(600_000.0);
/// Silences that one sweep looks at.
const SWEEP: usize = 1024;

/// What is expected of a turn that has just arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Its class, as far as it is known before the answer.
    pub class: Class,
    /// Q̂: tokens that the prompt after it will add.
    pub next_prompt: Tokens,
    /// Tokens of its answer.
    pub response: Tokens,
    /// L: what the conversation's last turn left behind; zero if it is the first that is known.
    pub history: Tokens,
    /// Its number in the conversation, from 1.
    pub turn: u32,
}

/// Where a turn stands in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Its number, from 1.
    pub number: u32,
    /// Tokens of its prompt that had been said before.
    pub history: Tokens,
}

/// A turn that is over.
#[derive(Clone, Copy, Debug)]
pub struct Turned {
    /// The conversation's key.
    pub key: u64,
    /// The class that was expected.
    pub class: Class,
    /// How the answer ended.
    pub finish: Finish,
    /// When the turn arrived.
    pub arrived: Millis,
    /// When its answer was complete.
    pub ended: Millis,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Tokens of its answer.
    pub response: Tokens,
    /// The client said that it was the last.
    pub last: bool,
}

#[derive(Debug)]
struct Talk {
    turns: u32,
    /// L.
    length: Tokens,
    class: Class,
    /// When the last turn arrived, and when the last answer was complete.
    heard: Millis,
    ended: Millis,
    /// When silence counts as its end.
    due: Option<Instant>,
}

/// A moment in whole milliseconds, to be ordered.
type Instant = u64;

/// Conversations, and the habits of their classes.
#[derive(Debug)]
pub struct Conversations {
    talks: LruCache<u64, Talk>,
    due: BTreeSet<(Instant, u64)>,
    /// What classes do.
    pub habits: HabitTable,
}

impl Conversations {
    /// Nothing known, and Q̂ to begin with.
    #[must_use]
    pub fn new(next_prompt: Tokens) -> Self {
        Self {
            talks: LruCache::new(CONVERSATIONS),
            due: BTreeSet::new(),
            habits: HabitTable::new(Habits::new(next_prompt, RESPONSE, GAP)),
        }
    }

    /// A turn of this conversation arrived.
    pub fn arrived(&mut self, now: Millis, key: Option<u64>, api_key: Option<u64>, tools: bool) -> Expected {
        let talk = key.and_then(|key| self.talks.get_mut(&key));
        let (turn, history) = talk.map_or((1, Tokens::ZERO), |talk| {
            talk.heard = now;
            (talk.turns + 1, talk.length)
        });
        let class = Class {
            stage: Stage::of(turn),
            tools,
            key: api_key,
            finish: None,
        };
        let habits = self.habits.of(class);
        Expected {
            class,
            next_prompt: habits.next_prompt().0,
            response: habits.response().0,
            history,
            turn,
        }
    }

    /// A turn is over.
    pub fn turned(&mut self, turn: &Turned) -> Turns {
        let class = Class {
            finish: Some(turn.finish),
            ..turn.class
        };
        let before = self.talks.pop(&turn.key);
        let mut turns = 1;
        let mut history = Tokens::ZERO;
        if let Some(before) = before {
            self.forget_due(turn.key, before.due);
            turns = before.turns.saturating_add(1);
            history = before.length.min(turn.prompt);
            // A turn that came before the last one's answer is a branch, and says nothing about gaps.
            if turn.arrived >= before.ended {
                let added = turn.prompt.saturating_sub(before.length);
                self.habits
                    .returned(before.class, turn.arrived - before.ended, added);
            }
        }
        self.habits.answered(class, turn.response);
        if turn.last {
            self.habits.ended(class);
            return Turns {
                number: turns,
                history,
            };
        }
        let patience = self.habits.of(class).patience();
        self.remember(
            turn.key,
            Talk {
                turns,
                length: turn.prompt + turn.response,
                class,
                heard: turn.arrived,
                ended: turn.ended,
                due: Some(instant(turn.ended + patience)),
            },
        );
        Turns {
            number: turns,
            history,
        }
    }

    /// Counts the conversations whose silence has outlasted patience by now.
    pub fn sweep(&mut self, now: Millis) {
        for _ in 0..SWEEP {
            let Some(&(at, key)) = self.due.first() else { break };
            if at as f64 > now.0 {
                break;
            }
            self.due.pop_first();
            let Some(talk) = self.talks.peek_mut(&key) else {
                continue;
            };
            let answering = talk.heard > talk.ended && now < talk.heard + LONGEST_TURN;
            if answering {
                let at = instant(talk.heard + LONGEST_TURN);
                talk.due = Some(at);
                self.due.insert((at, key));
            } else {
                talk.due = None;
                self.habits.ended(talk.class);
            }
        }
    }

    fn remember(&mut self, key: u64, talk: Talk) {
        if let Some(at) = talk.due {
            self.due.insert((at, key));
        }
        if let Some((oldest, talk)) = self.talks.push(key, talk) {
            self.forget_due(oldest, talk.due);
        }
    }

    fn forget_due(&mut self, key: u64, due: Option<Instant>) {
        if let Some(at) = due {
            self.due.remove(&(at, key));
        }
    }

    /// Conversations remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.talks.len()
    }

    /// Whether no conversation is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.talks.is_empty()
    }
}

fn instant(at: Millis) -> Instant {
    at.0.max(0.0).ceil() as Instant
}

#[cfg(test)]
mod tests;
