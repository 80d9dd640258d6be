use simulator::trace::ClassId;

use proptest::prelude::*;

use super::et_lru::{EtLruOptions, Hazards};
use super::flop_aware::FlopAwareOptions;
use super::naive::{Naive, NaiveExpected, NaiveFlops, NaiveTiers, NaiveWorkload};
use super::survival::Survival;
use super::tiers::Tier;
use super::*;

type Raw = (u64, u64, u64);

fn with_future(raw: &[Raw]) -> Vec<(Served, Tokens)> {
    let mut next: std::collections::HashMap<u64, (u64, u64)> = std::collections::HashMap::new();
    let mut futures = vec![Future::Last; raw.len()];
    for (at, (conversation, prompt, _)) in raw.iter().enumerate().rev() {
        if let Some((position, prompt)) = next.insert(*conversation, (at as u64, *prompt)) {
            futures[at] = Future::Next {
                position,
                prompt: Tokens(prompt),
            };
        }
    }
    let mut lengths: std::collections::HashMap<u64, (u64, u32)> = std::collections::HashMap::new();
    let serve = |(at, &(conversation, prompt, response)): (usize, &Raw)| {
        let (length, turn) = lengths.entry(conversation).or_default();
        let history = *length;
        *length += prompt + response;
        *turn += 1;
        let served = Served {
            conversation: ConversationId(conversation),
            turn: *turn - 1,
            class: ClassId::DEFAULT,
            at: Millis(at as f64),
            prompt: Tokens(prompt),
            length: Tokens(*length),
            future: futures[at],
        };
        (served, Tokens(history))
    };
    raw.iter().enumerate().map(serve).collect()
}

fn specs() -> Vec<PolicySpec> {
    let mut specs: Vec<PolicySpec> = PolicySpec::NAMES
        .iter()
        .map(|name| name.parse().unwrap())
        .collect();
    specs.push(PolicySpec::ThresholdLru(Tokens(12)));
    specs.push(PolicySpec::Gdfs(0.05));
    let hazards = Hazards::TurnClass;
    specs.push(PolicySpec::EtLru(EtLruOptions {
        hazards,
        ..EtLruOptions::default()
    }));
    specs
}

fn learns(spec: &PolicySpec) -> bool {
    matches!(
        spec,
        PolicySpec::EtLru(_) | PolicySpec::WorkloadAware | PolicySpec::FlopAware(_)
    )
}

/// Returns the policies that have a naive twin. The twin does not learn, so ET-LRU gets all parameters.
fn specs_with_a_twin() -> Vec<PolicySpec> {
    let mut specs: Vec<_> = specs().into_iter().filter(|spec| !learns(spec)).collect();
    for (epsilon, decay_per_s) in [(0.0, 0.0), (0.1, 20.0), (1.0, 300.0)] {
        let prompts = Some(Survival::from_samples(&[0, 1, 2, 2, 5, 9, 14]));
        let decay_per_s = Some(decay_per_s);
        specs.push(PolicySpec::EtLru(EtLruOptions {
            epsilon,
            decay_per_s,
            prompts,
            hazards: Hazards::Equal,
        }));
    }
    specs
}

fn configs() -> impl Strategy<Value = CacheConfig> {
    let xi = prop_oneof![Just(0.0), (0u32..40).prop_map(f64::from), 0.0..40.0f64];
    (0u64..150, 1u32..5, xi, 0u64..10, any::<bool>()).prop_map(
        |(capacity, block_tokens, xi_tokens, q, forced)| {
            let (capacity, next_prompt) = (Tokens(capacity), Tokens(q));
            CacheConfig {
                capacity,
                block_tokens,
                xi_tokens,
                next_prompt,
                forced,
            }
        },
    )
}

fn traces() -> impl Strategy<Value = Vec<Raw>> {
    proptest::collection::vec((0u64..6, 0u64..12, 0u64..12), 1..60)
}

fn uncached(policy: &mut dyn CachePolicy, raw: &[Raw]) -> Vec<u64> {
    let serve = |(served, history): (Served, Tokens)| {
        let cached = policy.resident(served.conversation).0.min(history.0);
        policy.served(&served);
        history.0 + served.prompt.0 - cached
    };
    with_future(raw).into_iter().map(serve).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_policy_does_what_its_naive_twin_does(raw in traces(), config in configs()) {
        for spec in specs_with_a_twin() {
            let (mut real, mut naive) = (spec.build(config), Naive::new(spec.clone(), config));
            for (served, _) in with_future(&raw) {
                prop_assert_eq!(real.resident(served.conversation), naive.resident(served.conversation));
                real.served(&served);
                naive.served(&served);
                prop_assert_eq!(real.check(), Ok(()), "{}", spec);
                let (mut ours, mut theirs) = (real.dump(), naive.dump());
                ours.sort();
                theirs.sort();
                prop_assert_eq!(ours, theirs, "{} {:?}", spec, served);
                prop_assert!(real.used() <= config.capacity);
            }
        }
    }

    #[test]
    fn t_lru_without_a_threshold_is_lru_turn_by_turn(raw in traces(), config in configs()) {
        let config = CacheConfig { xi_tokens: 0.0, ..config };
        let (mut lru, mut tail) = (PolicySpec::Lru.build(config), PolicySpec::TLru.build(config));
        prop_assert_eq!(uncached(&mut *lru, &raw), uncached(&mut *tail, &raw));
    }
}

