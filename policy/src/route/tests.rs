use super::*;

fn worker(id: u32) -> WorkerView {
    WorkerView {
        id: WorkerId(id),
        ready: true,
        cost: PrefillCost::linear(0.1, 20.0),
        overhead: Millis::ZERO,
        wait: Millis::ZERO,
        utilisation: 0.0,
        mean_work: Millis::ZERO,
        in_flight: 0,
        indexed: Tokens::ZERO,
        conversations: 0.0,
    }
}

fn with_policy(policy: PolicyName) -> Settings {
    Settings {
        policy,
        weights: Weights {
            locality: 1.0,
            ..Weights::default()
        },
        ..Settings::default()
    }
}

fn choose(
    settings: &Settings,
    workers: &[WorkerView],
    prompt: u64,
    resident: &[u64],
    sequence: u64,
) -> Option<Decision> {
    let resident: Vec<Tokens> = resident.iter().copied().map(Tokens).collect();
    let turn = Turn {
        prompt: Tokens(prompt),
        resident: &resident,
        objective: Millis(500.0),
        last_worker: None,
        conversation: Some(ConversationId(sequence)),
        head: Some(PrefixHash(sequence)),
        class: "",
        ask: None,
    };
    decide(
        &Snapshot {
            workers,
            settings,
            sequence,
        },
        &turn,
    )
}

fn chosen(settings: &Settings, workers: &[WorkerView], prompt: u64, resident: &[u64]) -> u32 {
    choose(settings, workers, prompt, resident, 0)
        .unwrap()
        .chosen()
        .worker
        .0
}

#[test]
fn nobody_ready_is_no_decision_under_any_policy() {
    let mut workers = [worker(0), worker(1)];
    workers.iter_mut().for_each(|worker| worker.ready = false);
    for policy in PolicyName::ALL {
        assert_eq!(choose(&with_policy(policy), &workers, 10, &[0, 0], 0), None);
        assert_eq!(choose(&with_policy(policy), &[], 10, &[], 0), None);
    }
}

#[test]
fn an_unready_worker_is_never_chosen_however_good_it_looks() {
    let mut workers = [worker(0), worker(1)];
    workers[0].ready = false;
    workers[1].in_flight = 100;
    workers[1].wait = Millis(1e6);
    for policy in PolicyName::ALL {
        for sequence in 0..4 {
            let decision = choose(&with_policy(policy), &workers, 1000, &[1000, 0], sequence).unwrap();
            assert_eq!(decision.chosen().worker, WorkerId(1), "{policy}");
        }
    }
}

/// Rebalancing that discarded all affinity: <https://github.com/sgl-project/sglang/issues/32195>.
#[test]
fn tail_follows_the_prefix_until_waiting_for_it_costs_more_than_computing_it_again() {
    let settings = with_policy(PolicyName::Tail);
    let mut workers = [worker(0), worker(1)];
    assert_eq!(chosen(&settings, &workers, 4000, &[3000, 0]), 0);
    // The miss costs 0.1 ms × 3000 = 300 ms more on worker 1.
    workers[0].wait = Millis(299.0);
    assert_eq!(chosen(&settings, &workers, 4000, &[3000, 0]), 0);
    workers[0].wait = Millis(301.0);
    assert_eq!(chosen(&settings, &workers, 4000, &[3000, 0]), 1);
}

/// A miss sent to the worker with the smallest tree, whatever its load:
/// <https://github.com/sgl-project/sglang/issues/14305>, <https://github.com/sgl-project/sglang/issues/14532>,
/// <https://github.com/sgl-project/sglang/issues/32983>.
#[test]
fn tail_charges_a_miss_more_on_a_busy_worker() {
    let settings = with_policy(PolicyName::Tail);
    let mut workers = [worker(0), worker(1)];
    workers[0].wait = Millis(400.0);
    assert_eq!(chosen(&settings, &workers, 4000, &[3000, 0]), 1);
    // At ρ = 0.5 a miss is charged twice: 4000·0.1·2 = 800 against 400 + 1000·0.1·2 = 600.
    workers.iter_mut().for_each(|worker| worker.utilisation = 0.5);
    let decision = choose(&settings, &workers, 4000, &[3000, 0], 0).unwrap();
    assert_eq!(decision.chosen().worker, WorkerId(0));
    assert!((decision.terms[0].score - 620.0).abs() < 1e-9);
    assert!((decision.terms[1].score - 820.0).abs() < 1e-9);
}

