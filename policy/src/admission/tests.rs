//! Guarantees of the limits and the queue.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::naive::NaiveQueue;
use super::{Bucket, FairQueue, Flow};
use crate::units::Millis;

#[test]
fn a_bucket_lets_its_burst_through_and_then_its_rate() {
    let mut bucket = Bucket::new(10.0, 3.0, Millis(0.0));
    for _ in 0..3 {
        bucket.take(Millis(0.0), 1.0).unwrap();
    }
    assert_eq!(bucket.take(Millis(0.0), 1.0), Err(Millis(100.0)));
    bucket.take(Millis(100.0), 1.0).unwrap();
    assert!(bucket.take(Millis(150.0), 1.0).is_err());
    assert_eq!(bucket.until_full(Millis(150.0)), Millis(250.0));
}

#[test]
fn what_was_estimated_too_low_is_paid_by_the_next_request() {
    let mut bucket = Bucket::new(1000.0, 1000.0, Millis(0.0));
    bucket.take(Millis(0.0), 400.0).unwrap();
    bucket.correct(Millis(0.0), 1600.0);
    assert_eq!(bucket.remaining(Millis(0.0)), 0.0);
    assert_eq!(bucket.take(Millis(0.0), 100.0), Err(Millis(1100.0)));
    bucket.correct(Millis(0.0), -5000.0);
    assert_eq!(
        bucket.remaining(Millis(0.0)),
        1000.0,
        "it gives back no more than it holds"
    );
}

#[test]
fn no_correction_leaves_more_than_an_hours_debt_and_what_was_asked_for_is_owed_in_full() {
    let hour = 3_600_000.0;
    let mut bucket = Bucket::new(10.0, 100.0, Millis(0.0));
    for _ in 0..2 {
        bucket.correct(Millis(0.0), 1e12);
        assert_eq!(bucket.balance(Millis(0.0)), -36_000.0);
        assert_eq!(bucket.take(Millis(0.0), 100.0), Err(Millis(hour + 10_000.0)));
    }
    bucket.fill(Millis(0.0));
    bucket.take(Millis(0.0), 1e6).unwrap();
    let owed = bucket.balance(Millis(0.0));
    bucket.correct(Millis(0.0), 1e12);
    assert_eq!(
        bucket.balance(Millis(0.0)),
        owed,
        "a correction adds nothing to more than that"
    );
    bucket.correct(Millis(0.0), -1e6);
    assert_eq!(bucket.balance(Millis(0.0)), owed + 1e6);
}

#[test]
fn a_request_beyond_the_burst_needs_a_full_bucket_and_overdraws_it() {
    let mut bucket = Bucket::new(1000.0, 100.0, Millis(0.0));
    bucket.take(Millis(0.0), 500.0).unwrap();
    assert_eq!(bucket.take(Millis(0.0), 500.0), Err(Millis(500.0)));
    bucket.take(Millis(500.0), 500.0).unwrap();
}

#[test]
fn another_shape_forgets_nothing_that_was_used() {
    let mut bucket = Bucket::new(1.0, 10.0, Millis(0.0));
    bucket.take(Millis(0.0), 4.0).unwrap();
    let mut bucket = bucket.reshaped(2.0, 5.0, Millis(0.0));
    assert_eq!(bucket.remaining(Millis(0.0)), 1.0);
    assert_eq!(bucket.take(Millis(0.0), 2.0), Err(Millis(500.0)));
}

#[test]
fn a_higher_class_goes_first_and_a_full_queue_gives_back() {
    let mut queue = FairQueue::new(2);
    queue.push(Flow(1), 0, 1.0, 1.0, "low").unwrap();
    queue.push(Flow(1), 5, 1.0, 1.0, "high").unwrap();
    assert_eq!(queue.push(Flow(2), 9, 1.0, 1.0, "none"), Err("none"));
    assert_eq!(
        (queue.pop(), queue.pop(), queue.pop()),
        (Some("high"), Some("low"), None)
    );
}

