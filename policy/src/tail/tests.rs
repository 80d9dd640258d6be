use proptest::prelude::*;

use super::lateness::Silent;
use super::*;
use crate::cost::PrefillCost;
use crate::residency::Compared;

const W0: WorkerId = WorkerId(0);
const COST: PrefillCost = PrefillCost::linear(0.1, 10.0);
const SILENT: Silent = Silent {
    length: Tokens(2_000),
    objective: Millis(500.0),
};

fn free_tail(tail: &Tail<u64>, class: Class) -> Tokens {
    tail.free_tails(W0)[class.index()]
}

fn begun(wait: f64, added: u64, missing: u64) -> Begun {
    let (history, wait) = (Tokens(2_000), Millis(wait));
    let prompt = history + Tokens(added);
    let cached = history.saturating_sub(Tokens(missing));
    Begun {
        compared: None,
        wait,
        ttft: wait + COST.prefill(prompt.saturating_sub(cached), cached),
        objective: Millis(500.0),
        prompt,
        cached,
        history,
        cost: COST,
    }
}

fn turn(at: f64, conversation: u64, number: u32, length: u64) -> Answered<u64> {
    Answered {
        at: Millis(at),
        worker: W0,
        conversation,
        class: Class::of(number, Tokens(100), false),
        length: Tokens(length),
        objective: Millis(500.0),
        what: conversation,
    }
}

/// Returns a worker of 40,000 tokens after 500 conversations of two turns, ten seconds apart. Every turn waits for
/// `wait` and adds 100 tokens.
fn taught(wait: f64) -> (Tail<u64>, f64) {
    let mut tail = Tail::default();
    tail.admit(W0, Tokens(40_000));
    let mut now = 0.0;
    for conversation in 1_000..1_500 {
        for number in 1..=2 {
            now += 10_000.0;
            tail.arrived(Millis(now), conversation, W0, None);
            // One turn in eight takes 60 ms longer, which sets T.
            let more = if conversation % 8 == 0 { 700 } else { 100 };
            tail.begun(Millis(now), W0, &begun(wait, more, 0));
            tail.answered(turn(now, conversation, number, 2_000), Tokens(20));
        }
        tail.forget(W0, conversation);
    }
    (tail, now)
}

#[test]
fn what_has_come_to_its_end_goes_whole_before_anything_that_returns() {
    let (mut tail, now) = taught(0.0);
    tail.answered(turn(now, 1, 1, 3_000), Tokens(20));
    tail.answered(turn(now, 2, 2, 3_000), Tokens(20));
    tail.answered(turn(now, 3, 1, 3_000), Tokens(20));
    let trim = tail.next(Millis(now + 1_000.0), W0, Tokens(10_000)).unwrap();
    assert_eq!((trim.conversation, trim.keep, trim.what), (2, Tokens::ZERO, 2));
    assert_eq!(tail.silent_on(W0), 2);
    let (first, second) = (Class::of(1, Tokens(100), false), Class::of(2, Tokens(100), false));
    let returns = tail.returns();
    assert!(returns.share(first) > 0.95 && returns.share(second) < 0.05);
    assert!(returns.probability(first, Millis(1_000.0)) > 0.9);
    assert!(
        returns.probability(first, Millis(1_000_000.0)) < 0.5,
        "it should have been here"
    );
}

#[test]
fn on_an_idle_fleet_each_gives_its_free_tail_before_any_gives_more() {
    let (mut tail, now) = taught(0.0);
    let harm = tail.harm();
    assert_eq!((harm.kappa(), harm.epsilon()), (0.0, 0.0));
    // A turn of 100 tokens takes 20 ms, one in eight 80 ms: most can miss 600 tokens and still be in time.
    let target = harm.target().unwrap();
    assert!((target.0 - 80.0).abs() < 1.0, "{target:?}");
    assert_eq!(
        [0.0, 100.0, 599.0, 601.0].map(|missing| harm.on(W0).late(&SILENT, missing)),
        [0.0, 0.125, 0.125, 1.0]
    );
    // The objective is 500 ms: with 4,200 more missing tokens one turn in eight misses it too, with 4,800 all do.
    assert_eq!(
        [4_100.0, 4_300.0, 4_900.0].map(|missing| harm.on(W0).late(&SILENT, missing)),
        [1.0, 1.125, 2.0]
    );
    (1..=4).for_each(|conversation| tail.answered(turn(now, conversation, 1, 3_000), Tokens(20)));
    let mut given = [0; 4];
    let mut give = || {
        let trim = tail.next(Millis(now + 1.0), W0, Tokens(200)).unwrap();
        given[trim.conversation as usize - 1] = 3_000 - trim.keep.0;
        given
    };
    let free = std::iter::repeat_with(&mut give).find(|given| given.iter().all(|given| *given >= 600));
    assert!(free.unwrap().iter().all(|given| *given <= 800), "{free:?}");
    // After that, one conversation is trimmed to its end, since its turn is late already.
    (0..8).for_each(|_| _ = give());
    assert!(
        given.iter().filter(|given| **given <= 800).count() == 3,
        "{given:?}"
    );
}

