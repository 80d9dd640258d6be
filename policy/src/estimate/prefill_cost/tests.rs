use proptest::prelude::*;

use super::*;

const TRUE: PrefillCost = PrefillCost {
    alpha_ms_per_token: 0.08,
    beta_ms: 25.0,
    gamma_ms_per_token2: 2e-6,
    floor_ms: 0.0,
};

/// Adds `count` responses: sizes vary, noise is ±2 ms, and with `outliers` every 20th is ten times too late.
fn feed(learned: &mut LearnedCost, cost: PrefillCost, from: u64, count: u64, outliers: bool) {
    for i in from..from + count {
        let (u, h) = (Tokens(i * 7919 % 6000 + 10), Tokens(i * 104_729 % 20_000));
        let noise = (i * 31 % 41) as f64 / 10.0 - 2.0;
        let factor = if outliers && i % 20 == 19 { 10.0 } else { 1.0 };
        learned.observe(u, h, Millis((cost.prefill(u, h).0 + noise) * factor));
    }
}

fn off(learned: &LearnedCost, cost: PrefillCost) -> f64 {
    let (u, h) = (Tokens(3000), Tokens(8000));
    (learned.cost().prefill(u, h).0 / cost.prefill(u, h).0 - 1.0).abs()
}

#[test]
fn it_learns_the_cost_from_a_wrong_prior() {
    let mut learned = LearnedCost::new(PrefillCost::linear(0.02, 0.0));
    feed(&mut learned, TRUE, 0, 400, false);
    assert!(off(&learned, TRUE) < 0.02, "{:?}", learned.cost());
    assert!(learned.error().0 < 10.0);
}

/// Adds turns of a warm conversation on a GPU: nineteen of twenty are on the floor.
fn feed_warm(learned: &mut LearnedCost, cost: PrefillCost) {
    for i in 0..400u64 {
        let long = if i % 20 == 0 { 4000 } else { 0 };
        let (u, h) = (Tokens(i * 7919 % 300 + 20 + long), Tokens(i * 104_729 % 20_000));
        let noise = (i * 31 % 41) as f64 / 20.0 - 1.0;
        learned.observe(u, h, Millis(cost.prefill(u, h).0 + noise));
    }
}

#[test]
fn answers_on_the_floor_teach_the_floor_and_not_the_line() {
    let true_cost = PrefillCost {
        floor_ms: 20.0,
        ..PrefillCost::linear(0.02, 6.0)
    };
    let learn_from = |floor_ms| {
        let mut learned = LearnedCost::new(PrefillCost {
            floor_ms,
            ..PrefillCost::linear(0.02, 6.0)
        });
        feed_warm(&mut learned, true_cost);
        learned.cost()
    };
    for floor_ms in [20.0, 18.0, 24.0] {
        let cost = learn_from(floor_ms);
        assert!(
            (cost.floor_ms - 20.0).abs() < 1.0 && (cost.beta_ms - 6.0).abs() < 2.0,
            "{cost:?}"
        );
    }
    let blind = learn_from(0.0);
    assert!(blind.beta_ms > 12.0, "the line is bent without it: {blind:?}");
}

#[test]
fn a_worker_that_is_slower_than_its_floor_has_become_slower_and_is_believed_when_it_recovers() {
    let floor_ms = 20.0;
    let mut learned = LearnedCost::new(PrefillCost {
        floor_ms,
        ..PrefillCost::linear(0.02, 6.0)
    });
    let slow = PrefillCost {
        floor_ms: 3.0 * floor_ms,
        ..PrefillCost::linear(0.06, 18.0)
    };
    feed_warm(&mut learned, slow);
    let (u, h) = (Tokens(150), Tokens(5000));
    let off = learned.cost().prefill(u, h).0 / slow.prefill(u, h).0 - 1.0;
    assert!(off.abs() < 0.1, "{off} {:?}", learned.cost());
    let well = PrefillCost {
        floor_ms,
        ..PrefillCost::linear(0.02, 6.0)
    };
    feed_warm(&mut learned, well);
    for (u, h) in [(150, 5000), (4000, 5000)] {
        let (u, h) = (Tokens(u), Tokens(h));
        let off = learned.cost().prefill(u, h).0 / well.prefill(u, h).0 - 1.0;
        assert!(off.abs() < 0.1, "{u} tokens: {off} {:?}", learned.cost());
    }
}

