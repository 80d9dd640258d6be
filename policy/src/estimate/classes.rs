//! Which turns are alike: habits per class of traffic, each class leaning on a coarser one while it is young.
//!
//! A class is what is known of a turn without reading it: how far the conversation has come, whose key it carries,
//! whether it may call tools, and how the last answer ended. First turns are followed otherwise than tenth ones, one
//! tenant's agents come back within a second, and an answer that calls a tool is nearly always followed.
//!
//! Fine classes see little traffic, so a class is asked only once it has seen [`TRUSTED`] turns; until then its parent
//! answers: without the finish reason, then without the key, then all traffic. Every turn teaches all four. Keys are a
//! stranger's to choose, so classes with a key live in a table of bounded size, least recently taught out; those without
//! are a fixed handful.
//!
//! Rejected: one regression over all features. Lengths and gaps are not additive in them, and a table can be read.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::conversations::Habits;
use crate::units::{Millis, Tokens};

/// Turns after which a class is believed instead of its parent.
const TRUSTED: f64 = 20.0;
/// Classes with a key that are remembered.
const KEYED: usize = 1024;

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// By itself.
    Stop,
    /// At its length limit.
    Length,
    /// With a call of a tool.
    ToolCalls,
    /// Otherwise, or it is not known.
    #[default]
    Other,
}

/// How far a conversation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its first turn.
    #[default]
    First,
    /// Its second.
    Second,
    /// The third to the eighth.
    Middle,
    /// Later ones.
    Late,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] = [Self::First, Self::Second, Self::Middle, Self::Late];

    /// The stage of the turn of this number, from 1.
    #[must_use]
    pub fn of(turn: u32) -> Self {
        match turn {
            0 | 1 => Self::First,
            2 => Self::Second,
            3..=8 => Self::Middle,
            _ => Self::Late,
        }
    }

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
            Self::Middle => "middle",
            Self::Late => "late",
        }
    }
}

/// A class of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Class {
    /// How far the conversation has come.
    pub stage: Stage,
    /// Whether the turn may call tools.
    pub tools: bool,
    /// Whose it is: a hash of the key it carries; `None` where it carries none, or any.
    pub key: Option<u64>,
    /// How its answer ended; `None` before it has, or however.
    pub finish: Option<Finish>,
}

impl Class {
    /// The class without the key.
    #[must_use]
    fn of_anybody(self) -> Self {
        Self { key: None, ..self }
    }

    /// The class before the answer ended.
    #[must_use]
    fn unfinished(self) -> Self {
        Self { finish: None, ..self }
    }

    /// From the finest to the coarsest.
    fn lineage(self) -> [Self; 4] {
        [
            self,
            self.unfinished(),
            self.of_anybody(),
            self.unfinished().of_anybody(),
        ]
    }
}

/// The habits of all classes.
#[derive(Debug)]
pub struct HabitTable {
    start: Habits,
    all: Habits,
    known: FxHashMap<Class, Habits>,
    /// Classes with a key, in the order in which they were first taught; an entry is passed over once when it was taught
    /// again since (CLOCK).
    keyed: VecDeque<(Class, bool)>,
    limit: usize,
}

impl HabitTable {
    /// Nothing learned; every class begins with `start`.
    #[must_use]
    pub fn new(start: Habits) -> Self {
        Self::with_limit(start, KEYED)
    }

    fn with_limit(start: Habits, limit: usize) -> Self {
        Self {
            start,
            all: start,
            known: FxHashMap::default(),
            keyed: VecDeque::new(),
            limit: limit.max(1),
        }
    }

    /// What is believed of a class: its own habits, or those of its closest parent that is trusted.
    #[must_use]
    pub fn of(&self, class: Class) -> &Habits {
        let trusted = |class: Class| self.known.get(&class).filter(|habits| habits.turns() >= TRUSTED);
        class.lineage().into_iter().find_map(trusted).unwrap_or(&self.all)
    }

    /// All traffic.
    #[must_use]
    pub fn all(&self) -> &Habits {
        &self.all
    }

    /// A class's own habits, if it was seen.
    #[must_use]
    pub fn own(&self, class: Class) -> Option<&Habits> {
        self.known.get(&class)
    }

    /// Classes known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no class is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// A turn of this class was followed by another after `gap`, whose prompt added so much.
    pub fn returned(&mut self, class: Class, gap: Millis, prompt: Tokens) {
        self.teach(class, |habits| habits.returned(gap, prompt));
    }

