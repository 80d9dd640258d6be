use super::feedback::*;
use super::*;

const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);

#[test]
fn the_tail_is_what_may_be_missing_without_being_late() {
    let xi = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
    assert!((xi - 1000.0).abs() < 1e-9);
    assert_eq!(evict_first_tail(xi, Tokens(200)), Tokens(800));
    assert_eq!(evict_first_tail(xi, Tokens(2000)), Tokens::ZERO);
}

#[test]
fn a_queue_leaves_less_room() {
    let idle = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
    let busy = xi_tokens(&COST, Millis(120.0), Millis(50.0), Tokens::ZERO);
    assert!((idle - busy - 500.0).abs() < 1e-9);
    assert_eq!(xi_tokens(&COST, Millis(120.0), Millis(500.0), Tokens::ZERO), 0.0);
}

#[test]
fn a_worker_that_costs_nothing_may_drop_everything() {
    let xi = xi_tokens(
        &PrefillCost::linear(0.0, 0.0),
        Millis(1.0),
        Millis::ZERO,
        Tokens::ZERO,
    );
    assert_eq!(evict_first_tail(xi, Tokens(200)), Tokens(1_000_000_000));
}

const CONFIGURED: [Millis; 2] = [Millis(400.0), Millis(120.0)];
const SHARE: f64 = 0.95;

fn turn(at: u32, wait: f64, uncached: u64, objective: Objective) -> ServedTurn {
    let prefill = COST.prefill(Tokens(uncached), Tokens::ZERO);
    ServedTurn {
        at: Millis(f64::from(at)),
        wait: Millis(wait),
        ttft: Millis(wait) + prefill,
        uncached: Tokens(uncached),
        cached: Tokens::ZERO,
        objective,
    }
}

fn told(feedback: &mut ObjectiveFeedback, configured: &[Millis]) -> WorkerObjective {
    feedback.tell(Millis(1_000.0), &COST, SHARE, configured)
}

#[test]
fn xi_follows_the_objective_the_cost_and_the_wait() {
    let mut idle = ObjectiveFeedback::default();
    assert!(
        (told(&mut idle, &CONFIGURED).xi_tokens - 3800.0).abs() < 1e-6,
        "no turn yet"
    );
    assert!(
        (told(&mut idle, &[Millis(200.0)]).xi_tokens - 1800.0).abs() < 1e-6,
        "half the objective"
    );
    let slower = idle.tell(Millis::ZERO, &COST.times(2.0), SHARE, &CONFIGURED);
    assert!((slower.xi_tokens - 1800.0).abs() < 1e-6, "twice the cost");
    for at in 0..20 {
        idle.served(turn(at, 100.0, 100, Objective::Configured(0)), SHARE, &CONFIGURED);
    }
    let busy = told(&mut idle, &CONFIGURED);
    assert!(
        (busy.xi_tokens - 2800.0).abs() < 1e-6 && busy.observed.wait_ms == 100.0,
        "{busy:?}"
    );
}

#[test]
fn the_strictest_class_with_traffic_decides_until_its_turns_are_old() {
    let mut feedback = ObjectiveFeedback::default();
    for objective in [
        Objective::Configured(0),
        Objective::Configured(1),
        Objective::Requested(Millis(900.0)),
    ] {
        feedback.served(turn(0, 0.0, 10, objective), SHARE, &CONFIGURED);
    }
    let now = told(&mut feedback, &CONFIGURED);
    let times: Vec<f64> = now.mix.iter().map(|one| one.ttft_objective_ms).collect();
    assert_eq!(times, [120.0, 400.0, 900.0]);
    assert_eq!(now.ttft_objective_ms, 120.0);
    let later = feedback.tell(OLDEST + Millis(1.0), &COST, SHARE, &CONFIGURED);
    assert_eq!((later.ttft_objective_ms, later.observed.turns), (400.0, 0));
}

#[test]
fn xi_is_zero_where_the_queue_takes_the_objective() {
    let mut feedback = ObjectiveFeedback::default();
    for at in 0..20 {
        feedback.served(turn(at, 500.0, 100, Objective::Configured(0)), SHARE, &CONFIGURED);
    }
    assert_eq!(told(&mut feedback, &CONFIGURED).xi_tokens, 0.0);
}

