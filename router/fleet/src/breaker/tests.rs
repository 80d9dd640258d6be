use proptest::prelude::*;

use super::*;

const SETTINGS: Settings = Settings {
    failures: 5.0,
    share: 0.5,
    pause: Millis(1000.0),
    longest_pause: Millis(8000.0),
};

fn breaker() -> Breaker {
    Breaker::new(SETTINGS)
}

fn fail(breaker: &mut Breaker, now: f64) -> bool {
    let pass = breaker.admit(Millis(now)).expect("it is let through");
    opens(breaker, now, pass)
}

/// Records a failure of a request like no other, while other workers do not fail. Returns whether the breaker opens.
fn opens(breaker: &mut Breaker, now: f64, pass: BreakerPass) -> bool {
    settle(breaker, now, |breaker| breaker.failed(Millis(now), pass, None))
}

fn settle(breaker: &mut Breaker, now: f64, fail: impl FnOnce(&mut Breaker) -> bool) -> bool {
    fail(breaker) && breaker.open_unless_alike(Millis(now), WELL)
}

const WELL: Outcomes = Outcomes {
    good: 100.0,
    bad: 0.0,
};

fn opened_at(now: f64) -> Breaker {
    let mut breaker = breaker();
    for _ in 0..5 {
        fail(&mut breaker, now);
    }
    assert_eq!(breaker.state(Millis(now)), BreakerState::Open);
    breaker
}

#[test]
fn the_fifth_failure_opens_it() {
    let mut breaker = breaker();
    let opened: Vec<bool> = (0..5)
        .map(|at| fail(&mut breaker, 10.0 * f64::from(at)))
        .collect();
    assert_eq!(opened, [false, false, false, false, true]);
    assert_eq!(breaker.admit(Millis(41.0)), None);
}

#[test]
fn failures_that_are_a_small_share_do_not() {
    let mut breaker = breaker();
    for at in 0..200 {
        let pass = breaker.admit(Millis(f64::from(at))).unwrap();
        if at % 3 == 0 {
            assert!(!opens(&mut breaker, f64::from(at), pass), "at {at}");
        } else {
            breaker.answered(Millis(f64::from(at)), pass);
        }
    }
}

#[test]
fn failures_without_a_success_between_them_open_it_whatever_its_past() {
    let mut breaker = breaker();
    for at in 0..200 {
        let pass = breaker.admit(Millis(f64::from(at))).unwrap();
        breaker.answered(Millis(f64::from(at)), pass);
    }
    let opened: Vec<bool> = (0..5)
        .map(|at| fail(&mut breaker, 200.0 + f64::from(at)))
        .collect();
    assert_eq!(opened, [false, false, false, false, true]);
}

#[test]
fn a_run_of_failures_that_others_have_as_often_does_not() {
    let others = |bad| Outcomes {
        good: 100.0 - bad,
        bad,
    };
    for (bad, opens_at) in [(2.0, 5), (8.0, 5), (20.0, 8), (40.0, 13)] {
        let mut breaker = breaker();
        for _ in 0..200 {
            breaker.answered(Millis::ZERO, BreakerPass::Ordinary);
        }
        let opened = (1..=40).find(|_| {
            breaker.failed(Millis::ZERO, BreakerPass::Ordinary, None)
                && breaker.open_unless_alike(Millis::ZERO, others(bad))
        });
        assert_eq!(opened, Some(opens_at), "where {bad} % fail");
    }
}

#[test]
fn failures_that_are_long_ago_do_not() {
    let mut breaker = breaker();
    for at in 0..50 {
        assert!(!fail(&mut breaker, 10_000.0 * f64::from(at)));
    }
}

#[test]
fn when_its_time_is_up_one_request_tries_and_the_others_wait_for_what_it_finds() {
    let mut breaker = opened_at(0.0);
    assert_eq!(breaker.admit(Millis(999.0)), None);
    assert_eq!(breaker.state(Millis(1000.0)), BreakerState::HalfOpen);
    let trial = breaker.admit(Millis(1000.0));
    assert_eq!(trial, Some(BreakerPass::Trial));
    assert_eq!(breaker.admit(Millis(1001.0)), None);
    assert!(breaker.answered(Millis(1500.0), BreakerPass::Trial));
    assert_eq!(breaker.admit(Millis(1501.0)), Some(BreakerPass::Ordinary));
}