#[test]
fn workers_that_are_nearly_alike_are_told_apart_by_who_lives_there() {
    let mut workers = [worker(0), worker(1), worker(2)];
    for (worker, (rho, living)) in workers.iter_mut().zip([(0.02, 9.0), (0.02, 3.0), (0.04, 3.0)]) {
        worker.utilisation = rho;
        worker.mean_work = Millis(40.0);
        worker.conversations = living;
    }
    let settings = with_policy(PolicyName::Tail);
    for sequence in 0..6 {
        let decision = choose(&settings, &workers, 4000, &[0; 3], sequence).unwrap();
        assert_eq!(decision.chosen().worker, WorkerId(1));
    }
    // It is no reason to leave a prefix.
    assert_eq!(chosen(&settings, &workers, 4000, &[600, 0, 0]), 0);
    let decision = choose(&settings, &workers, 4000, &[0; 3], 0).unwrap();
    // λ/λ̄ = 0.75 and C/C̄ = 0.6, bounded to 0.8, of a mean prefill of 40 ms, at a tenth.
    assert!((decision.terms[1].home_ms - 0.1 * 40.0 * 1.55).abs() < 1e-9);
}

/// With a guessed capacity, or a cache that is still filling, a worker's indexed tokens are random.
#[test]
fn what_caches_are_believed_to_hold_does_not_decide_where_conversations_begin() {
    let mut workers = [worker(0), worker(1), worker(2), worker(3)];
    for (worker, indexed) in workers.iter_mut().zip([500_000, 20_000, 30_000, 40_000]) {
        worker.mean_work = Millis(15.0);
        worker.utilisation = 0.2;
        worker.conversations = 40.0;
        worker.indexed = Tokens(indexed);
    }
    let settings = with_policy(PolicyName::Tail);
    let decision = choose(&settings, &workers, 500, &[0; 4], 0).unwrap();
    let first = decision.terms[0].score;
    assert!(
        decision.terms.iter().all(|terms| terms.score == first),
        "{decision:?}"
    );
    let mut given = [0; 4];
    for sequence in 0..200 {
        let chosen = choose(&settings, &workers, 500, &[0; 4], sequence)
            .unwrap()
            .chosen;
        given[chosen] += 1;
        workers[chosen].utilisation += 0.0005;
        workers[chosen].conversations += 1.0;
    }
    assert!(given.iter().all(|&given| given == 50), "{given:?}");
}

/// A worker that has just joined is empty, and the others hold hours of traffic.
#[test]
fn an_empty_worker_is_given_some_more_of_the_new_conversations_and_not_most_of_them() {
    for living in [0.0, 10.0, 100.0, 10_000.0] {
        let mut workers = [worker(0), worker(1), worker(2), worker(3)];
        for worker in &mut workers[..3] {
            worker.conversations = living;
        }
        let settings = with_policy(PolicyName::Tail);
        let mut given = [0; 4];
        for sequence in 0..100 {
            let decision = choose(&settings, &workers, 400, &[0; 4], sequence).unwrap();
            let chosen = decision.chosen;
            given[chosen] += 1;
            workers[chosen].utilisation += 0.001;
            workers[chosen].mean_work = Millis(60.0);
            workers[chosen].conversations += 1.0;
        }
        assert!(
            given.iter().all(|given| (15..=35).contains(given)),
            "{living}: {given:?}"
        );
    }
}

/// Static weights are right at one load only:
/// <https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1992>.
#[test]
fn kappa_is_one_when_idle_grows_with_load_and_is_bounded() {
    assert_eq!(tail::kappa(0.0, 1.0, 10.0), 1.0);
    assert!((tail::kappa(0.5, 1.0, 10.0) - 2.0).abs() < 1e-12);
    assert_eq!(tail::kappa(0.99, 1.0, 10.0), 10.0);
    assert_eq!(tail::kappa(7.0, 1.0, 10.0), 10.0);
    assert_eq!(tail::kappa(7.0, 0.0, 10.0), 1.0);
}