#[test]
fn where_turns_wait_for_each_other_work_counts_and_where_none_does_only_lateness() {
    let (idle, _) = taught(0.0);
    let (busy, _) = taught(50.0);
    assert!(busy.harm().kappa() > 100.0, "one busy period without an end");
    let cost = |tail: &Tail<u64>, missing| tail.harm().on(W0).of_return(&SILENT, missing);
    let work = |tail: &Tail<u64>| cost(tail, 0.0) / cost(tail, 1e6);
    assert!(work(&idle) < 0.4 && work(&busy) > 0.9);
}

#[test]
fn a_copy_whose_conversation_went_on_elsewhere_goes_first() {
    let (mut tail, now) = taught(0.0);
    tail.admit(WorkerId(1), Tokens(40_000));
    tail.answered(turn(now, 1, 1, 3_000), Tokens(20));
    tail.answered(turn(now, 2, 1, 3_000), Tokens(20));
    tail.arrived(Millis(now + 1.0), 1, WorkerId(1), Some(W0));
    let trim = tail.next(Millis(now + 2.0), W0, Tokens(100)).unwrap();
    assert_eq!(trim.conversation, 1);
    // On its new worker it becomes an end only when it has been answered.
    assert_eq!((tail.silent_on(W0), tail.silent_on(WorkerId(1))), (2, 0));
}

#[test]
fn when_there_is_no_room_for_three_turns_it_is_made_for_six() {
    let (tail, _) = taught(0.0);
    // A turn stores 100 tokens, one in eight 700, and a response of 20.
    let reserve = 570..=600;
    let room = |tokens| tail.wanted(W0, Tokens(tokens));
    assert_eq!(room(620), None);
    let wanted = room(100).unwrap().0;
    assert!(reserve.contains(&((wanted + 100) / 2)), "{wanted}");
    assert_eq!(tail.wanted(WorkerId(9), Tokens(0)), None);
    // The reserve is at most an eighth of the cache.
    let mut small = tail.clone();
    small.set_capacity(W0, Tokens(2_000));
    assert_eq!(small.wanted(W0, Tokens(0)), Some(Tokens(500)));
}

#[test]
fn what_a_request_can_say_beforehand_is_what_is_worth_less_than_what_went_lately() {
    let (mut tail, now) = taught(0.0);
    let (first, second) = (Class::of(1, Tokens(100), false), Class::of(2, Tokens(100), false));
    assert_eq!(free_tail(&tail, first), Tokens::ZERO, "nothing had to go");
    for conversation in 0..200 {
        tail.answered(turn(now, conversation, 1, 3_000), Tokens(20));
        let _ = tail.next(Millis(now + 1.0), W0, Tokens(3_000)).unwrap();
    }
    assert!(free_tail(&tail, second) > free_tail(&tail, first));
}

#[test]
fn a_worker_that_drops_ends_by_itself_is_priced_by_what_it_stores() {
    let (mut tail, now) = taught(0.0);
    let (first, second) = (Class::of(1, Tokens(100), false), Class::of(2, Tokens(100), false));
    for conversation in 0..200 {
        tail.answered(turn(now, conversation, 1, 3_000), Tokens(20));
        tail.displaced(Millis(now + 1.0), W0, Tokens(3_000));
    }
    assert!(free_tail(&tail, second) > free_tail(&tail, first));
    assert!(
        tail.silent_on(W0) < 200,
        "what it stored took the place of others"
    );
}

