use config::{Overrides, load_file};
use proptest::prelude::*;

use super::*;

const FADE: Millis = Millis(60_000.0);

pub(super) fn costs(known: &[Option<f64>]) -> Costs {
    let workers = (0..known.len()).map(|at| format!("http://w{at}:1")).collect();
    let overrides = Overrides {
        workers,
        ..Overrides::default()
    };
    let mut config = load_file(None, std::collections::BTreeMap::new(), overrides).unwrap();
    for (worker, alpha) in config.workers.iter_mut().zip(known) {
        worker.cost_is_known = alpha.is_some();
        worker.cost = PrefillCost::linear(alpha.unwrap_or(9.0), 5.0);
    }
    Costs::new(&config.workers, FADE)
}

#[test]
fn counters_teach_nothing_of_a_worker_with_a_floor() {
    let mut costs = costs(&[Some(0.02), Some(0.02)]);
    let with_floor = PrefillCost {
        floor_ms: 20.0,
        ..PrefillCost::linear(0.02, 6.0)
    };
    costs.calibrate(WorkerId(0), with_floor);
    let size = PrefillSize::of(Tokens(1090), Tokens::ZERO);
    for slot in [0, 1] {
        costs.observe(
            Millis::ZERO,
            WorkerId(slot),
            size,
            PrefillSample::Counters(Millis(38.6)),
        );
    }
    let [floored, plain] = [0, 1].map(|slot| costs.state(WorkerId(slot)).unwrap());
    assert_eq!((floored.cost, floored.answers), (with_floor, 0));
    assert_eq!(plain.answers, 1);
}

fn alpha(costs: &Costs, slot: u32) -> f64 {
    costs.state(WorkerId(slot)).unwrap().cost.alpha_ms_per_token
}

fn teach(costs: &mut Costs, slot: u32, alpha: f64, answers: u64) {
    for i in 0..answers {
        let u = 100 + i * 37 % 900;
        let took = Millis(5.0 + alpha * u as f64);
        costs.observe(
            Millis(i as f64),
            WorkerId(slot),
            PrefillSize::of(Tokens(u), Tokens(0)),
            PrefillSample::Clean(took),
        );
    }
}

#[test]
fn a_worker_of_which_nothing_is_known_begins_as_the_others_are() {
    let costs = costs(&[Some(0.1), None, Some(0.3), Some(0.2)]);
    assert_eq!(alpha(&costs, 1), 0.2);
    assert_eq!(alpha(&costs, 0), 0.1);
}

fn tell(costs: &mut Costs, slot: u32, beside: f64, answers: u64) {
    for i in 0..answers {
        let u = 100 + i * 37 % 900;
        let size = PrefillSize::of(Tokens(u), Tokens(0));
        costs.observe(
            Millis(i as f64),
            WorkerId(slot),
            size,
            PrefillSample::Engine(Millis(5.0 + 0.1 * u as f64)),
        );
        costs.beside(WorkerId(slot), Millis(beside));
    }
}

#[test]
fn what_an_engine_leaves_out_of_its_times_is_added() {
    let mut costs = costs(&[Some(0.1)]);
    assert_eq!(costs.overheads(), [Millis::ZERO]);
    tell(&mut costs, 0, 4.0, 100);
    assert!(
        (costs.overheads()[0].0 - 4.0).abs() < 0.1,
        "{:?}",
        costs.overheads()
    );
    assert!((costs.state(WorkerId(0)).unwrap().overhead_ms - 4.0).abs() < 0.1);
}

#[test]
fn it_is_in_beta_where_the_router_measures() {
    let mut costs = costs(&[Some(0.1)]);
    tell(&mut costs, 0, 4.0, 100);
    teach(&mut costs, 0, 0.1, 1);
    assert!(
        costs.overheads()[0].0 > 3.9,
        "one late first token is no new clock"
    );
    teach(&mut costs, 0, 0.1, 8);
    assert_eq!(costs.overheads(), [Millis::ZERO], "it does not tell any more");
    tell(&mut costs, 0, 4.0, 1);
    assert!(costs.overheads()[0].0 > 3.9);
}

#[test]
fn overheads_that_differ_by_little_are_one() {
    let mut costs = costs(&[Some(0.1), Some(0.1), Some(0.1)]);
    for (slot, beside) in [(0, 4.0), (1, 4.5), (2, 40.0)] {
        tell(&mut costs, slot, beside, 100);
    }
    let [near, alike, far] = costs.overheads()[..] else {
        panic!()
    };
    assert_eq!(near, alike);
    assert!(far.0 > 35.0, "another zone is another overhead: {far:?}");
}

#[test]
fn a_slot_that_changes_hands_has_no_overhead() {
    let mut costs = costs(&[Some(0.1)]);
    tell(&mut costs, 0, 4.0, 100);
    costs.remove_worker(WorkerId(0));
    assert_eq!(costs.overheads(), [Millis::ZERO]);
}