#[test]
fn each_term_of_tail_can_tip_the_choice() {
    let workers = [worker(0), worker(1)];
    let resident = [Tokens(0), Tokens(50)];
    let turn = |last| Turn {
        prompt: Tokens(1000),
        resident: &resident,
        objective: Millis(0.0),
        last_worker: last,
        conversation: None,
        head: None,
        class: "",
        ask: None,
    };
    let pick = |weights, last| {
        let settings = Settings {
            weights,
            ..Settings::default()
        };
        decide(
            &Snapshot {
                workers: &workers,
                settings: &settings,
                sequence: 0,
            },
            &turn(last),
        )
        .unwrap()
        .chosen
    };
    assert_eq!(pick(Weights::default(), Some(WorkerId(0))), 1);
    assert_eq!(
        pick(
            Weights {
                affinity_ms: 6.0,
                ..Weights::default()
            },
            Some(WorkerId(0))
        ),
        0
    );
    assert_eq!(
        pick(
            Weights {
                affinity_ms: 4.0,
                ..Weights::default()
            },
            Some(WorkerId(0))
        ),
        1
    );
    let slow_but_cached = Weights {
        slo: 10.0,
        ..Weights::default()
    };
    assert_eq!(pick(slow_but_cached, None), 1);
}

#[test]
fn spread_is_random_but_a_decision_can_be_replayed() {
    let workers: Vec<_> = (0..8).map(worker).collect();
    let settings = Settings {
        weights: Weights {
            spread_ms: 5.0,
            ..Weights::default()
        },
        ..Settings::default()
    };
    let pick = |sequence| {
        choose(&settings, &workers, 1000, &[0; 8], sequence)
            .unwrap()
            .chosen
    };
    let picks: Vec<_> = (0..64).map(pick).collect();
    assert_eq!(picks, (0..64).map(pick).collect::<Vec<_>>());
    assert!((0..8).all(|worker| picks.contains(&worker)), "{picks:?}");
}

#[test]
fn the_last_prompt_token_is_always_computed() {
    let decision = choose(&Settings::default(), &[worker(0)], 100, &[100], 0).unwrap();
    assert_eq!(decision.chosen().uncached, Tokens(1));
    assert_eq!(
        choose(&Settings::default(), &[worker(0)], 0, &[0], 0)
            .unwrap()
            .chosen()
            .uncached,
        Tokens(0)
    );
}

#[test]
fn equal_workers_take_turns() {
    let workers: Vec<_> = (0..3).map(worker).collect();
    for policy in [PolicyName::Tail, PolicyName::RoundRobin, PolicyName::LeastLoaded] {
        let picks: Vec<_> = (0..6)
            .map(|i| {
                choose(&with_policy(policy), &workers, 10, &[0; 3], i)
                    .unwrap()
                    .chosen
            })
            .collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2], "{policy}");
    }
}

#[test]
fn round_robin_skips_unready_workers_without_favouring_their_neighbour() {
    let mut workers: Vec<_> = (0..4).map(worker).collect();
    workers[1].ready = false;
    let picks: Vec<_> = (0..6)
        .map(|i| {
            choose(&with_policy(PolicyName::RoundRobin), &workers, 10, &[0; 4], i)
                .unwrap()
                .chosen
        })
        .collect();
    assert_eq!(picks, [0, 2, 3, 0, 2, 3]);
}

#[test]
fn least_loaded_counts_requests() {
    let mut workers = [worker(0), worker(1)];
    workers[0].in_flight = 2;
    workers[1].in_flight = 1;
    assert_eq!(
        chosen(&with_policy(PolicyName::LeastLoaded), &workers, 10, &[10, 0]),
        1
    );
}

#[test]
fn cache_aware_goes_to_the_holder_of_more_than_half() {
    let settings = with_policy(PolicyName::CacheAware);
    let mut workers = [worker(0), worker(1)];
    workers[0].indexed = Tokens(10_000);
    assert_eq!(chosen(&settings, &workers, 1000, &[501, 0]), 0);
    // Half is not more than half, so the smallest tree, whatever its load.
    workers[1].in_flight = 30;
    let decision = choose(&settings, &workers, 1000, &[500, 0], 0).unwrap();
    assert_eq!((decision.chosen, decision.reason), (1, Reason::SmallestTree));
}

#[test]
fn cache_aware_ignores_the_prefix_once_out_of_balance() {
    let settings = with_policy(PolicyName::CacheAware);
    let mut workers = [worker(0), worker(1)];
    workers[0].in_flight = 32;
    assert_eq!(chosen(&settings, &workers, 1000, &[900, 0]), 0);
    workers[0].in_flight = 33;
    let decision = choose(&settings, &workers, 1000, &[900, 0], 0).unwrap();
    assert_eq!((decision.chosen, decision.reason), (1, Reason::Imbalance));
}

