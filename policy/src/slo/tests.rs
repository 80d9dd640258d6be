use super::*;

const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);

#[test]
fn the_tail_is_what_may_be_missing_without_being_late() {
    let xi = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
    assert!((xi - 1000.0).abs() < 1e-9);
    assert_eq!(evict_first_tail(xi, Tokens(200), 0.0), Tokens(800));
    assert_eq!(evict_first_tail(xi, Tokens(2000), 0.0), Tokens::ZERO);
}

#[test]
fn a_queue_leaves_less_room() {
    let idle = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
    let busy = xi_tokens(&COST, Millis(120.0), Millis(50.0), Tokens::ZERO);
    assert!((idle - busy - 500.0).abs() < 1e-9);
    assert_eq!(xi_tokens(&COST, Millis(120.0), Millis(500.0), Tokens::ZERO), 0.0);
}

#[test]
fn the_gate_closes_between_two_utilisations() {
    assert_eq!(load_gate(0.0), 1.0);
    assert!((load_gate(0.4) - 1.0).abs() < 1e-9);
    assert!((load_gate(0.5) - 0.5).abs() < 1e-9);
    assert!(load_gate(0.6).abs() < 1e-9);
    assert_eq!(load_gate(3.0), 0.0);
    assert_eq!(evict_first_tail(f64::INFINITY, Tokens(1), 0.7), Tokens::ZERO);
}

#[test]
fn a_worker_that_costs_nothing_may_drop_everything() {
    let xi = xi_tokens(
        &PrefillCost::linear(0.0, 0.0),
        Millis(1.0),
        Millis::ZERO,
        Tokens::ZERO,
    );
    assert_eq!(evict_first_tail(xi, Tokens(200), 0.0), Tokens(1_000_000_000));
}

fn served(conversation: u64, history: u64, wait: f64, rho: f64) -> ServedTurn {
    ServedTurn {
        worker: crate::ids::WorkerId(0),
        conversation,
        prompt: Tokens(history + 100),
        history: Tokens(history),
        length: Tokens(history + 200),
        cost: COST,
        wait: Millis(wait),
        objective: Millis(120.0),
        next_prompt: Tokens(100),
        utilisation: rho,
    }
}

/// Short conversations take turns with two long ones in a cache that holds all of the long ones, or of the short.
fn play(controller: &mut Controller, turns: u64, rho: f64) {
    for at in 0..turns {
        controller.served(&served(at % 40, 500, 0.0, rho));
        if at % 4 == 0 {
            controller.served(&served(1000 + at % 8, 20_000, 0.0, rho));
        }
    }
}

#[test]
fn the_controller_starts_at_the_design_point_and_keeps_within_the_gate() {
    let controller = Controller::new(&[Tokens(50_000)], 1.0);
    assert_eq!(controller.tail(1000.0, Tokens(200), 0.1), Tokens(800));
    assert_eq!(controller.tail(1000.0, Tokens(200), 0.7), Tokens(0));
}

#[test]
fn where_trimming_saves_work_it_is_done_at_any_load_and_where_it_costs_work_at_none() {
    // Room for the two long ones and little else: what the short ones keep costs far more than it saves.
    let mut tight = Controller::new(&[Tokens(43_000)], 1.0);
    play(&mut tight, 2000, 0.8);
    let state = tight.state();
    assert!(state.current > 0, "{state:?}");
    assert!(tight.tail(1000.0, Tokens(100), 0.8) > Tokens::ZERO);
    // Room for everybody: nothing is gained, so nothing is given away.
    let mut roomy = Controller::new(&[Tokens(500_000)], 1.0);
    play(&mut roomy, 2000, 0.8);
    assert_eq!(roomy.state().current, 0);
    assert_eq!(roomy.tail(1000.0, Tokens(100), 0.8), Tokens::ZERO);
}

#[test]
fn a_change_of_alpha_moves_the_tail_at_once() {
    let controller = Controller::new(&[Tokens(50_000)], 1.0);
    let tail = |alpha| {
        let xi = xi_tokens(
            &PrefillCost::linear(alpha, 20.0),
            Millis(120.0),
            Millis::ZERO,
            Tokens::ZERO,
        );
        controller.tail(xi, Tokens(0), 0.0).0
    };
    assert_eq!((tail(0.1), tail(0.2)), (1000, 500));
}

