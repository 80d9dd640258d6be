use proptest::prelude::*;

use super::*;

fn recency(capacity: u64) -> Recency {
    Recency::new(&CacheConfig::new(Tokens(capacity)))
}

#[test]
fn a_conversation_that_is_touched_for_ever_leaves_a_ring_of_bounded_size() {
    let mut queue = recency(1000);
    for id in 1..=20 {
        queue.touch(ConversationId(id), Tokens(1), NO_BUDGET);
    }
    for turn in 0..10_000 {
        queue.touch(ConversationId(turn % 2), Tokens(2), NO_BUDGET);
        assert_eq!(queue.check(), Ok(()));
    }
    assert!(queue.ring.len() <= 4 * 21, "{} places", queue.ring.len());
    let order: Vec<u64> = queue.dump().iter().map(|(id, _)| id.0).collect();
    assert_eq!(order, (2..=20).chain([0, 1]).collect::<Vec<_>>());
}

#[test]
fn a_sweep_keeps_the_cursor_at_the_oldest_free_token() {
    let mut queue = recency(100);
    for id in 0..8 {
        queue.touch(ConversationId(id), Tokens(10), 8);
    }
    // Overflowing by one trims one token of the oldest; the cursor stays there.
    queue.touch(ConversationId(8), Tokens(21), NO_BUDGET);
    queue.trim_free(false);
    assert_eq!(
        (queue.used(), queue.resident(ConversationId(0))),
        (Tokens(100), Tokens(9))
    );
    for _ in 0..100 {
        queue.touch(ConversationId(8), Tokens(21), NO_BUDGET);
        assert_eq!(queue.check(), Ok(()));
    }
    queue.touch(ConversationId(8), Tokens(23), NO_BUDGET);
    queue.trim_free(false);
    let resident = [0, 1, 2].map(|id| queue.resident(ConversationId(id)).0);
    assert_eq!((resident, queue.check()), ([8, 9, 10], Ok(())));
}

/// The twin: resident conversations in a list, oldest first, searched from its beginning for every token.
#[derive(Default)]
struct Naive {
    capacity: u64,
    /// Conversation, resident tokens and budget, oldest first.
    all: Vec<(u64, u64, u64)>,
}

impl Naive {
    fn touch(&mut self, id: u64, length: u64, budget: u64) {
        self.forget(id);
        self.all.push((id, length, budget));
        self.tidy();
    }

    fn forget(&mut self, id: u64) {
        self.all.retain(|c| c.0 != id);
    }

    fn tidy(&mut self) {
        self.all.retain(|c| c.1 > 0);
    }

    fn over(&self) -> bool {
        self.all.iter().map(|c| c.1).sum::<u64>() > self.capacity
    }

    fn trim(&mut self, spared: bool, all: bool) {
        let most = self.all.len() - usize::from(spared && !self.all.is_empty());
        while all || self.over() {
            let Some(free) = self.all[..most].iter_mut().find(|c| c.1 > c.2) else {
                break;
            };
            free.1 -= 1;
        }
        self.tidy();
    }

    fn evict(&mut self) {
        while self.over() {
            self.all[0].1 -= 1;
            self.tidy();
        }
    }
}

type Turn = (u64, u64, Option<u64>, bool, bool);

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    // Some return often, so that rings are swept; many are alive at once, so that they grow.
    let id = prop_oneof![0u64..4, 0u64..80];
    let budget = proptest::option::of(0u64..12);
    proptest::collection::vec((id, 0u64..12, budget, any::<bool>(), any::<bool>()), 1..400)
}

proptest! {
    #[test]
    fn the_log_does_what_a_list_does(turns in turns(), capacity in 0u64..500, trims_all in any::<bool>()) {
        let (mut real, mut naive) = (recency(capacity), Naive { capacity, ..Naive::default() });
        for (id, length, budget, spared, forgets) in turns {
            real.touch(ConversationId(id), Tokens(length), budget.unwrap_or(NO_BUDGET));
            naive.touch(id, length, budget.unwrap_or(NO_BUDGET));
            if forgets && length == 7 {
                real.forget(ConversationId(id / 2));
                naive.forget(id / 2);
            }
            // The spared one is the one just served, if it has any tokens.
            let spared = spared && length > 0 && !(forgets && length == 7 && id / 2 == id);
            if trims_all && !real.fits() {
                real.trim_all_free(spared);
                naive.trim(spared, true);
            } else {
                real.trim_free(spared);
                naive.trim(spared, false);
            }
            real.evict_oldest();
            naive.evict();
            prop_assert_eq!(real.check(), Ok(()));
            let theirs: Vec<_> = naive.all.iter().map(|c| (ConversationId(c.0), Tokens(c.1))).collect();
            prop_assert_eq!(real.dump(), theirs);
        }
    }
}