#[test]
fn what_is_measured_counts_for_more_than_what_was_learned_before() {
    let mut costs = costs(&[Some(0.1), Some(0.1)]);
    teach(&mut costs, 0, 0.1, 100);
    teach(&mut costs, 1, 0.1, 100);
    let measured = PrefillCost::linear(0.3, 7.0);
    costs.calibrate(WorkerId(0), measured);
    let state = costs.state(WorkerId(0)).unwrap();
    assert!(
        (state.cost.beta_ms - 7.0).abs() < 1e-9 && (alpha(&costs, 0) - 0.3).abs() < 1e-9,
        "{state:?}"
    );
    assert_eq!(
        costs.published()[0],
        state.cost,
        "it is no noise around the others"
    );
    assert!((alpha(&costs, 1) / 0.1 - 1.0).abs() < 0.05);
    costs.calibrate(WorkerId(9), measured);
}

#[test]
fn a_worker_that_comes_late_begins_with_what_the_others_learned() {
    let mut costs = costs(&[None, None, Some(0.5)]);
    teach(&mut costs, 0, 0.05, 100);
    costs.introduce(WorkerId(1));
    let begun = costs
        .state(WorkerId(1))
        .unwrap()
        .cost
        .prefill(Tokens(550), Tokens(0));
    assert!((begun.0 / 32.5 - 1.0).abs() < 0.25, "{begun}");
    // A measured worker keeps its cost, and so does one that has answered.
    costs.introduce(WorkerId(2));
    assert_eq!(alpha(&costs, 2), 0.5);
    teach(&mut costs, 1, 0.4, 100);
    costs.introduce(WorkerId(1));
    assert!(alpha(&costs, 1) > 0.3);
}

/// Returns a worker without a configured cost.
fn spec(url: &str) -> config::Worker {
    let overrides = Overrides {
        workers: vec![url.to_owned()],
        ..Overrides::default()
    };
    let config = load_file(None, std::collections::BTreeMap::new(), overrides);
    config.unwrap().workers.remove(0)
}

#[test]
fn a_slot_that_changes_hands_begins_as_the_others_are_and_one_that_is_empty_says_nothing() {
    let mut costs = costs(&[None, None]);
    teach(&mut costs, 0, 0.05, 100);
    teach(&mut costs, 1, 0.9, 100);
    costs.remove_worker(WorkerId(1));
    let spec = spec("http://late:1");
    for slot in [WorkerId(1), WorkerId(3)] {
        costs.admit(slot, &spec);
        let begun = costs.state(slot).unwrap();
        let prefill = begun.cost.prefill(Tokens(550), Tokens(0)).0;
        assert!(
            (prefill / 32.5 - 1.0).abs() < 0.25 && begun.answers == 0,
            "{begun:?}"
        );
    }
}

#[test]
fn workers_that_differ_by_noise_are_equal_and_one_that_is_slow_is_not() {
    let mut costs = costs(&[None, None, None, None]);
    for (slot, alpha) in [(0, 0.100), (1, 0.103), (2, 0.5)] {
        teach(&mut costs, slot, alpha, 100);
    }
    let published: Vec<f64> = costs
        .published()
        .iter()
        .map(|cost| cost.alpha_ms_per_token)
        .collect();
    assert_eq!(published[0], published[1]);
    assert!((published[2] / published[0] - 5.0).abs() < 0.6, "{published:?}");
    assert_eq!(published[3], published[0], "nobody knows it yet");
}

/// Returns the predicted time of each worker for a prompt of 550 tokens.
fn believed(costs: &Costs) -> Vec<f64> {
    let published = costs.published();
    let taken = published
        .iter()
        .map(|cost| cost.prefill(Tokens(550), Tokens(0)).0);
    taken.collect()
}

/// Observes a response as from a worker with this α.
fn answer(costs: &mut Costs, now: Millis, slot: u32, alpha: f64) {
    let size = PrefillSize::of(Tokens(550), Tokens(0));
    let took = Millis(5.0 + alpha * 550.0);
    costs.observe(now, WorkerId(slot), size, PrefillSample::Clean(took));
}

proptest! {
    #[test]
    fn without_an_answer_an_estimate_stays_and_its_error_grows(idle in 0.0..1e10f64, more in 0.0..1e10f64) {
        let mut costs = costs(&[None, Some(0.3), None]);
        for (slot, alpha) in [(0, 0.05), (1, 0.9), (2, 0.4)] {
            teach(&mut costs, slot, alpha, 100);
        }
        let state = |costs: &Costs| [0, 1, 2].map(|slot| costs.state(WorkerId(slot)).unwrap());
        let mut before = state(&costs);
        for now in [idle, idle + more] {
            costs.elapse(Millis(now));
            let now = state(&costs);
            for (now, before) in now.iter().zip(before) {
                prop_assert_eq!(now.cost, before.cost);
                prop_assert!(now.error_ms >= before.error_ms);
            }
            before = now;
        }
    }
}

