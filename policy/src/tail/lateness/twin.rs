//! The estimates against a twin that keeps every turn and computes each prefill anew.

use proptest::prelude::*;

use super::*;

const WORKERS: u32 = 3;
const OBJECTIVES: [f64; 2] = [300.0, 2_000.0];

/// Worker, wait, added tokens, history, and whether the turn is of the strict class.
type Played = (u32, f64, u64, u64, bool);

fn cost(worker: u32) -> PrefillCost {
    PrefillCost {
        alpha_ms_per_token: 0.02 * f64::from(worker + 1),
        beta_ms: 5.0,
        gamma_ms_per_token2: 2e-6 * f64::from(worker),
        floor_ms: 20.0 * f64::from(worker),
    }
}

fn begun(&(worker, wait, added, history, strict): &Played) -> Begun {
    let (prompt, history) = (Tokens(history + added), Tokens(history));
    let wait = Millis(wait);
    Begun {
        wait,
        ttft: wait + cost(worker).prefill(Tokens(added), history),
        objective: Millis(OBJECTIVES[usize::from(!strict)]),
        prompt,
        cached: history,
        history,
        compared: None,
        cost: cost(worker),
    }
}

fn taught(turns: &[Played]) -> LatenessCost {
    let mut harm = LatenessCost::default();
    (0..WORKERS).for_each(|worker| harm.admit(WorkerId(worker)));
    turns
        .iter()
        .for_each(|turn| harm.begun(WorkerId(turn.0), &begun(turn)));
    harm.refresh();
    harm
}

/// The turns that stand for a worker's next ones: its own latest, and the fleet's latest where these are few.
fn sample(turns: &[Played], worker: u32) -> Vec<Begun> {
    let known = |turn: &&Played| turn.3 > 0;
    let own = turns.iter().rev().filter(known).filter(|turn| turn.0 == worker);
    let own: Vec<_> = own.take(SAMPLED).map(begun).collect();
    let lacking = SAMPLED - own.len();
    let all = turns.iter().rev().filter(known).take(SAMPLED).take(lacking);
    own.into_iter().chain(all.map(begun)).collect()
}

fn mean_objective(turns: &[Played]) -> f64 {
    let known = turns.iter().rev().filter(|turn| turn.3 > 0).take(SAMPLED);
    let objectives: Vec<f64> = known.map(|turn| begun(turn).objective.0).collect();
    objectives.iter().sum::<f64>() / objectives.len() as f64
}

fn late(
    harm: &LatenessCost,
    turns: &[Played],
    worker: u32,
    of: impl Fn(&Begun) -> Silent,
    missing: u64,
) -> f64 {
    let target = harm.target().unwrap();
    let sample = sample(turns, worker);
    let late = |turn: &Begun| {
        let copy = of(turn);
        let missing = Tokens(missing).min(copy.length);
        let added = turn.prompt.saturating_sub(turn.history);
        let took = turn.wait + cost(worker).prefill(missing + added, copy.length.saturating_sub(missing));
        let weight = (mean_objective(turns) / copy.objective.0).sqrt();
        f64::from(u8::from(took > target)) + weight * f64::from(u8::from(took > copy.objective))
    };
    sample.iter().map(late).sum::<f64>() / sample.len() as f64
}

