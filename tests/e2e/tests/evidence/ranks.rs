//! An endpoint with several data-parallel ranks: each is a worker with its own cache, and requests are pinned to it.

use config::Worker;
use policy::ids::WorkerId;
use sim_engine::{EngineConfig, EventStyle, KvEventsConfig};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::wait::until;

use crate::agreement::subscribed_and_cleared;
use crate::{agreement, all_live, told};

const RANKS: u32 = 3;

async fn ranked(style: EventStyle) -> Fleet {
    let engine = EngineConfig {
        ranks: RANKS,
        kv_events: Some(KvEventsConfig {
            style,
            ..KvEventsConfig::default()
        }),
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |config| {
        let endpoint = config.workers.remove(0);
        let rank = |rank| Worker {
            name: format!("{}/dp{rank}", endpoint.name),
            rank: Some(rank),
            ..endpoint.clone()
        };
        config.workers = (0..RANKS).map(rank).collect();
        // Clients may name a rank here, but it must not take effect.
        config.http.transfer_fields = true;
    })
    .await;
    all_live(&fleet).await;
    subscribed_and_cleared(&fleet).await;
    fleet
}

#[tokio::test]
async fn a_conversation_stays_on_its_rank_and_each_ranks_cache_is_known() {
    for style in [EventStyle::Vllm, EventStyle::Sglang] {
        let fleet = ranked(style).await;
        let mut talks: Vec<Conversation> = (0..9).map(|seed| Conversation::new(&words(seed, 200))).collect();
        let mut homes: Vec<Vec<String>> = vec![Vec::new(); talks.len()];
        for round in 0..4 {
            for (at, talk) in talks.iter_mut().enumerate() {
                let name = format!("talk-{at}");
                // A client that pins its requests does not override the router.
                let headers = [("x-session-id", name.as_str()), ("x-data-parallel-rank", "0")];
                let turned = fleet
                    .turn(talk, &headers, &words(100 * round + at as u64, 40))
                    .await;
                fleet.at_rest().await;
                homes[at].push(turned.worker);
                assert_eq!(
                    turned.cached > 0,
                    round > 0,
                    "{style:?} {turned:?}",
                    turned = homes[at]
                );
            }
        }
        for home in &homes {
            assert!(home.iter().all(|worker| worker == &home[0]), "{style:?} {home:?}");
        }
        let knowledge = &fleet.router.parts().state.routing.knowledge;
        for rank in 0..RANKS {
            let stats = fleet.engines[0].rank_stats(rank as usize).unwrap();
            assert!(stats.received > 0, "{style:?}: rank {rank} was given work");
            until(&format!("{style:?}: the cache of rank {rank} is known"), || {
                let blocks = knowledge.evidence(WorkerId(rank), |evidence| evidence.blocks());
                blocks.unwrap() as u64 * 16 == stats.cache_used_tokens
            })
            .await;
        }
        let page = fleet.metrics().await;
        assert_eq!(agreement(&page).0, 1.0, "{style:?}");
        assert!(told(&page) >= 27.0, "{style:?}: {} told by events", told(&page));
    }
}

#[tokio::test]
async fn a_rank_ignores_the_events_of_another_rank() {
    let engine = EngineConfig {
        ranks: 2,
        kv_events: Some(KvEventsConfig::default()),
        ..quick()
    };
    // Worker 1 is rank 1 and subscribes to rank 0.
    let engine = sim_engine::Engine::start(engine).await.unwrap();
    let source = engine.kv_source().unwrap();
    let events = config::KvEvents::At {
        endpoint: source.endpoint.clone(),
        replay: Some(source.replay_endpoint.clone()),
    };
    let router = tailroute_e2e::fleet::route(&[engine.addr()], |config| {
        let endpoint = config.workers.remove(0);
        config.workers = (0..2)
            .map(|rank| Worker {
                name: format!("{}/dp{rank}", endpoint.name),
                rank: Some(rank),
                kv_events: events.clone(),
                ..endpoint.clone()
            })
            .collect();
    })
    .await;
    let fleet = Fleet {
        engines: vec![engine],
        router,
    };
    all_live(&fleet).await;
    for seed in 0..4 {
        fleet
            .turn(&mut Conversation::new(&words(seed, 200)), &[], &words(9, 20))
            .await;
        fleet.at_rest().await;
    }
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    let blocks = |slot| {
        knowledge
            .evidence(WorkerId(slot), |evidence| evidence.blocks())
            .unwrap()
    };
    until("rank 0 is known", || blocks(0) > 0).await;
    assert_eq!(blocks(1), 0);
}

#[tokio::test]
async fn events_of_unconfigured_ranks_are_ignored_with_a_warning() {
    let engine = EngineConfig {
        ranks: 2,
        kv_events: Some(KvEventsConfig::default()),
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |_| {}).await;
    tailroute_e2e::wait::within(async {
        let seen = async || {
            let page = fleet.metrics().await;
            page.sum("tailroute_kv_stream_total", &[("what", "ranks")])
        };
        while seen().await < 1.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut talk = Conversation::new(&words(1, 200));
    for turn in 0..3 {
        fleet.turn(&mut talk, &[], &words(10 + turn, 40)).await;
        fleet.at_rest().await;
    }
    assert_eq!(
        fleet.router.parts().state.routing.knowledge.stored(WorkerId(0)),
        None
    );
    assert_eq!(told(&fleet.metrics().await), 0.0);
}
