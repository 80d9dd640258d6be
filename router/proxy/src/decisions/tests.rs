use policy::ids::WorkerId;
use policy::route::{Overridden, PolicyName, Reason, Terms};
use policy::slo::Cause;
use policy::units::Millis;

use super::*;

fn terms(worker: u32, score: f64, cached: u64) -> Terms {
    Terms {
        ready: score.is_finite(),
        cached: Tokens(cached),
        uncached: Tokens(1000 - cached),
        wait_ms: 1.0,
        marginal_ms: 2.0,
        fixed_ms: 3.0,
        score,
        ..Terms::unscored(WorkerId(worker))
    }
}

fn decision(sequence: u64, terms: Vec<Terms>) -> Decision {
    let best = (0..terms.len()).min_by(|a, b| terms[*a].score.total_cmp(&terms[*b].score));
    Decision {
        sequence,
        policy: PolicyName::Tail,
        overridden: Overridden {
            class: true,
            request: true,
        },
        reason: Reason::LeastCost,
        chosen: best.unwrap(),
        terms,
    }
}

fn record(ring: &Decisions, request: &str, decision: &Decision) -> Ticket {
    let made = NewDecision {
        request: request.as_bytes(),
        trace: TraceId::read(&[b'a'; 32]),
        conversation: Some(7),
        model: "m",
        class: "default",
        objective: Millis(500.0),
        arrived: Millis(10.0),
        held: Millis(1.0),
        prompt: Tokens(1000),
        asked: "fast",
        decision,
    };
    ring.record(&made).unwrap()
}

fn ring(slots: usize) -> Decisions {
    let ring = Decisions::new(slots * size_of::<Mutex<Slot>>() + 1);
    assert_eq!(ring.capacity(), slots);
    ring
}

fn requests(page: &[Slot]) -> Vec<String> {
    page.iter().map(|slot| slot.request.text()).collect()
}

fn all(ring: &Decisions, filter: &Filter) -> Vec<String> {
    requests(&ring.page(filter, None, 100).0)
}

#[test]
fn what_is_kept_fits_into_the_bytes_it_was_given_and_the_oldest_make_room() {
    let ring = ring(3);
    for sequence in 0..5 {
        record(
            &ring,
            &format!("r{sequence}"),
            &decision(sequence, vec![terms(0, 1.0, 0)]),
        );
    }
    assert_eq!(all(&ring, &Filter::default()), ["r4", "r3", "r2"]);
    let beside_terms = size_of::<Mutex<Slot>>() - slot::ROWS * size_of::<slot::Row>();
    assert!(beside_terms <= 600, "{beside_terms}");
    assert_eq!(Decisions::new(100).capacity(), 0);
    let nothing = Decisions::new(0);
    assert!(nothing.page(&Filter::default(), None, 10).0.is_empty());
}

#[test]
fn a_decision_whose_place_was_taken_is_not_updated() {
    let ring = ring(2);
    let first = record(&ring, "a", &decision(0, vec![terms(0, 1.0, 0)]));
    record(&ring, "b", &decision(1, vec![terms(0, 1.0, 0)]));
    ring.update(first, |came| came.outcome = Some("ok"));
    assert_eq!(
        ring.page(&Filter::default(), None, 9).0[1].came.outcome,
        Some("ok")
    );
    record(&ring, "c", &decision(2, vec![terms(0, 1.0, 0)]));
    ring.update(first, |came| came.outcome = Some("broken"));
    let page = ring.page(&Filter::default(), None, 9).0;
    assert!(page.iter().all(|slot| slot.came.outcome.is_none()));
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let ring = ring(8);
    for sequence in 0..7 {
        record(
            &ring,
            &format!("r{sequence}"),
            &decision(sequence, vec![terms(0, 1.0, 0)]),
        );
    }
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let (page, next) = ring.page(&Filter::default(), before, 3);
        seen.extend(requests(&page));
        // New decisions do not shift pages.
        record(&ring, "new", &decision(99, vec![terms(0, 1.0, 0)]));
        before = next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["r6", "r5", "r4", "r3", "r2", "r1"], "r0 made room");
}

