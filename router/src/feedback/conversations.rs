//! Conversations as they come and go, and what their classes are seen to do next.
//!
//! Of each conversation it is remembered how far it has come, how long it is, how its last answer ended and when. The
//! next turn then teaches its class how long the gap was and how much the prompt added; silence teaches that there was
//! no next turn. Two moments come of each silence: when the belief that the conversation is over passes the floor, and
//! its worker may be told; and, later, when patience is at its end and the turn counts as the last.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use policy::estimate::{Class, Finish, HabitTable, Habits, Stage, TRUSTED};
use policy::ids::{PrefixHash, WorkerId};
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
#[derive(Debug)]
pub struct Turned<'a> {
    /// The conversation's key.
    pub key: u64,
    /// Its name, as workers know it.
    pub name: &'a Arc<str>,
    /// The worker.
    pub worker: WorkerId,
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
    /// Some of its keys, the last one first.
    pub tips: Vec<PrefixHash>,
    /// Tokens of its beginning that other conversations share.
    pub shared: Tokens,
}

/// A conversation that has been silent for so long that it is taken to be over.
#[derive(Clone, Debug)]
pub struct Silent {
    /// Its key.
    pub key: u64,
    /// Where it lives.
    pub worker: WorkerId,
    /// Its name, as the worker knows it.
    pub name: Arc<str>,
    /// Tokens of its beginning that others share.
    pub shared: Tokens,
    /// Keys of its last prompt, the last one first: what is still held ends at the first of them that is.
    pub tips: Vec<PrefixHash>,
}

#[derive(Debug)]
struct Talk {
    name: Arc<str>,
    worker: WorkerId,
    turns: u32,
    /// L.
    length: Tokens,
    class: Class,
    /// When the last turn arrived, and when the last answer was complete.
    heard: Millis,
    ended: Millis,
    /// What the silence means next.
    due: Option<(Instant, Verdict)>,
    shared: Tokens,
    tips: Vec<PrefixHash>,
}

/// A moment in whole milliseconds, to be ordered.
type Instant = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The belief passes the floor.
    Believed,
    /// Patience is at its end.
    Counted,
}

/// Conversations, and the habits of their classes.
#[derive(Debug)]
pub struct Conversations {
    talks: LruCache<u64, Talk>,
    due: BTreeSet<(Instant, u64)>,
    /// What classes do.
    pub habits: HabitTable,
    floor: f64,
}

impl Conversations {
    /// Nothing known; Q̂ to begin with, and the probability of a return below which a silent conversation is over (0:
    /// never).
    #[must_use]
    pub fn new(next_prompt: Tokens, floor: f64) -> Self {
        Self {
            talks: LruCache::new(CONVERSATIONS),
            due: BTreeSet::new(),
            habits: HabitTable::new(Habits::new(next_prompt, RESPONSE, GAP)),
            floor,
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

    /// A worker is gone: nobody is to be told of its conversations.
    pub fn left(&mut self, worker: WorkerId) {
        let its: Vec<u64> = self
            .talks
            .iter()
            .filter(|(_, talk)| talk.worker == worker)
            .map(|(&key, _)| key)
            .collect();
        for key in its {
            if let Some(talk) = self.talks.pop(&key) {
                self.forget_due(key, talk.due);
            }
        }
    }

    /// A turn is over.
    pub fn turned(&mut self, turn: &Turned<'_>) -> Turns {
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
        let mut talk = Talk {
            name: Arc::clone(turn.name),
            worker: turn.worker,
            turns,
            length: turn.prompt + turn.response,
            class,
            heard: turn.arrived,
            ended: turn.ended,
            due: None,
            shared: turn.shared,
            tips: turn.tips.clone(),
        };
        talk.due = Some(self.first_verdict(&talk));
        self.remember(turn.key, talk);
        Turns {
            number: turns,
            history,
        }
    }

    /// Takes the conversations whose silence came to mean something by now. Returns those that are now believed over.
    pub fn sweep(&mut self, now: Millis) -> Vec<Silent> {
        let mut silent = Vec::new();
        for _ in 0..SWEEP {
            let Some(&(at, key)) = self.due.first() else { break };
            if at as f64 > now.0 {
                break;
            }
            self.due.pop_first();
            let Some(talk) = self.talks.peek_mut(&key) else {
                continue;
            };
            let verdict = talk.due.take().map(|due| due.1);
            let answering = talk.heard > talk.ended && now < talk.heard + LONGEST_TURN;
            talk.due = if answering {
                Some((instant(talk.heard + LONGEST_TURN), Verdict::Counted))
            } else if verdict == Some(Verdict::Believed) {
                silent.push(talk.silent(key));
                let patience = self.habits.of(talk.class).patience();
                Some((instant(talk.ended + patience).max(at + 1), Verdict::Counted))
            } else {
                self.habits.ended(talk.class);
                None
            };
            if let Some((at, _)) = talk.due {
                self.due.insert((at, key));
            }
        }
        silent
    }

    /// When the silence that begins now first means something.
    fn first_verdict(&self, talk: &Talk) -> (Instant, Verdict) {
        let habits = self.habits.of(talk.class);
        let patience = habits.patience();
        // A floor means something once the class is known; until then nothing is said of a conversation.
        if self.floor > 0.0 && habits.turns() >= TRUSTED {
            let silence = habits.silence_until_over(1.0 - self.floor);
            if silence < patience {
                return (instant(talk.ended + silence), Verdict::Believed);
            }
        }
        (instant(talk.ended + patience), Verdict::Counted)
    }

    fn remember(&mut self, key: u64, talk: Talk) {
        if let Some((at, _)) = talk.due {
            self.due.insert((at, key));
        }
        if let Some((oldest, talk)) = self.talks.push(key, talk) {
            self.forget_due(oldest, talk.due);
        }
    }

    fn forget_due(&mut self, key: u64, due: Option<(Instant, Verdict)>) {
        if let Some((at, _)) = due {
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

impl Talk {
    fn silent(&self, key: u64) -> Silent {
        Silent {
            key,
            worker: self.worker,
            name: Arc::clone(&self.name),
            shared: self.shared,
            tips: self.tips.clone(),
        }
    }
}

fn instant(at: Millis) -> Instant {
    at.0.max(0.0).ceil() as Instant
}

#[cfg(test)]
mod tests;
