//! How many refused requests of one name are written down. Whoever may change nothing can ask for changes all day: what
//! is beyond the bound is counted, and the count stands in the next entry of that name.

use std::collections::HashMap;

/// Entries of one name at once, after a quiet time.
pub(super) const AT_ONCE: u64 = 50;
/// Milliseconds until there is room for one more.
const MS_EACH: u64 = 6_000;
/// Names that are remembered. There are as many as tokens; those that are removed and added again go.
const NAMES: usize = 1_024;

/// The names, and what is left to each.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<String, Left>);

#[derive(Debug)]
struct Left {
    /// In milliseconds of time that has passed, up to what makes up [`AT_ONCE`].
    room_ms: u64,
    at_ms: u64,
    left_out: u64,
}

impl Refusals {
    /// One more. Returns how many were left out since the last one that was not, or nothing if this one is.
    pub(super) fn admit(&mut self, name: &str, now_ms: u64) -> Option<u64> {
        const FULL: u64 = AT_ONCE * MS_EACH;
        if !self.0.contains_key(name) && self.0.len() >= NAMES {
            self.0.clear();
        }
        let left = self.0.entry(name.to_owned()).or_insert(Left {
            room_ms: FULL,
            at_ms: now_ms,
            left_out: 0,
        });
        let passed = now_ms.saturating_sub(left.at_ms);
        left.room_ms = left.room_ms.saturating_add(passed).min(FULL);
        left.at_ms = now_ms;
        match left.room_ms.checked_sub(MS_EACH) {
            Some(room_ms) => {
                left.room_ms = room_ms;
                Some(std::mem::take(&mut left.left_out))
            }
            None => {
                left.left_out += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_own_bound_and_what_was_left_out_is_told_with_the_next_one() {
        let mut refusals = Refusals::default();
        for _ in 0..AT_ONCE {
            assert_eq!(refusals.admit("a", 1_000), Some(0));
        }
        assert_eq!(refusals.admit("a", 1_000), None);
        assert_eq!(refusals.admit("a", 1_000 + MS_EACH - 1), None);
        assert_eq!(refusals.admit("b", 1_000), Some(0), "another's");
        assert_eq!(refusals.admit("a", 1_000 + MS_EACH), Some(2));
        assert_eq!(refusals.admit("a", 1_000 + MS_EACH), None);
        // A clock that is put back gives no room, and takes none.
        assert_eq!(refusals.admit("a", 0), None);
    }
}