#[test]
fn decisions_are_found_by_what_they_chose_and_what_came_of_it() {
    let ring = ring(8);
    let late = |request: &str, worker: u32, ttft: f64, cause: Option<Cause>| {
        let made = decision(worker.into(), vec![terms(worker, 1.0, 0)]);
        let ticket = record(&ring, request, &made);
        ring.update(ticket, |came| {
            came.ttft = Some(Millis(ttft));
            came.cause = cause;
        });
    };
    late("quick", 0, 499.0, None);
    late("queued", 1, 501.0, Some(Cause::Queue));
    late("slow", 0, 900.0, Some(Cause::Engine));
    record(&ring, "open", &decision(9, vec![terms(0, 1.0, 0)]));
    let by = |filter| all(&ring, &filter);
    let none = Filter::default;
    assert_eq!(
        by(Filter {
            worker: Some((0, Millis::ZERO)),
            ..none()
        }),
        ["open", "slow", "quick"]
    );
    assert_eq!(
        by(Filter {
            late: Some(true),
            ..none()
        }),
        ["slow", "queued"]
    );
    assert_eq!(
        by(Filter {
            late: Some(false),
            ..none()
        }),
        ["open", "quick"]
    );
    assert_eq!(
        by(Filter {
            cause: Some(Cause::Queue),
            ..none()
        }),
        ["queued"]
    );
    assert_eq!(
        by(Filter {
            request: Some("slow".into()),
            ..none()
        }),
        ["slow"]
    );
    assert_eq!(
        by(Filter {
            decision: Some(9),
            ..none()
        }),
        ["open"]
    );
    assert_eq!(
        by(Filter {
            class: Some("batch".into()),
            ..none()
        }),
        [""; 0]
    );
}

#[test]
fn of_a_large_fleet_the_best_are_kept_and_the_rest_in_a_few_words() {
    let ring = ring(1);
    // Worker 40 holds the whole prompt and is overloaded; every tenth worker is not ready.
    let workers = (0..100).map(|worker| match worker {
        40 => terms(40, 5000.0, 999),
        _ if worker % 10 == 3 => terms(worker, f64::INFINITY, 0),
        _ => terms(worker, f64::from((worker * 37) % 100), 10),
    });
    let made = decision(0, workers.collect());
    record(&ring, "r", &made);
    let slot = ring.page(&Filter::default(), None, 1).0.remove(0);
    let mut sorted: Vec<&Terms> = made.terms.iter().collect();
    sorted.sort_by(|a, b| a.score.total_cmp(&b.score));
    let expected: Vec<u32> = sorted.iter().take(ROWS).map(|terms| terms.worker.0).collect();
    let kept: Vec<u32> = slot.rows().iter().map(|row| row.worker).collect();
    assert_eq!(kept, expected);
    assert_eq!(slot.runner_up().unwrap().worker, expected[1]);
    assert_eq!((slot.rest.workers, slot.rest.ready), (84, 74));
    assert_eq!(slot.rest.holder, Some((40, 999)));
}

#[test]
fn nobody_comes_second_where_nobody_else_could_be_chosen() {
    let ring = ring(1);
    record(
        &ring,
        "r",
        &decision(0, vec![terms(0, f64::INFINITY, 0), terms(1, 2.0, 0)]),
    );
    let slot = ring.page(&Filter::default(), None, 1).0.remove(0);
    assert_eq!(slot.rows().len(), 2);
    assert_eq!(slot.chosen().unwrap().worker, 1);
    assert!(slot.runner_up().is_none());
}

#[test]
fn long_names_are_cut_between_characters() {
    let ring = ring(1);
    record(&ring, &"ä".repeat(200), &decision(0, vec![terms(0, 1.0, 0)]));
    let name = ring.page(&Filter::default(), None, 1).0[0].request.text();
    assert_eq!(name, "ä".repeat(64));
}

#[test]
fn requests_are_found_by_the_beginning_of_their_id() {
    let ring = ring(4);
    for request in ["ab1", "ab2", "ab2", "abc", "x"] {
        record(&ring, request, &decision(0, vec![terms(0, 1.0, 0)]));
    }
    assert_eq!(
        ring.requests_beginning_with("ab", 9),
        ["abc", "ab2"],
        "ab1 made room"
    );
    assert_eq!(ring.requests_beginning_with("ab", 1), ["abc"]);
    assert_eq!(ring.requests_beginning_with("abcd", 9), [""; 0]);
}
