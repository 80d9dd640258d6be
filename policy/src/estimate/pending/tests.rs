use proptest::prelude::*;

use super::*;

#[test]
fn an_idle_worker_has_no_wait() {
    assert_eq!(PendingWork::new().wait(Millis(5.0)), Millis::ZERO);
}

#[test]
fn wait_shrinks_as_the_head_is_computed_and_grows_again_once_it_is_late() {
    let mut work = PendingWork::new();
    work.sent(Millis(0.0), Millis(100.0));
    work.sent(Millis(10.0), Millis(50.0));
    assert_eq!(work.wait(Millis(10.0)), Millis(140.0));
    assert_eq!(work.wait(Millis(90.0)), Millis(60.0));
    assert_eq!(work.wait(Millis(100.0)), Millis(50.0));
    // Late by 400 ms: another 400 are expected, and then the one behind it.
    assert_eq!(work.wait(Millis(500.0)), Millis(450.0));
}

#[test]
fn what_waits_takes_as_long_as_the_worker_is_found_to_take() {
    let mut work = PendingWork::new();
    let head = work.sent(Millis(0.0), Millis(100.0));
    work.sent(Millis(0.0), Millis(50.0));
    let gone = work.sent(Millis(0.0), Millis(70.0));
    work.gone(Millis(10.0), gone);
    work.repriced(8.0);
    assert_eq!(work.wait(Millis(20.0)), Millis(780.0 + 400.0));
    work.first_token(Millis(800.0), head);
    assert_eq!(work.wait(Millis(800.0)), Millis(400.0));
}

#[test]
fn a_first_token_starts_the_next_prefill() {
    let mut work = PendingWork::new();
    let first = work.sent(Millis(0.0), Millis(100.0));
    work.sent(Millis(0.0), Millis(50.0));
    work.first_token(Millis(130.0), first);
    assert_eq!(work.wait(Millis(130.0)), Millis(50.0));
    assert_eq!(work.wait(Millis(150.0)), Millis(30.0));
}

#[test]
fn a_first_token_clears_what_was_sent_before_it() {
    let mut work = PendingWork::new();
    let _lost = work.sent(Millis(0.0), Millis(100.0));
    let second = work.sent(Millis(0.0), Millis(50.0));
    work.first_token(Millis(70.0), second);
    assert!(work.is_empty());
    assert_eq!(work.wait(Millis(70.0)), Millis::ZERO);
}

#[test]
fn aborted_requests_behind_a_head_that_never_begins_take_no_room() {
    let mut work = PendingWork::new();
    let head = work.sent(Millis(0.0), Millis(100.0));
    for _ in 0..10_000 {
        let aborted = work.sent(Millis(0.0), Millis(50.0));
        work.gone(Millis(0.0), aborted);
    }
    assert!(work.items.len() <= LEAST_TIDIED, "{}", work.items.len());
    work.sent(Millis(0.0), Millis(25.0));
    work.first_token(Millis(100.0), head);
    assert_eq!(work.wait(Millis(100.0)), Millis(25.0));
}

#[test]
fn an_aborted_request_stops_counting_alone() {
    let mut work = PendingWork::new();
    work.sent(Millis(0.0), Millis(100.0));
    let second = work.sent(Millis(0.0), Millis(50.0));
    let third = work.sent(Millis(0.0), Millis(25.0));
    work.gone(Millis(10.0), second);
    work.gone(Millis(10.0), second);
    assert_eq!(work.wait(Millis(10.0)), Millis(115.0));
    work.first_token(Millis(90.0), third);
    assert_eq!(work.wait(Millis(90.0)), Millis::ZERO);
}

fn figure(asked: f64, waiting: u32, running: u32, in_flight: u32) -> QueueFigure {
    QueueFigure {
        asked: Millis(asked),
        good_for: Millis(1000.0),
        waiting,
        running,
        waiting_work: None,
        in_flight,
        mean_work: Millis(100.0),
    }
}

#[test]
fn a_first_token_of_a_request_that_was_the_head_tells_what_its_prefill_took() {
    let mut work = PendingWork::new();
    let first = work.sent(Millis(0.0), Millis(100.0));
    let second = work.sent(Millis(10.0), Millis(50.0));
    let overtaken = work.sent(Millis(20.0), Millis(50.0));
    let overtaker = work.sent(Millis(30.0), Millis(10.0));
    assert_eq!(work.first_token(Millis(130.0), first), Some(Millis(130.0)));
    assert_eq!(work.first_token(Millis(190.0), second), Some(Millis(60.0)));
    assert_eq!(work.first_token(Millis(200.0), overtaker), None);
    assert_eq!(work.first_token(Millis(260.0), overtaken), None);
}

#[test]
fn what_others_sent_counts_while_the_figure_is_fresh() {
    let mut work = PendingWork::new();
    let found = work.reconcile(Millis(10.0), &figure(0.0, 3, 1, 0));
    assert_eq!((found.elsewhere, found.lost), (3, 0));
    assert_eq!(work.wait(Millis(10.0)), Millis(290.0));
    assert_eq!(work.wait(Millis(200.0)), Millis(100.0));
    assert_eq!(work.wait(Millis(900.0)), Millis::ZERO, "worked off");
    work.reconcile(Millis(910.0), &figure(900.0, 50, 1, 0));
    assert_eq!(work.wait(Millis(1899.0)), Millis(5000.0 - 999.0));
}

