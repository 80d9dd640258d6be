//! The capacity of a worker that does not report it, learned from missing pieces.
//!
//! In an LRU cache, a missing piece was evicted because everything used since then filled the cache. So the tokens that
//! the mirror holds and that were used after the missing piece are an upper bound on the capacity. A cleared cache
//! gives a bound that is far too small, so the largest of [`AGREE`] bounds below the current capacity is taken. A
//! response that finds what the mirror has dropped raises the capacity by the share [`GROWS`].

use crate::units::Tokens;

const AGREE: usize = 3;
const GROWS: f64 = 1.0 / 16.0;
/// Upper bound on a learned capacity, since a mirror's memory grows with it.
pub const MOST: Tokens = Tokens(8_000_000);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LearnedCapacity {
    bounds: [Tokens; AGREE],
    count: usize,
}

impl LearnedCapacity {
    /// Records a missing piece with `used_since` tokens used after it. Returns the new capacity if it changes.
    pub(super) fn missed(&mut self, capacity: Tokens, used_since: Tokens) -> Option<Tokens> {
        if used_since >= capacity {
            return None;
        }
        self.bounds[self.count % AGREE] = used_since;
        self.count += 1;
        if self.count < AGREE {
            return None;
        }
        let largest = self.bounds.into_iter().max()?;
        (largest < capacity).then_some(largest)
    }

    /// Records that a worker found more than its full mirror holds. Returns the new capacity if it changes.
    pub(super) fn found_more(&mut self, capacity: Tokens) -> Option<Tokens> {
        *self = Self::default();
        let grown = Tokens((capacity.as_f64() * (1.0 + GROWS)) as u64).min(MOST);
        (grown > capacity).then_some(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_three_bounds_is_believed() {
        let mut learned = LearnedCapacity::default();
        let capacity = Tokens(500_000);
        assert_eq!(learned.missed(capacity, Tokens(60_000)), None);
        assert_eq!(learned.missed(capacity, Tokens(900)), None, "it was cleared");
        assert_eq!(learned.missed(capacity, Tokens(58_000)), Some(Tokens(60_000)));
        let capacity = Tokens(60_000);
        assert_eq!(learned.missed(capacity, Tokens(57_000)), Some(Tokens(58_000)));
        assert_eq!(learned.missed(Tokens(58_000), Tokens(58_000)), None, "no bound");
    }

    #[test]
    fn what_is_found_beyond_a_full_mirror_makes_it_grow_up_to_a_bound() {
        let mut learned = LearnedCapacity::default();
        learned.missed(Tokens(1600), Tokens(100));
        learned.missed(Tokens(1600), Tokens(100));
        assert_eq!(learned.found_more(Tokens(1600)), Some(Tokens(1700)));
        assert_eq!(learned.missed(Tokens(1700), Tokens(100)), None, "it begins anew");
        assert_eq!(learned.found_more(MOST), None);
    }
}
