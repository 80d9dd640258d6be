//! Foresight for shared blocks: for every block of every turn, the next turn that uses it.
//!
//! A conversation's next turn does not determine the next use of a system prompt, which another may need sooner. The
//! parent of a block is used whenever the block is, so evicting the furthest next use is leaf first by itself. Blocks
//! weigh the same and those just served compete with the rest, so this is Belady's rule for pages (1966), which is
//! optimal: a property test compares it with an exact dynamic programme.
//!
//! Tail-Optimized Belady first evicts blocks past the budget `(input − ξ)⁺` of the turn that uses them next: such a
//! block spares that turn no excess, and is resident again after it. For conversations that share nothing this is the
//! optimum of TEL ([`super::super::to_belady`]). With sharing it is a heuristic: it does not weigh a block that is free
//! for its next user, but kept for a useful child, against two useful blocks elsewhere.

use rustc_hash::FxHashMap;

use policy::ids::PrefixHash;
use policy::units::Tokens;

const NEVER: u32 = u32::MAX;

/// The next use of every block of a whole trace. Four bytes per block and turn.
#[derive(Clone, Debug, Default)]
pub struct Foresight {
    /// By turn: the start of the turn's blocks in `next`, and the tokens of the turn's prompt.
    turns: Vec<(usize, Tokens)>,
    /// By turn and block: the next turn that uses the block.
    next: Vec<u32>,
    /// By block, during construction: the last use, as an index into `next`.
    last: FxHashMap<PrefixHash, usize>,
}

impl Foresight {
    /// Adds the trace's next turn by its full blocks and prompt tokens. The cache must serve the same chains in order.
    pub fn push(&mut self, chain: &[PrefixHash], input: Tokens) {
        let turn = u32::try_from(self.turns.len()).unwrap_or(NEVER);
        self.turns.push((self.next.len(), input));
        for &hash in chain {
            if let Some(before) = self.last.insert(hash, self.next.len()) {
                self.next[before] = turn;
            }
            self.next.push(NEVER);
        }
    }

    /// Returns the next turn that uses a turn's block, and the tokens of that turn's prompt.
    #[must_use]
    pub fn next(&self, turn: usize, block: usize) -> Option<(usize, Tokens)> {
        let (begin, _) = *self.turns.get(turn)?;
        let end = self.turns.get(turn + 1).map_or(self.next.len(), |after| after.0);
        let next = *self.next[begin..end].get(block).filter(|next| **next != NEVER)? as usize;
        Some((next, self.turns.get(next)?.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_knows_who_asks_for_it_next() {
        let mut foresight = Foresight::default();
        for (chain, input) in [(&[1, 2][..], 20), (&[1, 3], 25), (&[], 5), (&[1, 2, 4], 30)] {
            let chain: Vec<_> = chain.iter().map(|hash| PrefixHash(*hash)).collect();
            foresight.push(&chain, Tokens(input));
        }
        assert_eq!(foresight.next(0, 0), Some((1, Tokens(25))));
        assert_eq!(foresight.next(0, 1), Some((3, Tokens(30))));
        assert_eq!(foresight.next(1, 0), Some((3, Tokens(30))));
        assert_eq!(
            [(1, 1), (2, 0), (3, 0), (9, 0)].map(|(turn, block)| foresight.next(turn, block)),
            [None; 4]
        );
    }
}
