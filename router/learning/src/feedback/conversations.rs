//! Tracks conversations, and learns from gaps and silences what turns of each class do next.

mod kept;

pub use kept::KeptConversation;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use lru::LruCache;
use policy::estimate::{Class, Finish, HabitTable, Habits, Stage};
use policy::units::{Millis, Tokens};

const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Response length assumed before any was observed.
const RESPONSE: Tokens = Tokens(256);
/// Gap between turns assumed before any was observed.
const GAP: Millis = Millis(30_000.0);
/// Longest time that a running turn delays the point at which its conversation counts as silent.
const LONGEST_TURN: Millis = Millis(600_000.0);
const SWEEP: usize = 1024;

/// The expectations for a turn when it arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Class of the turn, as far as it is known before the response.
    pub class: Class,
    /// Q̂: tokens that the next prompt is expected to add.
    pub next_prompt: Tokens,
    /// Expected response tokens.
    pub response: Tokens,
    /// L: tokens of the conversation after its last turn; zero if no turn of it is known.
    pub history: Tokens,
    /// Number of the turn in its conversation, from 1.
    pub turn: u32,
}

/// Position of a turn in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Number of the turn, from 1.
    pub number: u32,
    /// Tokens of the prompt that repeat earlier turns.
    pub history: Tokens,
}

/// A completed turn.
#[derive(Clone, Copy, Debug)]
pub struct CompletedTurn {
    /// Key of the conversation.
    pub key: u64,
    /// Class of the turn as known when it arrived.
    pub class: Class,
    /// Reason for which the response ended.
    pub finish: Finish,
    /// Arrival time of the request.
    pub arrived: Millis,
    /// Time at which the response was complete.
    pub ended: Millis,
    pub prompt: Tokens,
    pub response: Tokens,
    /// Whether the client marked the turn as the last.
    pub last: bool,
}

#[derive(Debug)]
struct Conversation {
    turns: u32,
    length: Tokens,
    class: Class,
    /// Arrival of the last turn.
    heard: Millis,
    ended: Millis,
    /// Time at which the conversation counts as over unless another turn arrives.
    due: Option<Instant>,
}

/// A time in whole milliseconds, which is totally ordered.
type Instant = u64;

/// Conversations, and the habits of their classes.
#[derive(Debug)]
pub struct Conversations {
    talks: LruCache<u64, Conversation>,
    due: BTreeSet<(Instant, u64)>,
    /// Habits by class.
    pub habits: HabitTable,
}

impl Conversations {
    /// Creates an empty table with `next_prompt` as the initial Q̂.
    pub fn new(next_prompt: Tokens) -> Self {
        Self {
            talks: LruCache::new(CONVERSATIONS),
            due: BTreeSet::new(),
            habits: HabitTable::new(Habits::new(next_prompt, RESPONSE, GAP)),
        }
    }

    /// Records the arrival of a turn. Returns the expectations for it.
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

    /// Records a completed turn. Returns its position in the conversation.
    pub fn turned(&mut self, turn: &CompletedTurn) -> Turns {
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
            // A turn that arrived before the last response ended is a branch: it has no gap.
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
            Conversation {
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

    /// Counts the conversations whose silence exceeds the patience of their class at `now`.
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

    fn remember(&mut self, key: u64, talk: Conversation) {
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

    /// Returns the number of conversations remembered.
    pub fn len(&self) -> usize {
        self.talks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.talks.is_empty()
    }
}

fn instant(at: Millis) -> Instant {
    at.0.max(0.0).ceil() as Instant
}

#[cfg(test)]
mod tests;
