//! Habits per class of traffic, where a class with little data falls back on a coarser one.
//!
//! A class is the stage of the conversation, the API key, whether the turn may call tools, and how the last response
//! ended. Fine classes see little traffic, so a class is used only after [`TRUSTED`] turns. Until then a coarser one is
//! used: without the finish reason, then without the key, then without both, then all traffic. Every turn updates all
//! of them. Clients choose the keys, so classes with a key are in a table of bounded size, from which those not updated
//! recently are evicted.
//!
//! Rejected: one regression over all features. Lengths and gaps are not additive in them, and a table can be inspected.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::conversations::Habits;
use crate::units::{Millis, Tokens};

const TRUSTED: f64 = 20.0;
const KEYED: usize = 1024;

/// The reason why a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token or stop sequence.
    Stop,
    /// The length limit.
    Length,
    /// A tool call.
    ToolCalls,
    /// Another reason, or an unknown one.
    #[default]
    Other,
}

/// The stage of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The first turn.
    #[default]
    First,
    /// The second turn.
    Second,
    /// The third to the eighth turn.
    Middle,
    /// Later turns.
    Late,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] = [Self::First, Self::Second, Self::Middle, Self::Late];

    /// Returns the stage of turn number `turn`, from 1.
    pub fn of(turn: u32) -> Self {
        match turn {
            0 | 1 => Self::First,
            2 => Self::Second,
            3..=8 => Self::Middle,
            _ => Self::Late,
        }
    }

    /// Returns the name used in metrics.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Class {
    /// The stage of the conversation.
    pub stage: Stage,
    /// Whether the turn may call tools.
    pub tools: bool,
    /// Hash of the API key; `None` without one, or for any key.
    pub key: Option<u64>,
    /// Reason why the response ended; `None` before its end, or for any.
    pub finish: Option<Finish>,
}

impl Class {
    #[must_use]
    fn of_anybody(self) -> Self {
        Self { key: None, ..self }
    }

    #[must_use]
    fn unfinished(self) -> Self {
        Self { finish: None, ..self }
    }

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
    /// Classes with a key, in the order of first update. An entry updated again since then is passed over once (CLOCK).
    keyed: VecDeque<(Class, bool)>,
    limit: usize,
}

/// Habits that outlive a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptHabits {
    /// Habits of all traffic.
    pub all: Habits,
    /// Habits of the classes without a key.
    pub classes: Vec<(Class, Habits)>,
}

impl HabitTable {
    /// Creates an empty table; every class begins with `start`.
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

    /// Returns the habits of a class: its own, or those of its closest trusted parent.
    pub fn of(&self, class: Class) -> &Habits {
        let trusted = |class: Class| self.known.get(&class).filter(|habits| habits.turns() >= TRUSTED);
        class.lineage().into_iter().find_map(trusted).unwrap_or(&self.all)
    }

    /// Returns the habits of all traffic.
    pub fn all(&self) -> &Habits {
        &self.all
    }

    /// Returns a class's own habits, if it was seen.
    pub fn own(&self, class: Class) -> Option<&Habits> {
        self.known.get(&class)
    }

    /// Returns the habits that another process can restore. Classes with a key are left out: their keys are unsalted
    /// hashes of credentials, which are not written to files.
    #[must_use]
    pub fn kept(&self) -> KeptHabits {
        let keyless = self.known.iter().filter(|(class, _)| class.key.is_none());
        KeptHabits {
            all: self.all,
            classes: keyless.map(|(class, habits)| (*class, *habits)).collect(),
        }
    }

    /// Restores the habits of another process where fewer turns were observed here. Ignores those with a key and those
    /// that no observations can have led to. Returns the number of classes restored.
    pub fn restore(&mut self, kept: &KeptHabits) -> usize {
        let is_news = |own: &Habits, kept: &Habits| kept.is_sound() && kept.turns() > own.turns();
        if is_news(&self.all, &kept.all) {
            self.all = kept.all;
        }
        let mut restored = 0;
        for (class, habits) in &kept.classes {
            let own = self.known.get(class).unwrap_or(&self.start);
            if class.key.is_none() && is_news(own, habits) {
                self.known.insert(*class, *habits);
                restored += 1;
            }
        }
        restored
    }

    /// Returns the number of classes seen.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns whether no class was seen.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Records that a turn of this class was followed by another after `gap`, whose prompt added `prompt` tokens.
    pub fn returned(&mut self, class: Class, gap: Millis, prompt: Tokens) {
        self.update(class, |habits| habits.returned(gap, prompt));
    }

    /// Records that a turn of this class was its conversation's last.
    pub fn ended(&mut self, class: Class) {
        self.update(class, Habits::ended);
    }

    /// Records the length of a response of this class.
    pub fn answered(&mut self, class: Class, response: Tokens) {
        self.update(class, |habits| habits.answered(response));
    }

    fn update(&mut self, class: Class, change: impl Fn(&mut Habits)) {
        change(&mut self.all);
        let lineage = class.lineage();
        for (at, &one) in lineage.iter().enumerate() {
            if !lineage[..at].contains(&one) {
                self.make_room_for(one);
                change(self.known.entry(one).or_insert(self.start));
            }
        }
    }

    fn make_room_for(&mut self, class: Class) {
        if class.key.is_none() {
            return;
        }
        if self.known.contains_key(&class) {
            // Scans up to a thousand entries, off the request path; most updates are of recent classes.
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
        // An unseen key follows its stage, and an unseen stage follows all traffic.
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