#[test]
fn a_trial_that_fails_doubles_the_pause_up_to_the_longest() {
    let mut breaker = opened_at(0.0);
    let mut now = 0.0;
    for pause in [1000.0, 2000.0, 4000.0, 8000.0, 8000.0] {
        assert_eq!(breaker.state(Millis(now + pause - 1.0)), BreakerState::Open);
        now += pause;
        assert!(fail(&mut breaker, now));
    }
}

#[test]
fn a_relapse_is_a_longer_pause_and_a_failure_much_later_is_not() {
    for (after, pause) in [(100.0, 2000.0), (60_000.0, 1000.0)] {
        let mut breaker = opened_at(0.0);
        breaker.admit(Millis(1000.0)).unwrap();
        breaker.answered(Millis(1000.0), BreakerPass::Trial);
        let again = 1000.0 + after;
        while !fail(&mut breaker, again) {}
        assert_eq!(breaker.state(Millis(again + pause - 1.0)), BreakerState::Open);
        assert_eq!(breaker.state(Millis(again + pause)), BreakerState::HalfOpen);
    }
}

#[test]
fn a_trial_that_shows_nothing_leaves_the_place_to_the_next() {
    let mut breaker = opened_at(0.0);
    breaker.admit(Millis(1000.0)).unwrap();
    breaker.undecided(BreakerPass::Trial);
    assert_eq!(breaker.admit(Millis(1000.0)), Some(BreakerPass::Trial));
}

#[test]
fn what_was_sent_before_it_opened_neither_closes_nor_prolongs_it() {
    let mut breaker = breaker();
    let before = breaker.admit(Millis(0.0)).unwrap();
    let other = breaker.admit(Millis(0.0)).unwrap();
    while !fail(&mut breaker, 0.0) {}
    assert!(!opens(&mut breaker, 900.0, before));
    assert!(!breaker.answered(Millis(900.0), other));
    assert_eq!(breaker.state(Millis(999.0)), BreakerState::Open);
    assert_eq!(breaker.state(Millis(1000.0)), BreakerState::HalfOpen);
}

#[test]
fn one_request_that_fails_again_and_again_is_one_failure() {
    let fail = |breaker: &mut Breaker, source| {
        let pass = breaker.admit(Millis::ZERO).unwrap();
        settle(breaker, 0.0, |breaker| {
            breaker.failed(Millis::ZERO, pass, Some(source))
        })
    };
    let mut breaker = breaker();
    for _ in 0..100 {
        assert!(!fail(&mut breaker, 7));
    }
    assert!(breaker.has_failed(Millis(59_999.0), 7) && !breaker.has_failed(Millis(60_000.0), 7));
    assert!(!breaker.has_failed(Millis::ZERO, 8));
    let opened: Vec<bool> = (0..4).map(|source| fail(&mut breaker, source)).collect();
    assert_eq!(opened, [false, false, false, true], "with four other requests");
}

#[test]
fn the_requests_kept_are_bounded_and_the_newest_ones() {
    let mut breaker = breaker();
    for source in 0..1_000 {
        breaker.failed(Millis(0.0), BreakerPass::Ordinary, Some(source));
    }
    assert!(breaker.has_failed(Millis(0.0), 999) && !breaker.has_failed(Millis(0.0), 0));
    assert!(breaker.has_failures(Millis(0.0)) && !breaker.has_failures(Millis(60_000.0)));
}