#[test]
fn late_turns_within_xi_lower_it_and_turns_in_time_raise_it_to_its_bound() {
    let mut feedback = ObjectiveFeedback::default();
    let bound = told(&mut feedback, &CONFIGURED).xi_tokens;
    let late = |uncached| ServedTurn {
        ttft: Millis(401.0),
        ..turn(0, 0.0, uncached, Objective::Configured(0))
    };
    feedback.served(late(10_000), SHARE, &CONFIGURED);
    assert_eq!(
        told(&mut feedback, &CONFIGURED).xi_tokens,
        bound,
        "its own prefill was beyond ξ"
    );
    feedback.served(late(100), SHARE, &CONFIGURED);
    let lower = told(&mut feedback, &CONFIGURED).xi_tokens;
    assert!((lower / bound - (1.0 - STEP * SHARE)).abs() < 1e-9);
    for at in 0..WINDOW as u32 {
        feedback.served(turn(at, 0.0, 100, Objective::Configured(0)), SHARE, &CONFIGURED);
    }
    assert_eq!(told(&mut feedback, &CONFIGURED).xi_tokens, bound);
}

/// Keeps all turns, and computes ξ anew by searching for u.
#[derive(Default)]
struct Twin {
    turns: Vec<ServedTurn>,
    margin_lost: f64,
    xi: f64,
}

impl Twin {
    fn ttft(objective: Objective) -> f64 {
        match objective {
            Objective::Configured(at) => CONFIGURED[at].0,
            Objective::Requested(ttft) => ttft.0,
        }
    }

    fn served(&mut self, turn: ServedTurn) {
        let change = match (
            turn.ttft.0 > Self::ttft(turn.objective),
            turn.uncached.as_f64() <= self.xi,
        ) {
            (true, true) => STEP * SHARE,
            (true, false) => 0.0,
            (false, _) => -STEP * (1.0 - SHARE),
        };
        self.margin_lost = (self.margin_lost + change).clamp(0.0, 1.0);
        self.turns.push(turn);
    }

    fn tell(&mut self, now: Millis, cost: &PrefillCost) -> f64 {
        let last = self.turns.iter().rev().take(WINDOW);
        let seen: Vec<&ServedTurn> = last.filter(|turn| now.0 - turn.at.0 <= OLDEST.0).collect();
        let objective = seen
            .iter()
            .map(|turn| Self::ttft(turn.objective))
            .fold(f64::INFINITY, f64::min);
        let objective = if seen.is_empty() {
            CONFIGURED[0].0
        } else {
            objective
        };
        let mut waits: Vec<f64> = seen.iter().map(|turn| turn.wait.0).collect();
        waits.sort_by(f64::total_cmp);
        let place = SHARE * waits.len().saturating_sub(1) as f64;
        let wait = match waits.get(place as usize..) {
            Some([low, high, ..]) => low + (high - low) * place.fract(),
            Some([only]) => *only,
            _ => 0.0,
        };
        let cached: u64 = seen.iter().map(|turn| turn.cached.0).sum();
        let cached = (cached as f64 / seen.len().max(1) as f64).floor();
        let fits = |u: f64| {
            let gamma = cost.gamma_ms_per_token2 * u * (cached + u / 2.0);
            wait + cost.beta_ms + cost.alpha_ms_per_token * u + gamma <= objective
        };
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if fits(middle) { low = middle } else { high = middle }
        }
        self.xi = (1.0 - self.margin_lost) * low;
        self.xi
    }
}

proptest::proptest! {
    #[test]
    fn xi_equals_that_of_a_naive_twin(
        turns in proptest::collection::vec((0_u32..6_000, 0.0_f64..600.0, 1_u64..5_000, 0_u64..9_000, 0_u8..3, proptest::bool::ANY), 1..300),
        gamma in 0.0_f64..1e-5,
    ) {
        let cost = PrefillCost { gamma_ms_per_token2: gamma, ..COST };
        let (mut feedback, mut twin, mut now) = (ObjectiveFeedback::default(), Twin::default(), 0_u32);
        for (gap, wait, uncached, cached, class, tells) in turns {
            now += gap;
            let objective = match class {
                0 => Objective::Configured(0),
                1 => Objective::Configured(1),
                _ => Objective::Requested(Millis(250.0)),
            };
            let served = ServedTurn { cached: Tokens(cached), ..turn(now, wait, uncached, objective) };
            feedback.served(served, SHARE, &CONFIGURED);
            twin.served(served);
            if tells {
                let told = feedback.tell(Millis(f64::from(now)), &cost, SHARE, &CONFIGURED);
                let expected = twin.tell(Millis(f64::from(now)), &cost);
                proptest::prop_assert!((told.xi_tokens - expected).abs() <= 1e-6 * expected.max(1.0), "{} {expected}", told.xi_tokens);
            }
        }
    }
}
