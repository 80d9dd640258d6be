//! Classes of turns that are about equally likely to be followed by another turn.
//!
//! A class is defined by whether the response called a tool, the turn's number in its conversation (distinct up to
//! [`TURNS`]) and the tokens that its prompt added. Fine classes see little traffic, so the estimate of each is shrunk
//! towards a coarser class: all sizes of the same turn number, then all turns with the same ending, then all traffic.

use serde::Serialize;

use crate::units::Tokens;

/// Turn numbers that are told apart; later turns share the last class.
const TURNS: usize = 24;
/// Lower bounds of the size classes above the first, in added tokens.
const SIZES: [u64; 4] = [64, 192, 768, 4096];
const OF_TURN: usize = SIZES.len() + 1;
const OF_KIND: usize = TURNS * OF_TURN;
pub(super) const CLASSES: usize = 2 * OF_KIND;
/// Weight of the parent's estimate, in turns.
const LEAN: f64 = 10.0;

/// A class of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Class(u16);

impl Class {
    /// Number of classes.
    pub const COUNT: usize = CLASSES;

    /// Returns the class of turn number `turn` (from 1) whose prompt added `added` tokens.
    pub fn of(turn: u32, added: Tokens, calls_tool: bool) -> Self {
        let turn = (turn.max(1) as usize).min(TURNS) - 1;
        let size = SIZES.iter().filter(|from| added.0 >= **from).count();
        let kind = usize::from(calls_tool);
        Self((kind * OF_KIND + turn * OF_TURN + size) as u16)
    }

    /// Returns the class with this index, or `None` if it is out of range.
    pub fn from_index(index: usize) -> Option<Self> {
        (index < CLASSES).then_some(Self(index as u16))
    }

    /// Returns the index, below [`Class::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns every class in order of index.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u16).map(Self)
    }
}

/// Turns that returned, and the expected weight of the turns observed: silent ones count as far as they were observed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) returned: f64,
    pub(super) expected: f64,
}

impl Seen {
    fn sum(of: &[Self]) -> Self {
        of.iter().fold(Self::default(), |sum, one| Self {
            returned: sum.returned + one.returned,
            expected: sum.expected + one.expected,
        })
    }

    fn share(self, parent: f64, lean: f64) -> f64 {
        (self.returned + lean * parent) / (self.expected + lean)
    }
}

pub(super) fn shares(seen: &[Seen]) -> Vec<f64> {
    let mut shares = Vec::with_capacity(seen.len());
    let all = Seen::sum(seen).share(0.5, 2.0);
    for of_kind in seen.chunks(OF_KIND) {
        let kind = Seen::sum(of_kind).share(all, LEAN);
        for of_turn in of_kind.chunks(OF_TURN) {
            let turn = Seen::sum(of_turn).share(kind, LEAN);
            shares.extend(of_turn.iter().map(|own| own.share(turn, LEAN)));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_told_apart_by_how_the_answer_ended_turn_and_size() {
        let all = [
            Class::of(1, Tokens(10), false),
            Class::of(1, Tokens(10), true),
            Class::of(2, Tokens(10), false),
            Class::of(1, Tokens(64), false),
            Class::of(1, Tokens(4096), false),
        ];
        for (at, class) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != class) && class.index() < Class::COUNT);
        }
        assert_eq!(Class::of(0, Tokens(0), false), Class::of(1, Tokens(0), false));
        assert_eq!(Class::of(24, Tokens(0), true), Class::of(900, Tokens(0), true));
        assert_eq!(Class::all().count(), Class::COUNT);
    }

    #[test]
    fn a_class_without_evidence_takes_its_parents_share_and_one_with_much_its_own() {
        let mut seen = vec![Seen::default(); CLASSES];
        let second = Class::of(2, Tokens(10), false);
        let tenth = Class::of(10, Tokens(10), false);
        for (class, returned) in [(second, 900.0), (tenth, 0.0)] {
            seen[class.index()] = Seen {
                returned,
                expected: 1000.0,
            };
        }
        let shares = shares(&seen);
        let of = |turn, added, tool| shares[Class::of(turn, Tokens(added), tool).index()];
        assert!((of(2, 10, false) - 0.9).abs() < 0.01 && of(10, 10, false) < 0.02);
        // An unseen size follows its turn number; an unseen turn number follows all turns.
        assert!(of(2, 5000, false) > 0.8 && of(10, 5000, false) < 0.1);
        assert!((of(5, 10, false) - 0.45).abs() < 0.02 && (of(5, 10, true) - 0.45).abs() < 0.02);
    }
}