    /// A turn of this class was its conversation's last.
    pub fn ended(&mut self, class: Class) {
        self.teach(class, Habits::ended);
    }

    /// An answer of this class was so long.
    pub fn answered(&mut self, class: Class, response: Tokens) {
        self.teach(class, |habits| habits.answered(response));
    }

    fn teach(&mut self, class: Class, lesson: impl Fn(&mut Habits)) {
        lesson(&mut self.all);
        let lineage = class.lineage();
        for (at, &one) in lineage.iter().enumerate() {
            if !lineage[..at].contains(&one) {
                self.make_room_for(one);
                lesson(self.known.entry(one).or_insert(self.start));
            }
        }
    }

    fn make_room_for(&mut self, class: Class) {
        if class.key.is_none() {
            return;
        }
        if self.known.contains_key(&class) {
            // A scan of a thousand entries, off any request's path; most lessons are of recent classes.
            if let Some(entry) = self.keyed.iter_mut().rev().find(|entry| entry.0 == class) {
                entry.1 = true;
            }
            return;
        }
        while self.keyed.len() >= self.limit {
            match self.keyed.pop_front() {
                Some((again, true)) => self.keyed.push_back((again, false)),
                Some((oldest, false)) => {
                    self.known.remove(&oldest);
                }
                None => break,
            }
        }
        self.keyed.push_back((class, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> HabitTable {
        HabitTable::with_limit(Habits::new(Tokens(200), Tokens(300), Millis(10_000.0)), 8)
    }

    fn class(stage: Stage, key: u64) -> Class {
        Class {
            stage,
            tools: false,
            key: Some(key),
            finish: Some(Finish::Stop),
        }
    }

    #[test]
    fn classes_learn_apart_once_they_have_seen_enough() {
        let mut table = table();
        for _ in 0..200 {
            table.returned(class(Stage::First, 1), Millis(1000.0), Tokens(50));
            table.returned(class(Stage::Late, 2), Millis(1000.0), Tokens(5000));
        }
        let expected = |class| table.of(class).next_prompt().0.0;
        assert!(expected(class(Stage::First, 1)) < 100);
        assert!(expected(class(Stage::Late, 2)) > 4000);
        // A key never seen is believed to do as its stage does, and a stage never seen as everybody does.
        assert!(expected(class(Stage::First, 3)) < 100);
        assert!((2000..3000).contains(&expected(class(Stage::Middle, 3))));
    }

    #[test]
    fn a_young_class_is_not_believed_yet() {
        let mut table = table();
        for _ in 0..100 {
            table.returned(class(Stage::First, 1), Millis(1000.0), Tokens(50));
        }
        for _ in 0..5 {
            table.returned(class(Stage::First, 2), Millis(1000.0), Tokens(9000));
        }
        let of_two = class(Stage::First, 2);
        assert!(table.own(of_two).unwrap().next_prompt().0.0 > 2000);
        assert!(table.of(of_two).next_prompt().0.0 < 800);
    }

    #[test]
    fn the_end_of_an_answer_tells_what_follows_it() {
        let mut table = table();
        let ended = |finish| Class {
            finish: Some(finish),
            ..class(Stage::Middle, 1)
        };
        for _ in 0..100 {
            table.returned(ended(Finish::ToolCalls), Millis(100.0), Tokens(50));
            table.ended(ended(Finish::Stop));
        }
        let share = |finish| table.of(ended(finish)).return_share().0;
        assert!(share(Finish::ToolCalls) > 0.9 && share(Finish::Stop) < 0.1);
        let before = table.of(class(Stage::Middle, 1).unfinished()).return_share().0;
        assert!((before - 0.5).abs() < 0.1);
    }

    #[test]
    fn keys_are_bounded_and_a_busy_one_stays() {
        let mut table = table();
        for stranger in 0..1000 {
            table.answered(class(Stage::First, 7), Tokens(10));
            table.answered(class(Stage::First, 100 + stranger), Tokens(10));
        }
        assert!(table.keyed.len() <= 8);
        let keyless = table.known.keys().filter(|class| class.key.is_none()).count();
        assert_eq!(table.len(), table.keyed.len() + keyless);
        assert!(table.own(class(Stage::First, 7)).is_some());
    }

    #[test]
    fn stages_are_in_the_order_of_turns() {
        assert_eq!(
            [0, 1, 2, 3, 8, 9].map(Stage::of).map(Stage::as_str),
            ["first", "first", "second", "middle", "middle", "late"]
        );
    }
}
