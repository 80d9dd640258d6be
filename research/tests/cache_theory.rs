//! What tail-optimised caching does on every trace, against exact optima in hindsight.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

mod theory;

use std::collections::HashMap;

use lab::cache::{CacheConfig, CachePolicy, PolicySpec};
use lab::simulate::future::futures;
use policy::ids::ConversationId;
use policy::units::Tokens;
use proptest::prelude::*;
use theory::{allocations, config, served};

/// Conversation, prompt, response.
type Raw = (usize, u64, u64);

/// Returns the TEL of a policy in tokens.
fn tel(policy: &mut dyn CachePolicy, raw: &[Raw], xi: u64) -> u64 {
    let told: Vec<_> = raw
        .iter()
        .map(|(id, prompt, _)| (ConversationId(*id as u64), Tokens(*prompt)))
        .collect();
    let mut lengths: HashMap<usize, u64> = HashMap::new();
    let mut tel = 0;
    for (at, (&(id, prompt, response), future)) in raw.iter().zip(futures(&told)).enumerate() {
        let length = lengths.entry(id).or_default();
        let cached = policy.resident(ConversationId(id as u64)).0.min(*length);
        tel += (*length + prompt - cached).saturating_sub(xi);
        *length += prompt + response;
        policy.served(&served(id, prompt, *length, at as f64, future));
    }
    tel
}

/// Returns the least TEL that a policy with hindsight can reach: a dynamic programme over all cache states.
fn optimum(raw: &[Raw], conversations: usize, capacity: u64, xi: u64, forced: bool) -> u64 {
    let mut states: HashMap<Vec<u64>, u64> = HashMap::from([(vec![0; conversations], 0)]);
    let mut lengths = vec![0; conversations];
    for &(id, prompt, response) in raw {
        let mut next: HashMap<Vec<u64>, u64> = HashMap::new();
        let length = lengths[id] + prompt + response;
        for (state, cost) in &states {
            let cost = cost + (lengths[id] + prompt - state[id]).saturating_sub(xi);
            let mut most = state.clone();
            most[id] = length;
            for kept in allocations(&most, capacity, forced.then_some(id)) {
                let known = next.entry(kept).or_insert(u64::MAX);
                *known = cost.min(*known);
            }
        }
        lengths[id] = length;
        states = next;
    }
    states.into_values().min().unwrap()
}

fn small_traces() -> impl Strategy<Value = Vec<Raw>> {
    proptest::collection::vec((0usize..3, 0u64..5, 0u64..4), 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Theorem 1, under optional and forced caching.
    #[test]
    fn tail_optimized_belady_is_the_exact_optimum(raw in small_traces(), capacity in 1u64..13, xi in 0u64..9) {
        for forced in [false, true] {
            let best = optimum(&raw, 3, capacity, xi, forced);
            let mut policy = PolicySpec::ToBelady.build(config(capacity, xi, forced));
            prop_assert_eq!(tel(&mut *policy, &raw, xi), best, "forced: {}", forced);
        }
    }

    /// The special case: Belady's rule is the optimum of the mean.
    #[test]
    fn belady_computes_the_fewest_tokens(raw in small_traces(), capacity in 1u64..13) {
        for forced in [false, true] {
            let best = optimum(&raw, 3, capacity, 0, forced);
            let mut policy = PolicySpec::Belady.build(config(capacity, 0, forced));
            prop_assert_eq!(tel(&mut *policy, &raw, 0), best, "forced: {}", forced);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// If every next prompt has the expected length, T-LRU trims only useless tokens: on every trace, not on average.
    #[test]
    fn t_lru_is_never_worse_than_lru_when_the_next_prompt_is_known(
        raw in proptest::collection::vec((0usize..6, 0u64..30), 1..60),
        (q, capacity, xi) in (0u64..12, 1u64..200, 0u64..50),
        forced in any::<bool>(),
    ) {
        let raw: Vec<Raw> = raw.into_iter().map(|(id, response)| (id, q, response)).collect();
        let config = CacheConfig { next_prompt: Tokens(q), ..config(capacity, xi, forced) };
        let tail = tel(&mut *PolicySpec::TLru.build(config), &raw, xi);
        let lru = tel(&mut *PolicySpec::Lru.build(config), &raw, xi);
        prop_assert!(tail <= lru, "T-LRU {} against LRU {}", tail, lru);
    }
}