#[test]
fn a_crowd_of_one_flow_does_not_hold_up_another() {
    let mut queue = FairQueue::new(100);
    for at in 0..50 {
        queue.push(Flow(1), 0, 1.0, 1.0, (1, at)).unwrap();
    }
    queue.pop();
    queue.push(Flow(2), 0, 1.0, 1.0, (2, 0)).unwrap();
    let next: Vec<_> = (0..2).filter_map(|_| queue.pop()).collect();
    assert!(next.contains(&(2, 0)), "{next:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64, i32, f64, f64),
    Pop,
    Remove(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u64..4, 0i32..3, prop::sample::select(vec![0.5, 1.0, 3.0]), prop::sample::select(vec![1.0, 2.0, 7.0]))
            .prop_map(|(flow, priority, weight, cost)| Step::Push(flow, priority, weight, cost)),
        4 => Just(Step::Pop),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn the_queue_serves_in_the_order_of_its_naive_twin(steps in steps()) {
        let (mut queue, mut naive) = (FairQueue::new(usize::MAX), NaiveQueue::default());
        let mut tickets = Vec::new();
        for step in steps {
            match step {
                Step::Push(flow, priority, weight, cost) => {
                    let number = naive.push(Flow(flow), priority, weight, cost);
                    tickets.push((queue.push(Flow(flow), priority, weight, cost, number).unwrap(), number));
                }
                Step::Pop => prop_assert_eq!(queue.pop(), naive.pop()),
                Step::Remove(at) if !tickets.is_empty() => {
                    let (ticket, number) = *at.get(&tickets);
                    prop_assert_eq!(queue.remove(ticket), naive.remove(number).then_some(number));
                }
                Step::Remove(_) => {}
            }
            prop_assert!(queue.holds());
            prop_assert_eq!(queue.peek().map(|(_, number)| *number), naive.peek());
        }
    }

    /// Goyal, Vin, Cheng 1996, theorem 1, and its consequence for a flow's share.
    #[test]
    fn no_flow_with_demand_gets_less_than_its_share_beyond_a_request(
        flows in prop::collection::vec((prop::sample::select(vec![0.5, 1.0, 2.0, 5.0]), 1.0f64..9.0), 2..6),
        rounds in 1usize..200,
        seed in any::<u64>(),
    ) {
        let mut queue = FairQueue::new(usize::MAX);
        let mut next_cost = seed | 1;
        let mut largest = vec![0.0f64; flows.len()];
        let mut push = |queue: &mut FairQueue<(usize, f64)>, flow: usize| {
            next_cost = next_cost.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let cost = 1.0 + flows[flow].1 * ((next_cost >> 40) as f64 / (1u64 << 24) as f64);
            largest[flow] = largest[flow].max(cost);
            queue.push(Flow(flow as u64), 0, flows[flow].0, cost, (flow, cost)).unwrap();
        };
        for flow in 0..flows.len() {
            push(&mut queue, flow);
            push(&mut queue, flow);
        }
        let mut served: BTreeMap<usize, f64> = BTreeMap::new();
        for _ in 0..rounds {
            let (flow, cost) = queue.pop().unwrap();
            *served.entry(flow).or_default() += cost;
            push(&mut queue, flow);
        }
        let of = |flow: usize| served.get(&flow).copied().unwrap_or(0.0);
        let (weights, total): (f64, f64) = (flows.iter().map(|flow| flow.0).sum(), served.values().sum());
        for (one, (weight, _)) in flows.iter().enumerate() {
            for (other, (others, _)) in flows.iter().enumerate() {
                let apart = (of(one) / weight - of(other) / others).abs();
                let bound = largest[one] / weight + largest[other] / others;
                prop_assert!(apart <= bound + 1e-6, "{apart} > {bound}");
            }
            let share = weight / weights;
            let of_others: f64 = (0..flows.len()).filter(|other| *other != one).map(|other| largest[other]).sum();
            let least = share * (total - of_others) - (1.0 - share) * largest[one];
            prop_assert!(of(one) >= least - 1e-6, "{} of {total}, at least {least}", of(one));
        }
    }

    #[test]
    fn a_bucket_never_lets_more_in_than_burst_and_rate_allow(
        rate in 0.1f64..100.0, burst in 1.0f64..50.0,
        tries in prop::collection::vec((0.0f64..500.0, 0.01f64..1.0), 1..100),
    ) {
        let mut bucket = Bucket::new(rate, burst, Millis::ZERO);
        let (mut now, mut taken) = (0.0, 0.0);
        for (pause, share) in tries {
            now += pause;
            let units = share * burst;
            match bucket.take(Millis(now), units) {
                Ok(()) => taken += units,
                Err(wait) => {
                    prop_assert!(wait.0 > 0.0);
                    now += wait.0;
                    prop_assert!(bucket.take(Millis(now), units).is_ok(), "who waits as long as told gets in");
                    taken += units;
                }
            }
            prop_assert!(taken <= burst + rate * now / 1e3 + 1e-6 * burst);
        }
    }
}
