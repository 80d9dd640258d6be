//! The accuracy of predicted cached tokens: with events that name conversations, with events that do not, and without
//! events.

use std::time::Duration;

use config::KvEvents;
use policy::units::Tokens;
use sim_engine::{EngineConfig, EventStyle, Fault, KvEventsConfig};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::wait::within;

use crate::{Dice, agreement, all_live, told};

pub(crate) const CAPACITY_BLOCKS: u64 = 500;
const TURNS: u64 = 200;

pub(crate) async fn fleet(engines: usize, events: Option<EventStyle>) -> Fleet {
    let engine = EngineConfig {
        kv_events: Some(KvEventsConfig {
            style: events.unwrap_or_default(),
            ..KvEventsConfig::default()
        }),
        capacity_blocks: CAPACITY_BLOCKS,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; engines], |config| {
        for worker in &mut config.workers {
            worker.capacity = Tokens(CAPACITY_BLOCKS * u64::from(worker.block_size));
            if events.is_none() {
                worker.kv_events = KvEvents::Off;
            }
        }
    })
    .await;
    if events.is_some() {
        all_live(&fleet).await;
        subscribed_and_cleared(&fleet).await;
    }
    fleet
}

/// Clears caches until a clear of every worker was received, other than by a replay, because a subscription takes
/// effect only when the publisher has read it.
pub(crate) async fn subscribed_and_cleared(fleet: &Fleet) {
    let workers = fleet.router.parts().state.routing.fleet.workers();
    let heard = || async {
        let page = fleet.metrics().await;
        workers.iter().all(|worker| {
            let name = worker.name();
            let cleared = [("worker", name), ("kind", "cleared")];
            let replayed = [("worker", name), ("what", "replayed")];
            page.sum("tailroute_kv_events_total", &cleared) > page.sum("tailroute_kv_stream_total", &replayed)
        })
    };
    within(async {
        while !heard().await {
            for engine in &fleet.engines {
                engine.set_fault(Fault {
                    clear_cache: true,
                    ..Fault::default()
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Runs conversations that share system prompts, fork at earlier turns, and exceed the caches; halfway a cache is
/// cleared. Returns the metrics page.
async fn talk(fleet: &Fleet, seed: u64) -> Page {
    talk_and(fleet, seed, true).await
}

/// Does the same, with or without clearing a cache.
pub(crate) async fn talk_and(fleet: &Fleet, seed: u64, clear: bool) -> Page {
    let mut dice = Dice(seed);
    let mut talks: Vec<Conversation> = Vec::new();
    for turn in 0..TURNS {
        if clear && turn == TURNS / 2 {
            fleet.engines[0].set_fault(Fault {
                clear_cache: true,
                ..Fault::default()
            });
        }
        let at = match dice.roll(10) {
            0 | 1 => {
                talks.push(Conversation::new(&words(dice.roll(3), 150)));
                talks.len() - 1
            }
            2 if !talks.is_empty() => {
                let copy = talks[dice.roll(talks.len() as u64) as usize].clone();
                talks.push(copy);
                talks.len() - 1
            }
            _ if talks.is_empty() => {
                talks.push(Conversation::new(&words(9, 150)));
                0
            }
            _ => {
                let newest = talks.len().min(12) as u64;
                talks.len() - 1 - dice.roll(newest) as usize
            }
        };
        let name = format!("talk-{at}");
        let length = 10 + dice.roll(120) as usize;
        fleet
            .turn(
                &mut talks[at],
                &[("x-session-id", &name)],
                &words(1000 + turn, length),
            )
            .await;
        fleet.at_rest().await;
    }
    fleet.metrics().await
}

#[tokio::test]
async fn with_events_predictions_are_exact() {
    let fleet = fleet(2, Some(EventStyle::Vllm)).await;
    let page = talk(&fleet, 1).await;
    let (exact, block) = agreement(&page);
    let told = told(&page);
    assert!(told >= 0.9 * TURNS as f64, "{told} told by events");
    assert!(exact >= 0.99, "{exact} exact, {block} within a block");
}

#[tokio::test]
async fn events_without_session_ids_predict_as_well_for_turns_of_different_shapes() {
    let fleet = fleet(2, Some(EventStyle::Sglang)).await;
    let page = talk(&fleet, 1).await;
    let (exact, block) = agreement(&page);
    let told = told(&page);
    assert!(told >= 0.9 * TURNS as f64, "{told} told by events");
    assert!(exact >= 0.98, "{exact} exact, {block} within a block");
    let bound = |how| page.sum("tailroute_kv_bindings_total", &[("how", how)]);
    assert_eq!((bound("named"), bound("ambiguous")), (0.0, 0.0));
    assert!(bound("shaped") >= 0.9 * TURNS as f64);
}

#[tokio::test]
async fn without_events_the_mirror_predicts_nearly_as_well() {
    for seed in 1..=8 {
        let fleet = fleet(2, None).await;
        let page = talk(&fleet, seed).await;
        let (exact, block) = agreement(&page);
        eprintln!("mirror alone, seed {seed}: {exact} exact, {block} within a block");
        // The remaining errors come from a cache that was cleared silently: it takes two or three responses to detect
        // that.
        assert!(
            exact >= 0.96 && block >= 0.97,
            "seed {seed}: {exact} exact, {block} within a block"
        );
    }
}

/// Runs rounds of turns of six concurrent conversations, on caches that hold four.
async fn talk_at_once(fleet: &Fleet, seed: u64) -> Page {
    let mut dice = Dice(seed);
    let mut talks: Vec<Conversation> = (0..24).map(|at| Conversation::new(&words(at % 3, 150))).collect();
    for round in 0..40 {
        let mut turns = Vec::new();
        let from = dice.roll(18) as usize;
        for (at, talk) in talks.iter_mut().enumerate().skip(from).take(6) {
            let (name, length) = (format!("talk-{at}"), 10 + dice.roll(120) as usize);
            turns.push(async move {
                let text = words(1000 + 100 * round + at as u64, length);
                fleet.turn(talk, &[("x-session-id", &name)], &text).await;
            });
        }
        futures_util::future::join_all(turns).await;
        fleet.at_rest().await;
    }
    fleet.metrics().await
}

#[tokio::test]
async fn concurrent_turns_are_predicted_nearly_as_well() {
    let styles = [None, Some(EventStyle::Vllm), Some(EventStyle::Sglang)];
    for (events, seed) in styles.into_iter().flat_map(|events| [(events, 1), (events, 2)]) {
        let fleet = fleet(2, events).await;
        let (exact, block) = agreement(&talk_at_once(&fleet, seed).await);
        eprintln!("six at a time, {events:?}, seed {seed}: {exact} exact, {block} within a block");
        // If two prompts with a common prefix wait in a queue, the second one's hits are not determined yet.
        assert!(
            exact >= 0.88,
            "{events:?}, seed {seed}: {exact} exact, {block} within a block"
        );
    }
}
