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
