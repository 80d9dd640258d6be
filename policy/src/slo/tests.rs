use super::*;

/// Fewer late turns than the controller minds.
const MET_SHARE: f64 = 0.025;
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
fn nothing_is_bought_where_the_objective_is_met_without() {
    // Short conversations that all fit, and a cold start of a long one now and then.
    let mut controller = Controller::new(&[Tokens(60_000)], 1.0);
    for at in 0..3000u64 {
        controller.served(&served(at % 100, 400, 0.0, 0.0));
        if at % 100 == 0 {
            controller.served(&served(10_000 + at, 20_000, 0.0, 0.0));
        }
    }
    let state = controller.state();
    assert!(state.arms[0].violations < MET_SHARE, "{state:?}");
    assert!((state.allowance - 0.005).abs() < 1e-9, "{state:?}");
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