proptest! {
    #[test]
    fn et_lru_with_a_known_prompt_and_equal_hazards_is_t_lru(raw in traces(), config in configs()) {
        let prompts = Some(Survival::constant(config.next_prompt.as_f64()));
        let options = EtLruOptions { epsilon: 0.0, decay_per_s: Some(1.0), prompts, hazards: Hazards::Equal };
        // With a finite threshold of whole tokens; the budget rounds others up.
        let config = CacheConfig { xi_tokens: config.xi_tokens.floor(), block_tokens: 1, ..config };
        let (mut tail, mut expected) = (PolicySpec::TLru.build(config), PolicySpec::EtLru(options).build(config));
        prop_assert_eq!(uncached(&mut *tail, &raw), uncached(&mut *expected, &raw));
    }

    #[test]
    fn workload_aware_eviction_does_what_its_naive_twin_does(raw in traces(), config in configs(), pace in 0.0..9.0f64) {
        let mut real = workload_aware::WorkloadAware::new(config);
        let mut naive = NaiveWorkload::new(config);
        for (served, _) in with_future(&raw) {
            let class = ClassId((served.conversation.0 % 3) as u16);
            let at = Millis((served.at.0 * pace).floor());
            let served = Served { class, at, ..served };
            real.served(&served);
            naive.served(&served);
            prop_assert_eq!(real.check(), Ok(()));
            let (mut ours, mut theirs) = (real.dump(), naive.dump());
            ours.sort();
            theirs.sort();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn et_lru_that_learns_does_what_its_naive_twin_does(
        raw in traces(), config in configs(), pace in 0.0..9.0f64, epsilon in 0.01..0.5f64, own in any::<bool>(),
    ) {
        let hazards = if own { Hazards::Conversation } else { Hazards::TurnClass };
        let options = EtLruOptions { epsilon, hazards, ..EtLruOptions::default() };
        let mut real = et_lru::EtLru::new(config, options.clone());
        let mut naive = NaiveExpected::new(config, options);
        // Long enough to refresh the distribution of prompts more than once.
        for (served, _) in with_future(&raw.repeat(4)) {
            let class = ClassId((served.conversation.0 % 3) as u16);
            let at = Millis((served.at.0 * pace).floor());
            let served = Served { class, at, ..served };
            real.served(&served);
            naive.served(&served);
            prop_assert_eq!(real.check(), Ok(()));
            let (mut ours, mut theirs) = (real.dump(), naive.dump());
            ours.sort();
            theirs.sort();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn flop_aware_eviction_does_what_its_naive_twin_does(
        raw in traces(), config in configs(), state in 1u32..20, weight in proptest::option::of(0.0..3.0f64),
        windows in (1usize..6, 6usize..20), pace in 0.0..9.0f64, block_tokens in prop_oneof![Just(1u32), Just(16)],
    ) {
        let config = CacheConfig { block_tokens, ..config };
        let options = FlopAwareOptions { state_tokens: f64::from(state), attention: 0.1, weight, windows };
        let (mut real, mut naive) = (flop_aware::FlopAware::new(config, options), NaiveFlops::new(config, options));
        for (served, _) in with_future(&raw) {
            let served = Served { at: Millis((served.at.0 * pace).floor()), ..served };
            real.served(&served);
            naive.served(&served);
            prop_assert_eq!(real.check(), Ok(()));
            prop_assert_eq!(real.weight(), naive.weight());
            let (mut ours, mut theirs) = (real.dump(), naive.dump());
            ours.sort();
            theirs.sort();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn the_tier_stack_does_what_its_naive_twin_does(
        raw in traces(), config in configs(), lower in proptest::collection::vec((0u64..80, 1u32..9), 0..3),
    ) {
        let tier = |(capacity, unit_tokens)| Tier { capacity: Tokens(capacity), ms_per_token: 0.1, unit_tokens };
        let lower: Vec<_> = lower.into_iter().map(tier).collect();
        let (mut real, mut naive) = (tiers::TierStack::new(config, &lower), NaiveTiers::new(config, &lower));
        for (served, _) in with_future(&raw) {
            real.served(&served);
            naive.served(&served);
            prop_assert_eq!(real.check(), Ok(()));
            for id in (0..6).map(ConversationId) {
                prop_assert_eq!(real.per_tier(id), naive.per_tier(id), "of {:?} after {:?}", id, served);
            }
        }
    }

    #[test]
    fn learning_and_tiered_policies_keep_their_invariants(raw in traces(), config in configs(), units in (1u32..9, 1u32..9)) {
        let tiers = [(40, units.0), (90, units.1)]
            .map(|(capacity, unit_tokens)| Tier { capacity: Tokens(capacity), ms_per_token: 0.1, unit_tokens });
        let tiered = PolicySpec::Tiers(tiers.to_vec());
        let hybrid = FlopAwareOptions { state_tokens: 3.0, attention: 0.1, weight: None, windows: (4, 16) };
        for spec in specs().into_iter().filter(learns).chain([tiered, PolicySpec::FlopAware(hybrid)]) {
            let mut cache = spec.build(config);
            for (served, _) in with_future(&raw) {
                cache.served(&served);
                prop_assert_eq!(cache.check(), Ok(()), "{}", spec);
                let whole = served.length.0 - served.length.0 % u64::from(config.block_tokens);
                if config.forced && whole <= config.capacity.0 && !matches!(spec, PolicySpec::FlopAware(_)) {
                    prop_assert_eq!(cache.resident(served.conversation).0, whole, "{}", spec);
                }
            }
        }
    }
}

#[test]
fn free_tokens_go_before_anybody_loses_useful_ones() {
    let config = CacheConfig {
        xi_tokens: 50.0,
        next_prompt: Tokens(10),
        ..CacheConfig::new(Tokens(250))
    };
    let mut cache = t_lru::TLru::new(config);
    // 100 tokens each, 40 of them free; the third does not fit.
    let raw = [(1, 50, 50), (2, 50, 50), (3, 50, 50)];
    let served: Vec<_> = with_future(&raw).into_iter().map(|(served, _)| served).collect();
    served.iter().for_each(|turn| cache.served(turn));
    let held: Vec<_> = cache.dump().iter().map(|(id, tokens)| (id.0, tokens.0)).collect();
    assert_eq!(held, [(1, 60), (2, 90), (3, 100)]);
}

#[test]
fn a_hybrid_state_lies_at_the_end_of_the_last_full_block() {
    let config = CacheConfig {
        block_tokens: 16,
        ..CacheConfig::new(Tokens(2000))
    };
    let mut cache = flop_aware::FlopAware::new(config, FlopAwareOptions::default());
    let (turn, _) = with_future(&[(1, 60, 40)])[0];
    cache.served(&turn);
    assert_eq!(cache.resident(turn.conversation), Tokens(96));
    // The state's 1,000 tokens take 63 blocks.
    assert_eq!(cache.used(), Tokens(96 + 1008));
}

#[test]
fn budgets_of_lengths_past_all_measure_saturate() {
    let config = CacheConfig::new(Tokens(1));
    assert_eq!(config.budget(Tokens(u64::MAX), Tokens(1)), u64::MAX);
}

#[test]
fn names_read_back_and_others_are_answered_with_the_list() {
    for spec in specs() {
        assert_eq!(spec.to_string().parse::<PolicySpec>(), Ok(spec));
    }
    let error = "fifo".parse::<PolicySpec>().unwrap_err().to_string();
    assert!(
        error.contains("`fifo` is not a cache policy") && error.contains("to-belady"),
        "{error}"
    );
    assert!("lru:3".parse::<PolicySpec>().is_err());
}

#[test]
fn what_is_learned_does_not_wear_off_as_the_clock_runs_on() {
    use simulator::generate::Generator;
    let config = CacheConfig {
        xi_tokens: 1200.0,
        next_prompt: Tokens(200),
        ..CacheConfig::new(Tokens(10_000))
    };
    for spec in specs().into_iter().filter(learns) {
        let spec = match spec {
            PolicySpec::FlopAware(options) => PolicySpec::FlopAware(FlopAwareOptions {
                state_tokens: 100.0,
                ..options
            }),
            other => other,
        };
        let mut cache = spec.build(config);
        // The same turns three times over, the last time after a century.
        let mut hits = [0u64; 3];
        let century_ms = 3.2e12;
        for (round, (origin_ms, names)) in [(0.0, 0), (2e9, 1 << 40), (century_ms, 1 << 41)]
            .into_iter()
            .enumerate()
        {
            for turn in Generator::new(&"gen:wildchat:4".parse().unwrap())
                .unwrap()
                .take(6000)
            {
                let conversation = ConversationId(turn.conversation.0 + names);
                hits[round] += cache.cached(conversation, turn.history_tokens).0;
                cache.served(&Served {
                    conversation,
                    turn: turn.turn,
                    class: turn.class,
                    at: turn.at() + Millis(origin_ms),
                    prompt: turn.prompt_tokens,
                    length: turn.total_tokens(),
                    future: Future::Unknown,
                });
            }
        }
        assert!(
            hits[2] * 100 > hits[0] * 90 && hits[1] * 100 > hits[0] * 90,
            "{spec}: {hits:?}"
        );
    }
}
