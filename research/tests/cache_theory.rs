//! The theorems about tail-optimised caching as tests, against exact optima.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

use std::collections::HashMap;

use lab::cache::et_lru::{EtLru, EtLruOptions, Hazards};
use lab::cache::survival::Survival;
use lab::cache::{CacheConfig, CachePolicy, Future, PolicySpec, Served};
use lab::simulate::future::futures;
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};
use proptest::prelude::*;
use simulator::trace::ClassId;

/// Conversation, prompt, response.
type Raw = (usize, u64, u64);

fn served(conversation: usize, prompt: u64, length: u64, at_s: f64, future: Future) -> Served {
    Served {
        conversation: ConversationId(conversation as u64),
        turn: 0,
        class: ClassId::DEFAULT,
        at: Millis(at_s * 1e3),
        prompt: Tokens(prompt),
        length: Tokens(length),
        future,
    }
}

fn config(capacity: u64, xi: u64, forced: bool) -> CacheConfig {
    CacheConfig {
        xi_tokens: xi as f64,
        forced,
        ..CacheConfig::new(Tokens(capacity))
    }
}

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

/// Returns every way to keep at most `most[i]` tokens of each conversation and `capacity` in all; exactly `whole` of
/// one.
fn allocations(most: &[u64], capacity: u64, whole: Option<usize>) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for (at, &most) in most.iter().enumerate() {
        let least = if whole == Some(at) { most.min(capacity) } else { 0 };
        let grown = all.iter().flat_map(|kept: &Vec<u64>| {
            let left = capacity - kept.iter().sum::<u64>();
            (least..=most.min(left))
                .map(|x| [&kept[..], &[x]].concat())
                .collect::<Vec<_>>()
        });
        all = grown.collect();
    }
    all
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

/// The belief MDP of the paper's §4 in unit steps: at every step one of the conversations sends a turn, with a
/// probability proportional to `e^{−μ·age}`; its prompt is drawn from `PROMPTS`, its response is one token.
struct Belief {
    mu: f64,
    xi: u64,
    capacity: u64,
}

const PROMPTS: [u64; 3] = [1, 2, 5];

#[derive(Clone)]
struct State {
    step: u32,
    last: Vec<u32>,
    lengths: Vec<u64>,
    resident: Vec<u64>,
}

impl Belief {
    /// Returns the expected TEL of the next `turns` turns when `decide` chooses what to keep in each state.
    fn expected(
        &self,
        state: &State,
        turns: u32,
        decide: &mut impl FnMut(&Self, &State, usize, u32) -> f64,
    ) -> f64 {
        if turns == 0 {
            return 0.0;
        }
        let step = state.step + 1;
        let weight = |last: &u32| (-self.mu * f64::from(step - last)).exp();
        let total: f64 = state.last.iter().map(weight).sum();
        let mut expected = 0.0;
        for id in 0..state.last.len() {
            for prompt in PROMPTS {
                let probability = weight(&state.last[id]) / total / PROMPTS.len() as f64;
                let excess = (state.lengths[id] + prompt - state.resident[id]).saturating_sub(self.xi);
                let mut next = state.clone();
                next.step = step;
                next.last[id] = step;
                next.lengths[id] += prompt + 1;
                next.resident[id] = next.lengths[id];
                expected += probability * (excess as f64 + decide(self, &next, id, turns - 1));
            }
        }
        expected
    }

    /// Returns the value of the best allocation at this and all later steps.
    fn best(&self, state: &State, turns: u32) -> f64 {
        let all = allocations(&state.resident, self.capacity, None);
        // Keeping more is never worse, so only full caches are compared, unless everything fits.
        let most = all.iter().map(|kept| kept.iter().sum::<u64>()).max().unwrap_or(0);
        let full = all.into_iter().filter(|kept| kept.iter().sum::<u64>() == most);
        let value = |resident: Vec<u64>| {
            let state = State {
                resident,
                ..state.clone()
            };
            self.expected(&state, turns, &mut |belief, next, _, left| {
                belief.best(next, left)
            })
        };
        full.map(value).fold(f64::INFINITY, f64::min)
    }

    /// Returns the value of ET-LRU's allocation at this and all later steps.
    fn et_lru(&self, policy: &EtLru, state: &State, turns: u32) -> f64 {
        let resident = (0..state.last.len())
            .map(|id| policy.resident(ConversationId(id as u64)).0)
            .collect();
        let state = State {
            resident,
            ..state.clone()
        };
        self.expected(&state, turns, &mut |belief, next, id, left| {
            let mut policy = policy.clone();
            policy.served(&served(
                id,
                0,
                next.lengths[id],
                f64::from(next.step),
                Future::Unknown,
            ));
            belief.et_lru(&policy, next, left)
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Theorem 2 on small instances: three conversations, prompts of random length, three turns ahead.
    #[test]
    fn et_lru_is_optimal_in_the_belief_mdp(
        lengths in proptest::collection::vec(1u64..6, 3),
        (mu, xi, capacity) in (0.05f64..1.0, 0u64..7, 2u64..9),
    ) {
        let belief = Belief { mu, xi, capacity };
        let options = EtLruOptions {
            epsilon: 0.0,
            decay_per_s: Some(mu),
            prompts: Some(Survival::from_samples(&PROMPTS)),
            hazards: Hazards::Equal,
        };
        let mut policy = EtLru::new(config(capacity, xi, false), options);
        let mut state = State { step: 0, last: vec![0; 3], lengths: vec![0; 3], resident: vec![0; 3] };
        let mut before = state.resident.clone();
        for (id, length) in lengths.iter().enumerate() {
            state.step += 1;
            (state.last[id], state.lengths[id]) = (state.step, *length);
            before = (0..3).map(|other| policy.resident(ConversationId(other as u64)).0).collect();
            before[id] = *length;
            policy.served(&served(id, *length, *length, f64::from(state.step), Future::Unknown));
        }
        // The optimum starts from the same cache, before the last of its decisions.
        let (best, ours) = (belief.best(&State { resident: before, ..state.clone() }, 3), belief.et_lru(&policy, &state, 3));
        prop_assert!((ours - best).abs() < 1e-9, "ET-LRU {} against {}", ours, best);
    }
}
