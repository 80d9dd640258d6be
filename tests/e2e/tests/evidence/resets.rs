//! Caches that are cleared without notice, at an engine without events.

use sim_engine::Fault;
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::talk::{Conversation, words};

use crate::agreement::fleet;

const TALKS: usize = 10;

/// Returns the number of predictions that were off by more than a block.
async fn mispredicted(fleet: &Fleet) -> f64 {
    let page = fleet.metrics().await;
    let off = |agreement| {
        page.sum(
            "tailroute_cached_tokens_agreement_total",
            &[("agreement", agreement)],
        )
    };
    off("tenth") + off("off")
}

async fn returns(fleet: &Fleet, talks: &mut [Conversation], order: &[usize], round: u64) {
    for &at in order {
        let name = format!("talk-{at}");
        let text = words(100 * round + at as u64, 20);
        fleet
            .turn(&mut talks[at], &[("x-session-id", &name)], &text)
            .await;
        fleet.at_rest().await;
    }
}

async fn resets(system: impl Fn(usize) -> u64) {
    let fleet = fleet(1, None).await;
    let mut talks: Vec<Conversation> = (0..TALKS)
        .map(|at| Conversation::new(&words(system(at), 120)))
        .collect();
    for (at, talk) in talks.iter_mut().enumerate() {
        talk.user(&words(5000 + at as u64, 100));
        talk.assistant("yes");
    }
    let in_order: Vec<usize> = (0..TALKS).collect();
    let reversed: Vec<usize> = (0..TALKS).rev().collect();
    let shuffled: Vec<usize> = (0..TALKS).map(|at| (at * 7 + 3) % TALKS).collect();
    returns(&fleet, &mut talks, &in_order, 1).await;
    for (round, order) in (2..).zip([&in_order, &reversed, &shuffled, &in_order]) {
        fleet.engines[0].set_fault(Fault {
            clear_cache: true,
            ..Fault::default()
        });
        let before = mispredicted(&fleet).await;
        returns(&fleet, &mut talks, order, round).await;
        let wrong = mispredicted(&fleet).await - before;
        assert!((1.0..=3.0).contains(&wrong), "{wrong} in {order:?}");
    }
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_mirror_clears_total", &[]), 4.0);
}

#[tokio::test]
async fn a_reset_costs_at_most_three_predictions_whatever_the_order_of_return() {
    resets(|at| at as u64).await;
}

#[tokio::test]
async fn a_shared_system_prompt_that_is_there_again_does_not_hide_a_reset() {
    resets(|_| 0).await;
}