#[test]
fn what_was_learned_of_returns_survives_a_restart() {
    let (mut before, now) = taught(0.0);
    before.answered(turn(now, 7, 1, 3_000), Tokens(20));
    let outcomes = before.returns().outcomes(Millis(now + 5_000.0));
    let mut after = Tail::<u64>::default();
    after.restore(Millis(100.0), &outcomes);
    after.returns.set_horizon(before.returns().horizon());
    for (number, age) in [(1, 0.0), (1, 20_000.0), (2, 0.0), (9, 1_000.0)] {
        let class = Class::of(number, Tokens(100), false);
        let (one, other) = (before.returns(), after.returns());
        let (one, other) = (
            one.probability(class, Millis(age)),
            other.probability(class, Millis(age)),
        );
        assert!(
            (one - other).abs() < 0.02,
            "turn {number} after {age} ms: {one} {other}"
        );
    }
    after.arrived(Millis(1_100.0), 7, W0, None);
    let last = after.returns().outcomes(Millis(1_100.0)).pop().unwrap();
    assert_eq!(last.then, Then::Next(Millis(6_000.0)));
}

#[test]
fn a_slot_that_is_taken_again_knows_nothing_of_what_was_there() {
    let (mut tail, now) = taught(0.0);
    tail.answered(turn(now, 1, 1, 3_000), Tokens(20));
    tail.admit(W0, Tokens(1_000));
    assert_eq!(
        (tail.silent_on(W0), tail.next(Millis(now), W0, Tokens(1))),
        (0, None)
    );
}

proptest! {
    /// G equals its definition: returns within τ divided by the time that the copy occupies cache, summed in small
    /// steps.
    #[test]
    fn the_rate_is_the_integral_that_defines_it(
        gaps in prop::collection::vec(1.0..200_000.0_f64, 200..400),
        ends in 1_u64..4,
        age in 0.0..100_000.0_f64,
    ) {
        let mut returns = Returns::default();
        let class = Class::of(1, Tokens(1), false);
        let mut now = 0.0;
        for (conversation, gap) in (0..).zip(&gaps) {
            returns.answered(Millis(now), conversation, class);
            now += gap;
            if conversation % (ends + 1) == 0 {
                returns.arrived(Millis(now), conversation);
            }
        }
        returns.set_horizon(Millis(50_000.0));
        let tau = returns.horizon().0;
        let (rate, twin) = returns.rate_and_twin(class, Millis(age), tau);
        prop_assert!((rate - twin).abs() <= 0.02 * twin.max(1e-9), "{rate} {twin}");
        let within = returns.probability(class, Millis(age));
        prop_assert!((0.0..=1.0).contains(&within));
    }

    #[test]
    fn ends_are_kept_once_and_run_out(
        steps in prop::collection::vec((0_u64..40, 0_u8..4, 1_u64..5_000), 1..300),
    ) {
        let mut tail = Tail::default();
        tail.admit(W0, Tokens(10_000));
        let mut silent = std::collections::BTreeSet::new();
        for (at, (conversation, what, length)) in steps.into_iter().enumerate() {
            let now = Millis(at as f64 * 100.0);
            match what {
                0 => {
                    tail.arrived(now, conversation, W0, None);
                    silent.remove(&conversation);
                }
                1 => {
                    tail.forget(W0, conversation);
                    silent.remove(&conversation);
                }
                _ => {
                    tail.answered(turn(now.0, conversation, 1, length), Tokens(1));
                    silent.insert(conversation);
                }
            }
            prop_assert_eq!(tail.silent_on(W0), silent.len());
        }
        let mut steps = 0;
        while let Some(trim) = tail.next(Millis(1e6), W0, Tokens(1)) {
            steps += 1;
            prop_assert!(trim.keep < trim.length && silent.contains(&trim.conversation));
            if trim.keep == Tokens::ZERO {
                silent.remove(&trim.conversation);
            }
            prop_assert!(steps <= 40 * 66);
        }
        prop_assert!(silent.is_empty());
    }
}

#[test]
fn nothing_is_given_up_while_hints_make_more_turns_late_than_lru() {
    let (mut tail, mut now) = taught(0.0);
    let room = Tokens(0);
    assert!(tail.wanted(W0, room).is_some());
    // The turns that lose 1,500 tokens to hints are all later than T; under LRU their prompts are cached.
    for at in 0..2_000 {
        now += 10.0;
        let lost = if at % 20 == 0 { 1_500 } else { 0 };
        let mut turn = begun(0.0, 100, lost);
        turn.compared = Some(Compared {
            hinted: turn.cached,
            untold: turn.history,
        });
        tail.begun(Millis(now), W0, &turn);
    }
    assert!(!tail.guard().allows());
    assert_eq!(tail.wanted(W0, room), None);
    assert_eq!(free_tail(&tail, Class::of(1, Tokens(100), false)), Tokens::ZERO);
}