#[test]
fn means_of_several_answers_lie_on_the_same_line() {
    let mut learned = LearnedCost::new(PrefillCost::linear(0.02, 0.0));
    for group in 0..400u64 {
        let (mut mean, mut took) = (PrefillSize::default(), 0.0);
        let count = 1 + group % 5;
        for i in 0..count {
            let (u, h) = (
                Tokens((group * 7 + i) * 7919 % 6000 + 10),
                Tokens((group * 7 + i) * 104_729 % 20_000),
            );
            let size = PrefillSize::of(u, h);
            mean.uncached += size.uncached / count as f64;
            mean.pairs += size.pairs / count as f64;
            took += TRUE.prefill(u, h).0 / count as f64;
        }
        learned.observe_size(mean, Millis(took));
    }
    assert!(off(&learned, TRUE) < 0.02, "{:?}", learned.cost());
}

#[test]
fn a_guess_that_is_far_off_is_overturned_by_a_few_answers_and_a_measurement_is_not() {
    let far = PrefillCost::linear(9.0, 5.0);
    let mut guess = LearnedCost::guess(far);
    let mut measured = LearnedCost::new(far);
    for learned in [&mut guess, &mut measured] {
        feed(learned, TRUE, 0, 30, false);
    }
    assert!(off(&guess, TRUE) < 0.2, "{:?}", guess.cost());
    assert!(off(&measured, TRUE) > off(&guess, TRUE));
}

#[test]
fn outliers_hardly_bend_it() {
    let mut learned = LearnedCost::new(TRUE);
    feed(&mut learned, TRUE, 0, 600, true);
    assert!(off(&learned, TRUE) < 0.06, "{:?}", learned.cost());
}

#[test]
fn a_worker_that_halves_its_speed_is_followed_within_two_hundred_answers() {
    let mut learned = LearnedCost::new(TRUE);
    feed(&mut learned, TRUE, 0, 400, false);
    let slow = PrefillCost {
        alpha_ms_per_token: 0.16,
        ..TRUE
    };
    feed(&mut learned, slow, 400, 200, false);
    assert!(off(&learned, slow) < 0.05, "{:?}", learned.cost());
}

#[test]
fn coefficients_stay_physical_and_nonsense_changes_nothing() {
    let mut learned = LearnedCost::new(TRUE);
    learned.observe(Tokens(5), Tokens(5), Millis(f64::NAN));
    let endless = PrefillSize {
        uncached: 5.0,
        pairs: f64::INFINITY,
    };
    learned.observe_size(endless, Millis(5.0));
    assert_eq!(learned.seen(), 0);
    for i in 0..300 {
        learned.observe(Tokens(6000 - i * 20), Tokens(0), Millis(i as f64));
    }
    let cost = learned.cost();
    assert!(cost.alpha_ms_per_token > 0.0 && cost.beta_ms >= 0.0 && cost.gamma_ms_per_token2 >= 0.0);
}

#[test]
fn a_coefficient_that_cannot_be_negative_is_not_missed_by_the_others() {
    // Short prompts alone cannot separate β from α, and a prior far off in α leaves β below zero.
    let mut learned = LearnedCost::with_covariance(PrefillCost::linear(0.5, 5.0), WOUND);
    let truth = PrefillCost::linear(0.05, 5.0);
    for i in 0..100 {
        let u = Tokens(100 + i * 37 % 900);
        learned.observe(u, Tokens(0), truth.prefill(u, Tokens(0)));
    }
    assert!(
        learned.theta.iter().any(|&theta| theta < 0.0),
        "{:?}",
        learned.theta
    );
    let cost = learned.cost();
    assert!(cost.beta_ms >= 0.0 && cost.gamma_ms_per_token2 >= 0.0);
    for u in [300, 550, 900].map(Tokens) {
        let off = cost.prefill(u, Tokens(0)).0 / truth.prefill(u, Tokens(0)).0 - 1.0;
        assert!(off.abs() < 0.3, "{u}: {off} {cost:?}");
    }
}

#[test]
fn a_prediction_knows_how_far_it_may_be_off() {
    let mut learned = LearnedCost::guess(PrefillCost::linear(0.5, 5.0));
    let (u, h) = (Tokens(3000), Tokens(8000));
    let mut last = f64::INFINITY;
    for round in 0..4 {
        feed(&mut learned, TRUE, round * 100, 100, false);
        let (predicted, error) = learned.predict(u, h);
        assert!(
            (predicted - TRUE.prefill(u, h)).0.abs() < 4.0 * error.0 + 0.5,
            "{predicted} {error}"
        );
        assert!(error.0 <= last, "{error}");
        last = error.0;
    }
    assert!(last < 1.0, "{last}");
}