#[test]
fn policy_names_survive_a_round_trip_and_a_typo_names_them_all() {
    for policy in PolicyName::ALL {
        assert_eq!(policy.as_str().parse::<PolicyName>(), Ok(policy));
        assert_eq!(serde_json::to_value(policy).unwrap(), policy.as_str());
    }
    assert!(
        "tial"
            .parse::<PolicyName>()
            .unwrap_err()
            .to_string()
            .contains("tail, round_robin")
    );
}

/// Routing by time to first token: <https://github.com/vllm-project/production-stack/issues/583>,
/// <https://github.com/vllm-project/production-stack/issues/670>.
#[test]
fn least_ttft_is_tail_without_the_bill_for_others() {
    let mut workers = [worker(0), worker(1)];
    workers.iter_mut().for_each(|worker| worker.utilisation = 0.9);
    workers[0].wait = Millis(301.0);
    // 301 + 100 against 400: better for the turn alone, worse for the fleet.
    assert_eq!(
        chosen(&with_policy(PolicyName::LeastTtft), &workers, 4000, &[3000, 0]),
        1
    );
    assert_eq!(
        chosen(&with_policy(PolicyName::Tail), &workers, 4000, &[3000, 0]),
        0
    );
}

#[test]
fn drawn_policies_reach_everybody_evenly() {
    let workers: Vec<_> = (0..5).map(worker).collect();
    for policy in [
        PolicyName::Random,
        PolicyName::PowerOfTwo,
        PolicyName::ConsistentHash,
        PolicyName::PrefixHash,
    ] {
        let mut counts = [0; 5];
        for sequence in 0..5000 {
            counts[choose(&with_policy(policy), &workers, 10, &[0; 5], sequence)
                .unwrap()
                .chosen] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{policy}: {counts:?}"
        );
    }
}

#[test]
fn power_of_two_never_takes_the_busiest() {
    let mut workers: Vec<_> = (0..5).map(worker).collect();
    workers[2].in_flight = 9;
    for sequence in 0..200 {
        let decision = choose(
            &with_policy(PolicyName::PowerOfTwo),
            &workers,
            10,
            &[0; 5],
            sequence,
        );
        assert_ne!(decision.unwrap().chosen, 2);
    }
}

#[test]
fn a_worker_that_leaves_takes_only_its_own_conversations_along() {
    let settings = with_policy(PolicyName::ConsistentHash);
    let mut workers: Vec<_> = (0..5).map(worker).collect();
    let pick = |workers: &[WorkerView], conversation| {
        choose(&settings, workers, 10, &[0; 5], conversation)
            .unwrap()
            .chosen
    };
    let before: Vec<_> = (0..500).map(|c| pick(&workers, c)).collect();
    workers[3].ready = false;
    for (conversation, &home) in before.iter().enumerate() {
        let now = pick(&workers, conversation as u64);
        assert!(now != 3 && (now == home || home == 3));
    }
}

#[test]
fn prefix_hash_passes_an_overloaded_worker_over() {
    let settings = with_policy(PolicyName::PrefixHash);
    let mut workers: Vec<_> = (0..4).map(worker).collect();
    let home = choose(&settings, &workers, 10, &[0; 4], 7).unwrap().chosen;
    workers[home].in_flight = 20;
    assert_ne!(choose(&settings, &workers, 10, &[0; 4], 7).unwrap().chosen, home);
    workers.iter_mut().for_each(|worker| worker.in_flight = 20);
    assert_eq!(choose(&settings, &workers, 10, &[0; 4], 7).unwrap().chosen, home);
}

#[test]
fn the_successors_rule_spills_a_busy_holder_and_balances_a_miss() {
    let settings = with_policy(PolicyName::CacheAwareSmg);
    let mut workers: Vec<_> = (0..4).map(worker).collect();
    workers[1].in_flight = 1;
    let pick = |workers: &[WorkerView], resident: &[u64]| {
        let decision = choose(&settings, workers, 1000, resident, 1).unwrap();
        (decision.chosen, decision.reason)
    };
    assert_eq!(pick(&workers, &[0, 301, 0, 0]), (1, Reason::PrefixMatch));
    assert_eq!(pick(&workers, &[0, 300, 0, 0]).1, Reason::FewestInFlight);
    workers[1].in_flight = 10;
    let (elsewhere, reason) = pick(&workers, &[0, 900, 0, 0]);
    assert!(elsewhere != 1 && reason == Reason::Overload);
}
