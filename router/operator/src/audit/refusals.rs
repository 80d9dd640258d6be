//! Bounds the recorded refusals of each name. Those beyond are counted in the name's next entry.

use std::collections::HashMap;

pub(super) const AT_ONCE: u64 = 50;
/// Milliseconds until one more is admitted.
const MS_EACH: u64 = 6_000;
/// Names that are remembered. There are as many as tokens; when exceeded, all are forgotten.
const NAMES: usize = 1_024;

/// Remaining allowance by name.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<String, RefusalAllowance>);

#[derive(Debug)]
struct RefusalAllowance {
    /// Allowance in milliseconds, at most that of [`AT_ONCE`] entries.
    room_ms: u64,
    at_ms: u64,
    left_out: u64,
}

impl Refusals {
    /// Admits a refusal and returns how many were omitted since the last admitted one; `None` if this one is omitted.
    pub(super) fn admit(&mut self, name: &str, now_ms: u64) -> Option<u64> {
        const FULL: u64 = AT_ONCE * MS_EACH;
        if !self.0.contains_key(name) && self.0.len() >= NAMES {
            self.0.clear();
        }
        let left = self.0.entry(name.to_owned()).or_insert(RefusalAllowance {
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
        // A clock set back neither adds nor removes allowance.
        assert_eq!(refusals.admit("a", 0), None);
    }
}