#[test]
fn what_starts_in_time_is_not_slowed_down_to_make_the_late_less_late() {
    // Forty short conversations return to a cache that holds them all. Eight long ones take turns, and each returns when
    // the others have pushed it out: with every tail given away there is room for them, and every short turn is slower.
    let mut controller = Controller::new(&[Tokens(100_000)], 1.0);
    for at in 0..6000u64 {
        controller.served(&served(at % 40, 800, 0.0, 0.0));
        if at % 100 == 0 {
            controller.served(&served(10_000 + at / 100 % 8, 12_000, 0.0, 0.0));
        }
    }
    let state = controller.state();
    assert!(state.bound.is_some(), "{state:?}");
    assert!(state.arms[6].tel_ms < state.arms[0].tel_ms, "{state:?}");
    assert!(state.arms[6].affordable && !state.arms[6].keeps, "{state:?}");
    assert_eq!(state.current, 0, "{state:?}");
}

#[test]
fn one_lucky_turn_is_no_reason_to_leave_lru() {
    // A long conversation is pushed out by many that never return, and returns once.
    let mut controller = Controller::new(&[Tokens(50_000)], 1.0);
    controller.served(&served(5000, 20_000, 0.0, 0.0));
    (0..190u64).for_each(|at| controller.served(&served(at, 1, 0.0, 0.0)));
    assert_eq!(controller.state().current, 0);
    controller.served(&served(5000, 20_000, 0.0, 0.0));
    (0..40u64).for_each(|at| controller.served(&served(300 + at, 1, 0.0, 0.0)));
    let state = controller.state();
    assert_eq!(state.current, 0, "{state:?}");
    let lucky = |arm: &ArmState| arm.tel_ms < state.arms[0].tel_ms && arm.evidence <= 1.0 + 1e-9;
    assert!(state.arms.iter().any(lucky), "{state:?}");
}

#[test]
fn what_was_learned_in_tokens_outlives_a_change_of_cost() {
    let slower = |turn: ServedTurn| ServedTurn {
        cost: PrefillCost::linear(0.2, 40.0),
        objective: Millis(240.0),
        ..turn
    };
    // A worker that takes twice as long under an objective twice as late: nothing changes but the unit.
    let mut controller = Controller::new(&[Tokens(43_000)], 1.0);
    play(&mut controller, 2000, 0.0);
    let before = controller.state();
    controller.served(&slower(served(1, 500, 0.0, 0.0)));
    let after = controller.state();
    assert_eq!(
        (after.repriced, after.current),
        (before.repriced + 1, before.current)
    );
    // Under the same objective ξ is 400 tokens instead of 1,000, and each arm's ghost is the one that was nearest to it.
    let mut controller = Controller::new(&[Tokens(43_000)], 1.0);
    play(&mut controller, 2000, 0.0);
    let before = controller.state();
    let halved = ServedTurn {
        cost: PrefillCost::linear(0.2, 20.0),
        ..served(1, 500, 0.0, 0.0)
    };
    (0..2).for_each(|_| controller.served(&halved));
    let after = controller.state();
    let uncached =
        |state: &ControllerState, arm: usize, alpha: f64, beta: f64| (state.arms[arm].work_ms - beta) / alpha;
    // Tails of 900 and 400 tokens: scale 1.25 takes over what 0.5 was, within what two turns more make.
    let (was, is) = (uncached(&before, 3, 0.1, 20.0), uncached(&after, 7, 0.2, 20.0));
    assert!((is / was - 1.0).abs() < 0.01, "{was} {is}");
}

#[test]
fn a_worker_that_nobody_told_of_is_ignored() {
    let mut controller = Controller::new(&[Tokens(50_000)], 1.0);
    let stray = ServedTurn {
        worker: crate::ids::WorkerId(9),
        ..served(1, 10, 0.0, 0.0)
    };
    controller.served(&stray);
    assert_eq!(controller.state().arms[0].work_ms, 0.0);
}

#[test]
fn a_busy_worker_is_not_told_of_moves() {
    assert!(super::tells_of_moves(0.0) && super::tells_of_moves(0.59));
    assert!(!super::tells_of_moves(0.6) && !super::tells_of_moves(1.4));
}