#[test]
fn workers_that_are_idle_for_long_are_equal_whatever_the_default_says() {
    let mut costs = costs(&[None, None, None]);
    for slot in [0, 1] {
        teach(&mut costs, slot, 0.05, 100);
    }
    let taken = believed(&costs);
    let spec = spec("http://again:1");
    costs.remove_worker(WorkerId(2));
    costs.admit(WorkerId(2), &spec);
    for minute in 1..=60 {
        costs.elapse(Millis(f64::from(minute) * 60_000.0));
        assert_eq!(believed(&costs), taken);
    }
    // After some responses it is trusted, and no other worker is believed to be more expensive.
    for i in 0..40 {
        answer(&mut costs, Millis(3_600_000.0 + f64::from(i)), 2, 0.05);
    }
    let taken = believed(&costs);
    assert!(taken.iter().all(|one| *one == taken[0]), "{taken:?}");
}

#[test]
fn a_worker_that_was_slow_is_believed_to_be_as_the_others_after_some_time_and_an_answer_decides() {
    for still_slow in [false, true] {
        let mut costs = costs(&[None, None, None]);
        for (slot, alpha) in [(0, 0.8), (1, 0.1), (2, 0.1)] {
            teach(&mut costs, slot, alpha, 200);
        }
        let mut tried = None;
        let mut last = f64::INFINITY;
        for second in 1..600 {
            let now = Millis(f64::from(second) * 1000.0);
            for slot in [1, 2] {
                answer(&mut costs, now, slot, 0.1);
            }
            costs.elapse(now);
            let taken = believed(&costs);
            assert!(taken[0] <= last && taken[0] >= taken[1], "{second} {taken:?}");
            last = taken[0];
            if taken[0] == taken[1] {
                tried = Some(now);
                break;
            }
        }
        let tried = tried.expect("it is never tried");
        assert!(tried < Millis(150_000.0), "{tried}");
        answer(&mut costs, tried, 0, if still_slow { 0.8 } else { 0.1 });
        costs.elapse(tried);
        let taken = believed(&costs);
        assert_eq!(taken[0] > 3.0 * taken[1], still_slow, "{taken:?}");
    }
}

#[test]
fn many_old_estimates_do_not_outvote_a_new_one() {
    let mut costs = costs(&[None, None, None, None]);
    for slot in 0..4 {
        teach(&mut costs, slot, 0.8, 100);
    }
    // All were slow; the one in use shows that it has recovered.
    for second in 1..240 {
        let now = Millis(f64::from(second) * 1000.0);
        answer(&mut costs, now, 0, 0.1);
        costs.elapse(now);
    }
    let taken = believed(&costs);
    assert!(
        taken[0] < 70.0 && taken.iter().all(|one| *one == taken[0]),
        "{taken:?}"
    );
}

#[test]
fn what_was_measured_is_what_an_idle_worker_is_believed_to_cost_again() {
    let mut costs = costs(&[Some(0.1), Some(0.2), Some(0.1)]);
    for (slot, alpha) in [(0, 0.1), (1, 0.9), (2, 0.1)] {
        teach(&mut costs, slot, alpha, 100);
    }
    costs.elapse(Millis(3_600_000.0));
    let taken = believed(&costs);
    assert!((taken[1] / 115.0 - 1.0).abs() < 0.01, "{taken:?}");
    assert!(
        (alpha(&costs, 1) / 0.9 - 1.0).abs() < 0.05,
        "it is still learned to be slow"
    );
}

#[test]
fn a_worker_added_before_any_answer_begins_as_those_that_were_measured() {
    let mut costs = costs(&[Some(0.05), Some(0.05)]);
    costs.admit(WorkerId(2), &spec("http://late:1"));
    let taken = believed(&costs);
    assert_eq!(taken[2], taken[0]);
}

#[test]
fn an_overhead_that_is_old_is_that_of_the_others_and_one_answer_decides() {
    let mut costs = costs(&[Some(0.1), Some(0.1), Some(0.1)]);
    for (slot, beside) in [(0, 4.0), (1, 500.0), (2, 4.0)] {
        tell(&mut costs, slot, beside, 100);
    }
    assert!(costs.overheads()[1].0 > 400.0);
    let late = Millis(600_000.0);
    costs.elapse(late);
    let overheads = costs.overheads();
    assert!((overheads[1] - overheads[0]).0.abs() < 1.0, "{overheads:?}");
    costs.beside(WorkerId(1), Millis(4.0));
    answer(&mut costs, late, 1, 0.1);
    costs.elapse(late);
    let overheads = costs.overheads();
    assert!((overheads[1] - overheads[0]).0.abs() < 5.0, "{overheads:?}");
}