fn long() -> Doubt {
    Doubt::after(Millis(600_000.0), Millis(60_000.0))
}

#[test]
fn one_answer_after_a_long_silence_scales_the_whole_line() {
    for factor in [0.125, 0.5, 1.9] {
        let mut learned = LearnedCost::guess(PrefillCost::linear(0.5, 5.0));
        feed(&mut learned, TRUE, 0, 300, false);
        let (u, h) = (Tokens(1500), Tokens(2000));
        let took = Millis(TRUE.prefill(u, h).0 * factor);
        learned.observe_after(long(), PrefillSize::of(u, h), took);
        let (u, h) = (Tokens(3000), Tokens(8000));
        let now = learned.cost().prefill(u, h).0 / TRUE.prefill(u, h).0;
        assert!(
            (now / factor - 1.0).abs() < 0.1,
            "{factor} {now} {:?}",
            learned.cost()
        );
    }
}

#[test]
fn an_outlier_after_a_long_silence_at_most_doubles_it_and_noise_in_use_hardly_moves_it() {
    let mut learned = LearnedCost::new(TRUE);
    feed(&mut learned, TRUE, 0, 300, false);
    let mut used = learned.clone();
    let (u, h) = (Tokens(1500), Tokens(2000));
    let late = Millis(10.0 * TRUE.prefill(u, h).0);
    learned.observe_after(long(), PrefillSize::of(u, h), late);
    assert!(off(&learned, TRUE) < 1.1, "{:?}", learned.cost());
    let second = Doubt::after(Millis(1000.0), Millis(60_000.0));
    used.observe_after(second, PrefillSize::of(u, h), late);
    assert!(off(&used, TRUE) < 0.01, "{:?}", used.cost());
}

#[test]
fn what_was_believed_before_a_silence_is_not_mistaken_for_noise_after_it() {
    let mut learned = LearnedCost::new(TRUE);
    feed(&mut learned, TRUE, 0, 300, false);
    let before = learned.error();
    let (u, h) = (Tokens(1500), Tokens(2000));
    let took = Millis(TRUE.prefill(u, h).0 / 8.0);
    learned.observe_after(long(), PrefillSize::of(u, h), took);
    assert!(learned.error().0 < 1.1 * before.0, "{} {before}", learned.error());
}

proptest! {
    #[test]
    fn an_answer_as_predicted_leaves_the_estimate_where_it_is_after_any_silence(
        idle in 0.0..1e12f64,
        alpha in 0.001..1.0f64,
        beta in 0.0..100.0f64,
        u in 1..100_000u64,
        h in 0..100_000u64,
    ) {
        let cost = PrefillCost::linear(alpha, beta);
        let mut learned = LearnedCost::new(cost);
        feed(&mut learned, cost, 0, 50, false);
        let doubt = Doubt::after(Millis(idle), Millis(60_000.0));
        let line = |learned: &LearnedCost, u, h| {
            let x = PrefillSize::of(Tokens(u), Tokens(h)).features();
            learned.theta.iter().zip(x).map(|(theta, x)| theta * x).sum::<f64>()
        };
        let (before, predicted) = (line(&learned, 2000, 1000), line(&learned, u, h));
        prop_assume!(predicted >= 0.0);
        learned.observe_after(doubt, PrefillSize::of(Tokens(u), Tokens(h)), Millis(predicted));
        let moved = line(&learned, 2000, 1000) / before;
        prop_assert!((moved - 1.0).abs() < 1e-6, "{moved}");
    }
}

#[test]
fn only_a_worker_that_has_not_answered_begins_anew() {
    let mut learned = LearnedCost::new(PrefillCost::linear(0.5, 1.0));
    learned.begin_with(TRUE);
    assert_eq!(learned.cost(), LearnedCost::new(TRUE).cost());
    learned.observe(Tokens(100), Tokens(0), Millis(30.0));
    learned.begin_with(PrefillCost::linear(9.0, 9.0));
    assert!(learned.cost().alpha_ms_per_token < 1.0);
}

#[test]
fn a_pool_lends_its_median() {
    let pool = [0.1, 0.5, 0.2].map(|alpha| PrefillCost::linear(alpha, alpha * 10.0));
    let begin = pooled(&pool).unwrap();
    assert_eq!((begin.alpha_ms_per_token, begin.beta_ms), (0.2, 2.0));
    assert_eq!(pooled(&[]), None);
}
