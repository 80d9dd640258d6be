use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use proptest::prelude::*;

use super::*;

fn view(slot: u32, ready: bool, in_flight: u32) -> WorkerView {
    WorkerView {
        id: WorkerId(slot),
        ready,
        cost: PrefillCost::linear(0.1, 20.0),
        overhead: Millis::ZERO,
        wait: Millis::ZERO,
        utilisation: 0.0,
        mean_work: Millis::ZERO,
        in_flight,
        indexed: Tokens::ZERO,
        conversations: 0.0,
    }
}

fn open(failed_share: f64) -> Condition {
    Condition {
        breaker: BreakerState::Open,
        failed_share,
        ..Condition::WELL
    }
}

const LATE: Condition = Condition {
    late: true,
    ..Condition::WELL
};

fn ready(conditions: &[Condition], in_flight: &[u32], max_share: f64) -> Vec<bool> {
    let mut views: Vec<_> = (0..)
        .zip(in_flight)
        .map(|(slot, &in_flight)| view(slot, true, in_flight))
        .collect();
    narrow(&mut views, conditions, max_share);
    views.iter().map(|view| view.ready).collect()
}

#[test]
fn a_worker_whose_breaker_is_open_gets_nothing() {
    let conditions = [Condition::WELL, open(0.5), Condition::WELL];
    assert_eq!(ready(&conditions, &[0; 3], 0.5), [true, false, true]);
}

#[test]
fn the_only_worker_is_never_kept_out() {
    assert_eq!(ready(&[open(0.9)], &[0], 1.0), [true]);
    assert_eq!(ready(&[open(0.9), open(0.5)], &[0; 2], 1.0), [false, true]);
}

#[test]
fn workers_with_late_probes_are_passed_over_while_others_remain() {
    assert_eq!(ready(&[LATE], &[9], 1.0), [true]);
    assert_eq!(ready(&[LATE; 2], &[0; 2], 1.0), [false, true]);
    assert_eq!(ready(&[Condition::WELL, LATE], &[9, 0], 0.5), [true, false]);
    assert_eq!(
        ready(&[LATE, open(0.1), LATE, LATE], &[0; 4], 0.25),
        [true, false, true, true]
    );
    let mut views = [view(0, true, 0), view(1, true, 0)];
    assert_eq!(
        narrow(&mut views, &[LATE; 2], 0.5),
        0,
        "no breaker was overridden"
    );
}

#[test]
fn of_many_that_fail_the_worst_are_kept_out() {
    let conditions = [open(0.5), open(0.8), open(0.6), open(0.7)];
    assert_eq!(ready(&conditions, &[0; 4], 0.5), [true, false, true, false]);
    assert_eq!(ready(&conditions, &[0; 4], 0.0), [true; 4]);
}

#[test]
fn a_worker_that_comes_back_gets_a_growing_share_of_what_the_busiest_has() {
    let admitted = |started: f64, in_flight: u32| {
        let returning = Condition {
            started,
            ..Condition::WELL
        };
        ready(&[Condition::WELL, returning], &[20, in_flight], 0.5)[1]
    };
    assert!(admitted(0.0, 0), "one at once");
    assert!(!admitted(0.0, 1));
    assert!(admitted(0.5, 9) && !admitted(0.5, 10));
    assert!(admitted(1.0, 1000), "then it is one of them");
}

#[test]
fn a_worker_is_avoided_only_while_another_one_remains() {
    let avoided = Condition {
        is_avoided: true,
        ..Condition::WELL
    };
    let usable = |conditions: &[Condition], ready: &[bool]| {
        let mut views: Vec<_> = (0..)
            .zip(ready)
            .map(|(slot, &ready)| view(slot, ready, 0))
            .collect();
        avoid(&mut views, conditions);
        views.iter().map(|view| view.ready).collect::<Vec<_>>()
    };
    assert_eq!(usable(&[avoided, Condition::WELL], &[true; 2]), [false, true]);
    assert_eq!(usable(&[avoided, avoided], &[true; 2]), [true; 2]);
    assert_eq!(usable(&[avoided, Condition::WELL], &[true, false]), [true, false]);
}

#[test]
fn where_all_start_nobody_is_held_back() {
    let starting = Condition {
        started: 0.1,
        ..Condition::WELL
    };
    assert_eq!(ready(&[starting; 3], &[7, 8, 9], 0.5), [true; 3]);
}

proptest! {
    #[test]
    fn somebody_stays_ready_and_no_more_than_the_share_is_kept_out(
        workers in prop::collection::vec((any::<bool>(), any::<[bool; 2]>(), 0.0_f64..1.0, 0.0_f64..1.5, 0_u32..50), 1..20),
        max_share in 0.0_f64..1.0,
    ) {
        let mut views = Vec::new();
        let mut conditions = Vec::new();
        for (slot, &(is_ready, [fails, late], failed_share, started, in_flight)) in (0..).zip(&workers) {
            views.push(view(slot, is_ready, in_flight));
            conditions.push(Condition {
                breaker: if fails { BreakerState::Open } else { BreakerState::Closed },
                failed_share,
                started: started.min(1.0),
                late,
                is_avoided: false,
            });
        }
        let before = views.clone();
        let passed_over = narrow(&mut views, &conditions, max_share);
        let count = |views: &[WorkerView]| views.iter().filter(|view| view.ready).count();
        prop_assert_eq!(count(&views) > 0, count(&before) > 0);
        prop_assert!(views.iter().zip(&before).all(|(after, before)| before.ready || !after.ready));
        let out = |at: &usize| before[*at].ready && !views[*at].ready && conditions[*at].started >= 1.0;
        let kept_out = (0..views.len()).filter(out).count();
        prop_assert!(kept_out as f64 <= max_share * count(&before) as f64);
        let failing = (0..views.len())
            .filter(|&at| before[at].ready && conditions[at].breaker == BreakerState::Open)
            .count();
        prop_assert!(passed_over <= failing);
    }
}