#[test]
fn what_others_sent_decays_slowly_when_the_figures_stop() {
    let mut work = PendingWork::new();
    work.reconcile(Millis(0.0), &figure(0.0, 500, 8, 0));
    let last = work.wait(Millis(1000.0));
    assert_eq!(last, Millis(49_000.0));
    let after = |s: f64| work.wait(Millis(1000.0 + s * 1e3)).0 / last.0;
    assert!(after(2.0) > 0.9, "{}", after(2.0));
    assert!((0.36..0.38).contains(&after(30.0)), "{}", after(30.0));
    assert!((0.0..0.01).contains(&after(149.0)), "{}", after(149.0));
    assert_eq!(after(151.0), 0.0);
    // The books of what was sent here remain, and a new figure ends the silence.
    work.sent(Millis(1000.0), Millis(70.0));
    assert_eq!(work.wait(Millis(200_000.0)), work.own(Millis(200_000.0)));
    work.reconcile(Millis(20_000.0), &figure(20_000.0, 0, 0, 1));
    assert_eq!(work.elsewhere(Millis(20_000.0)), Millis::ZERO);
}

#[test]
fn others_work_is_bounded_whatever_the_engine_counts() {
    for told in [None, Some(Millis(1e12))] {
        let mut work = PendingWork::new();
        let absurd = QueueFigure {
            waiting_work: told,
            ..figure(0.0, u32::MAX, u32::MAX, 0)
        };
        work.reconcile(Millis(0.0), &absurd);
        assert_eq!(work.wait(Millis(0.0)), MOST_ELSEWHERE);
    }
}

/// Engines' request counts used in place of work: <https://github.com/smg-project/smg/issues/1621>.
#[test]
fn an_engine_that_counts_its_waiting_tokens_is_believed_on_their_size() {
    let mut work = PendingWork::new();
    work.sent(Millis(0.0), Millis(100.0));
    let told = QueueFigure {
        waiting_work: Some(Millis(1000.0)),
        ..figure(0.0, 2, 1, 1)
    };
    work.reconcile(Millis(0.0), &told);
    assert_eq!(work.wait(Millis(0.0)), Millis(1000.0));
}

#[test]
fn our_own_requests_are_not_taken_for_others() {
    let mut work = PendingWork::new();
    work.sent(Millis(0.0), Millis(100.0));
    work.sent(Millis(0.0), Millis(50.0));
    assert_eq!(
        work.reconcile(Millis(10.0), &figure(5.0, 1, 1, 2)),
        Reconciled::default()
    );
    assert_eq!(work.wait(Millis(10.0)), Millis(140.0));
    // A request that decodes here is running there.
    assert_eq!(
        work.reconcile(Millis(10.0), &figure(6.0, 1, 2, 3)),
        Reconciled::default()
    );
}

#[test]
fn a_head_behind_the_work_of_others_is_not_late() {
    let mut work = PendingWork::new();
    work.sent(Millis(0.0), Millis(100.0));
    work.reconcile(Millis(500.0), &figure(500.0, 2, 1, 1));
    // Two prefills of others, and all of ours: none of them is late.
    assert_eq!(work.wait(Millis(500.0)), Millis(300.0));
}

#[test]
fn what_two_figures_in_a_row_have_no_room_for_is_gone() {
    let mut work = PendingWork::new();
    let lost = work.sent(Millis(0.0), Millis(100.0));
    assert_eq!(
        work.reconcile(Millis(2.0), &figure(1.0, 0, 0, 1)).lost,
        0,
        "it may be on its way"
    );
    let late = work.sent(Millis(50.0), Millis(30.0));
    assert_eq!(work.reconcile(Millis(60.0), &figure(55.0, 0, 0, 2)).lost, 1);
    assert_eq!(work.wait(Millis(60.0)), Millis(30.0));
    assert_eq!(work.first_token(Millis(65.0), lost), None);
    assert!(work.first_token(Millis(70.0), late).is_some());
    assert!(work.is_empty());
}

#[test]
fn stale_and_overtaken_figures_are_ignored() {
    let mut work = PendingWork::new();
    assert_eq!(
        work.reconcile(Millis(2000.0), &figure(0.0, 9, 0, 0)),
        Reconciled::default()
    );
    work.reconcile(Millis(2000.0), &figure(1500.0, 1, 0, 0));
    work.reconcile(Millis(2000.0), &figure(1400.0, 9, 0, 0));
    assert_eq!(work.elsewhere(Millis(1500.0)), Millis(100.0));
}

proptest! {
    #[test]
    fn the_wait_is_never_negative_and_ends_at_zero(ops in prop::collection::vec((0u8..5, 0u64..20, 0.0f64..100.0), 0..200)) {
        let mut work = PendingWork::new();
        let mut tickets = Vec::new();
        let mut now = Millis::ZERO;
        for (op, pick, amount) in ops {
            now += Millis(amount / 3.0);
            let ticket = tickets.get(pick as usize % tickets.len().max(1)).copied();
            match (op, ticket) {
                (0 | 1, _) => tickets.push(work.sent(now, Millis(amount))),
                (2, Some(ticket)) => {
                    work.first_token(now, ticket);
                }
                (3, Some(ticket)) => work.gone(now, ticket),
                (4, _) => {
                    let in_flight = work.len() as u32 + pick as u32 % 3;
                    work.reconcile(now, &figure(now.0 - amount / 9.0, pick as u32 % 5, pick as u32 % 4, in_flight));
                }
                _ => {}
            }
            let counted: f64 = work.items.iter().filter(|item| !item.done).map(|item| item.predicted.0).sum();
            prop_assert!((work.total - counted).abs() < 1e-6);
            prop_assert!(work.wait(now).0 >= 0.0);
        }
        for ticket in tickets {
            work.gone(now, ticket);
        }
        prop_assert!(work.is_empty());
        prop_assert_eq!(work.wait(now + Millis(1e6)), Millis::ZERO);
    }
}
