use policy::cost::PrefillCost;
use policy::estimate::LearnedCost;
use policy::units::Tokens;

use super::*;

const W: WorkerId = WorkerId(0);
const TRUE: PrefillCost = PrefillCost {
    alpha_ms_per_token: 0.08,
    beta_ms: 25.0,
    gamma_ms_per_token2: 2e-6,
    floor_ms: 0.0,
};

/// An engine with counters, and a router that has sent it prompts.
struct Pair {
    engine: Counted,
    counters: FleetCounters,
}

impl Pair {
    fn new(requests: Option<f64>) -> Self {
        let engine = Counted {
            took: Millis(5000.0),
            tokens: 77_000.0,
            requests,
        };
        let mut counters = FleetCounters::new(1);
        assert_eq!(counters.counted(Millis(0.0), W, engine), None, "a beginning");
        Self { engine, counters }
    }

    fn vllm() -> Self {
        Self::new(Some(60.0))
    }

    fn computes(&mut self, uncached: u64, cached: u64) {
        let took = TRUE.prefill(Tokens(uncached), Tokens(cached));
        self.engine.took += took;
        self.engine.tokens += uncached as f64;
        self.engine.requests = self.engine.requests.map(|count| count + 1.0);
    }

    fn answers(&mut self, uncached: u64, cached: u64) {
        self.tells(Millis(1.0), uncached, cached, true, false);
    }

    fn tells(&mut self, now: Millis, uncached: u64, cached: u64, said: bool, told: bool) {
        let size = PrefillSize::of(Tokens(uncached), Tokens(cached));
        self.counters.answered(now, W, size, said, told);
    }

    fn look(&mut self, now: f64) -> Option<(PrefillSize, Millis)> {
        self.counters.counted(Millis(now), W, self.engine)
    }
}

/// Returns the uncached and cached tokens of the `i`-th prompt.
fn prompt(i: u64) -> (u64, u64) {
    (i * 7919 % 3000 + 10, i * 104_729 % 8000)
}

#[test]
fn what_both_have_counted_teaches_as_an_answer_would() {
    let mut pair = Pair::vllm();
    for (uncached, cached) in [(400, 0), (1000, 3000)] {
        pair.computes(uncached, cached);
        pair.answers(uncached, cached);
        let (size, took) = pair.look(1.0).unwrap();
        assert_eq!(size, PrefillSize::of(Tokens(uncached), Tokens(cached)));
        assert!((took - TRUE.prefill(Tokens(uncached), Tokens(cached))).0.abs() < 1e-6);
    }
    assert_eq!(pair.look(2.0), None, "nothing happened");
}

#[test]
fn all_of_the_cost_is_learned_from_intervals_of_many() {
    for requests in [Some(0.0), None] {
        let mut pair = Pair::new(requests);
        let mut learned = LearnedCost::guess(PrefillCost::linear(0.5, 0.0));
        let mut next = 0;
        for interval in 0..300u64 {
            for _ in 0..=interval % 4 {
                let (uncached, cached) = prompt(next);
                pair.computes(uncached, cached);
                pair.answers(uncached, cached);
                next += 1;
            }
            let (size, took) = pair.look(interval as f64).unwrap();
            learned.observe_size(size, took);
        }
        for (u, h) in [(200, 0), (2500, 0), (500, 6000)] {
            let (u, h) = (Tokens(u), Tokens(h));
            let off = learned.cost().prefill(u, h).0 / TRUE.prefill(u, h).0 - 1.0;
            assert!(off.abs() < 0.03, "{u} {h} {off} {:?}", learned.cost());
        }
    }
}

#[test]
fn what_the_engine_counts_before_its_answer_is_here_waits_for_it() {
    let mut pair = Pair::vllm();
    pair.computes(400, 0);
    assert_eq!(pair.look(1.0), None);
    pair.answers(400, 0);
    assert!(pair.look(2.0).is_some());
    // Likewise in the other order.
    pair.answers(500, 0);
    assert_eq!(pair.look(3.0), None);
    pair.computes(500, 0);
    assert!(pair.look(4.0).is_some());
}

#[test]
fn others_prompts_teach_if_they_are_many_and_like_ones_own() {
    let mut pair = Pair::vllm();
    for i in 0..8 {
        assert_eq!(pair.look(f64::from(i)), None, "too few of its own");
        pair.computes(1000, 0);
        pair.computes(1200, 0);
        pair.answers(1000, 0);
    }
    let (size, took) = pair.look(9.0).unwrap();
    assert!((size.uncached - 1100.0).abs() < 1e-6);
    let expected = TRUE.alpha_ms_per_token * 1100.0 + TRUE.beta_ms;
    assert!((took.0 / expected - 1.0).abs() < 0.02, "{took} {expected}");
    // Requests of other clients that compute much more are not representative.
    for _ in 0..20 {
        pair.computes(9000, 0);
        pair.computes(1000, 0);
        pair.answers(1000, 0);
    }
    assert_eq!(pair.look(10.0), None);
}

#[test]
fn an_interval_that_does_not_fit_is_given_up_after_a_while() {
    let mut pair = Pair::vllm();
    pair.computes(9000, 0);
    assert_eq!(pair.look(PATIENCE.0), None);
    assert_eq!(pair.look(PATIENCE.0 + 1.0), None, "given up");
    pair.computes(400, 0);
    pair.answers(400, 0);
    assert!(pair.look(PATIENCE.0 + 2.0).is_some());
}

#[test]
fn an_engine_that_began_anew_is_followed_from_there() {
    let mut pair = Pair::vllm();
    pair.answers(400, 0);
    pair.engine = Counted {
        took: Millis(1.0),
        tokens: 10.0,
        requests: Some(1.0),
    };
    assert_eq!(pair.look(1.0), None);
    pair.computes(400, 0);
    pair.answers(400, 0);
    assert!(pair.look(2.0).is_some());
    // It was restarted, and has counted more since than before.
    pair.answers(400, 0);
    pair.counters.forget(W);
    pair.computes(400, 0);
    assert_eq!(pair.look(3.0), None);
}

#[test]
fn as_long_as_answers_tell_the_counters_are_not_listened_to() {
    let mut pair = Pair::vllm();
    pair.computes(400, 0);
    pair.tells(Millis(0.0), 400, 0, true, true);
    assert_eq!(pair.look(1.0), None);
    pair.computes(400, 0);
    pair.answers(400, 0);
    assert_eq!(pair.look(TELLING.0 - 1.0), None);
    pair.computes(400, 0);
    pair.answers(400, 0);
    assert!(pair.look(TELLING.0 + 1.0).is_some());
}

#[test]
fn where_nobody_says_what_was_cached_the_cost_is_one_of_what_is_predicted() {
    let mut pair = Pair::vllm();
    pair.computes(400, 0);
    pair.tells(Millis(0.0), 500, 0, false, false);
    let (size, _) = pair.look(1.0).unwrap();
    assert_eq!(size, PrefillSize::of(Tokens(500), Tokens(0)));
    // Without a count of requests, steps are attributed by tokens, which are unknown here.
    let mut pair = Pair::new(None);
    pair.computes(400, 0);
    pair.tells(Millis(0.0), 400, 0, false, false);
    assert_eq!(pair.look(1.0), None);
}