fn turns() -> impl Strategy<Value = Vec<Played>> {
    let turn = (
        0..WORKERS,
        0.0..400.0_f64,
        1_u64..3_000,
        0_u64..20_000,
        any::<bool>(),
    );
    // Every worker has a turn, so its cost is known.
    prop::collection::vec(turn, 300..900).prop_map(|turns| {
        (0..WORKERS)
            .map(|worker| (worker, 0.0, 1, 1, true))
            .chain(turns)
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_copy_is_late_as_often_as_its_workers_turns_would_be_with_its_history_and_objective(
        turns in turns(),
        worker in 0..WORKERS,
        length in 1_u64..30_000,
        missing in 0_u64..30_000,
        strict in any::<bool>(),
    ) {
        let harm = taught(&turns);
        let copy = Silent { length: Tokens(length), objective: Millis(OBJECTIVES[usize::from(!strict)]) };
        let missing = missing.min(length);
        let ours = harm.on(WorkerId(worker)).late(&copy, missing as f64);
        let twin = late(&harm, &turns, worker, |_| copy, missing);
        prop_assert!((ours - twin).abs() < 1e-9, "{ours} {twin}");
    }

    #[test]
    fn the_tokens_that_a_harm_allows_are_the_most_that_do(
        turns in turns(),
        worker in 0..WORKERS,
        length in 2_u64..30_000,
        bound in 0.0..6.0_f64,
    ) {
        let harm = taught(&turns);
        let copy = Silent { length: Tokens(length), objective: Millis(300.0) };
        let on = harm.on(WorkerId(worker));
        let most = on.missing_worth(&copy, bound, 1, length);
        let per_token = on.per_token(length as f64 - 1.0);
        let costs = |missing| per_token * (late(&harm, &turns, worker, |_| copy, missing) + harm.beside());
        prop_assert!(most == 1 || costs(most) <= bound + 1e-9);
        prop_assert!(most == length || costs(most + 1) >= bound - 1e-9);
    }

    #[test]
    fn what_is_said_beforehand_counts_each_sampled_turn_with_its_own_history_and_objective(
        turns in turns(),
        worker in 0..WORKERS,
        missing in 1_u64..20_000,
    ) {
        // Without γ all tokens cost the same, so that the costs of turns are P on average.
        let worker = worker * u32::from(cost(worker).gamma_ms_per_token2 == 0.0);
        let harm = taught(&turns);
        let steps = harm.on(WorkerId(worker)).steps();
        let passed = steps.partition_point(|(tokens, _)| *tokens < missing as f64);
        let own = |turn: &Begun| Silent { length: turn.history, objective: turn.objective };
        let twin = late(&harm, &turns, worker, own, missing) + harm.beside();
        let ours = steps[passed - 1].1;
        // A turn whose history is shorter is late with all of it missing, or not at all.
        prop_assert!((ours - twin).abs() < 1e-9, "{ours} {twin}");
    }
}

#[test]
fn the_end_of_a_long_history_costs_more_than_that_of_a_short_one() {
    let turns: Vec<Played> = (0..300).map(|_| (2, 1_000.0, 100, 1_000, true)).collect();
    let harm = taught(&turns);
    let of_return = |length| {
        let copy = Silent {
            length: Tokens(length),
            objective: Millis(300.0),
        };
        harm.on(WorkerId(2)).of_return(&copy, 0.0)
    };
    // All turns are late; α is 0.06 and γ 4e-6, so that a token after 15,000 costs twice as much as the first.
    assert!((of_return(15_000) / of_return(0) - 2.0).abs() < 1e-9);
}

#[test]
fn what_an_earlier_release_saved_restores_what_it_shares_with_this_one() {
    let saved = r#"{"took":[10.0,20.0],"at_best":[[5.0,300.0]],"turns":2.0,"behind":0.5,"late_behind":0.25,"alpha":0.1}"#;
    let kept: LatenessCost = serde_json::from_str(saved).unwrap();
    let mut harm = LatenessCost::default();
    harm.admit(WorkerId(0));
    assert!(harm.restore(&kept));
    assert_eq!((harm.kappa(), harm.epsilon(), harm.sample.len()), (0.5, 0.25, 0));
}

#[test]
fn estimates_survive_a_restart_except_those_of_each_worker() {
    let turns: Vec<Played> = (0..400)
        .map(|at| (at % 3, f64::from(at), 100, 1_000, at % 2 == 0))
        .collect();
    let before = taught(&turns);
    let mut after = LatenessCost::default();
    after.admit(WorkerId(0));
    let kept = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
    assert!(after.restore(&kept));
    assert_eq!((after.target(), &after.sample), (before.target(), &before.sample));
    assert!(!after.restore(&kept), "as many turns are known here");
    // With the first turn a worker's cost is known again, and the fleet's turns stand for its own.
    after.begun(WorkerId(0), &begun(&turns[0]));
    let mut turns = turns;
    turns.push(turns[0]);
    let copy = Silent {
        length: Tokens(4_000),
        objective: Millis(300.0),
    };
    assert!(after.on(WorkerId(0)).late(&copy, 0.0) > 0.0);
    let mut unsound = kept.clone();
    unsound.sample[0].wait_ms = f64::NAN;
    assert!(!LatenessCost::default().restore(&unsound));
}