#[test]
fn a_failed_trial_shows_nothing_where_most_requests_fail_everywhere() {
    for (others, opens) in [
        (
            Outcomes {
                good: 20.0,
                bad: 80.0,
            },
            false,
        ),
        (
            Outcomes {
                good: 80.0,
                bad: 20.0,
            },
            true,
        ),
        (Outcomes { good: 0.0, bad: 80.0 }, true),
        (Outcomes::default(), true),
    ] {
        let mut breaker = opened_at(0.0);
        let trial = breaker.admit(Millis(1000.0)).unwrap();
        assert!(breaker.failed(Millis(1000.0), trial, None));
        assert_eq!(
            breaker.open_unless_alike(Millis(1000.0), others),
            opens,
            "{others:?}"
        );
        let next = breaker.admit(Millis(1000.0));
        assert_eq!(next, (!opens).then_some(BreakerPass::Trial), "{others:?}");
    }
}

#[test]
fn a_worker_is_judged_beside_the_others() {
    let counts = |good: f64, bad: f64| Outcomes { good, bad };
    for (own, others, opens, why) in [
        (counts(0.0, 5.0), counts(0.0, 0.0), true, "it is the only one"),
        (counts(0.0, 5.0), counts(2.0, 0.0), true, "the others answer"),
        (counts(0.0, 5.0), counts(0.0, 50.0), true, "nothing answers"),
        (
            counts(10.0, 90.0),
            counts(300.0, 0.0),
            true,
            "nine of ten fail here only",
        ),
        (
            counts(10.0, 40.0),
            counts(30.0, 120.0),
            false,
            "as many fail everywhere",
        ),
        (
            counts(0.0, 5.0),
            counts(3.0, 12.0),
            false,
            "five show little where most fail everywhere",
        ),
        (
            counts(0.0, 60.0),
            counts(30.0, 120.0),
            true,
            "sixty in a row show enough",
        ),
        (
            counts(0.0, 25.0),
            counts(20.0, 40.0),
            true,
            "two dead workers of three",
        ),
        (counts(60.0, 5.0), counts(100.0, 0.0), false, "a small share"),
        (counts(0.0, 4.0), counts(100.0, 0.0), false, "too few"),
    ] {
        let mut breaker = breaker();
        breaker.counts = own;
        assert_eq!(breaker.open_unless_alike(Millis::ZERO, others), opens, "{why}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_a_failure_and_no_answer() {
    let mut breaker = breaker();
    for at in 0..5 {
        let pass = breaker.admit(Millis::ZERO).unwrap();
        breaker.answered(Millis::ZERO, pass);
        let opened = settle(&mut breaker, 0.0, |breaker| breaker.broke_off(Millis::ZERO, None));
        assert_eq!(opened, at == 4);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Admit,
    End(usize, u8),
    Wait(u16),
}

proptest! {
    /// However successes, failures and pauses interleave, there are never two trials at once, an open breaker always
    /// becomes half-open, and no trial remains when every request has ended.
    #[test]
    fn there_is_never_more_than_one_trial_and_none_is_lost(
        steps in prop::collection::vec(prop_oneof![
            4 => Just(Step::Admit),
            4 => (0_usize..8, 0_u8..3).prop_map(|(at, how)| Step::End(at, how)),
            2 => (0_u16..3000).prop_map(Step::Wait),
        ], 1..200)
    ) {
        let mut breaker = breaker();
        let mut now = Millis::ZERO;
        let mut out: Vec<BreakerPass> = Vec::new();
        let end = |breaker: &mut Breaker, now, pass, how| match how {
            0 => { breaker.answered(now, pass); }
            1 => { opens(breaker, now.0, pass); }
            _ => breaker.undecided(pass),
        };
        for step in steps {
            match step {
                Step::Admit => out.extend(breaker.admit(now)),
                Step::End(at, how) if !out.is_empty() => {
                    let pass = out.swap_remove(at % out.len());
                    end(&mut breaker, now, pass, how);
                }
                Step::End(..) => {}
                Step::Wait(ms) => now += Millis(f64::from(ms)),
            }
            prop_assert!(out.iter().filter(|pass| **pass == BreakerPass::Trial).count() <= 1);
        }
        for pass in out.drain(..) {
            end(&mut breaker, now, pass, 2);
        }
        now += SETTINGS.longest_pause;
        prop_assert!(breaker.admit(now).is_some());
    }
}
