//! Restarts of the router with its snapshot, and of engines.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Snapshot;
use policy::ids::WorkerId;
use serde_json::json;
use sim_engine::{Engine, EngineConfig, Fault, KvEventsConfig};
use tailroute_e2e::client::{CHAT, call};
use tailroute_e2e::fleet::{Fleet, probe_often, quick, route};
use tailroute_e2e::talk::{Conversation, chat, words};
use tailroute_e2e::wait::{until, within};

use crate::{agreement, all_live, subscribed, told};

/// Other routers kept the old state: <https://github.com/llm-d/llm-d-router/issues/2853>,
/// <https://github.com/vllm-project/aibrix/issues/2287>.
#[tokio::test]
async fn a_restarted_engines_cache_is_forgotten_and_relearned() {
    let fleet = Fleet::start(vec![publishing()], |_| {}).await;
    all_live(&fleet).await;
    agreement::subscribed_and_cleared(&fleet).await;
    let mut talk = Conversation::new(&words(1, 300));
    let headers = [("x-session-id", "one")];
    for turn in 0..3 {
        fleet.turn(&mut talk, &headers, &words(10 + turn, 40)).await;
        fleet.at_rest().await;
    }
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    let blocks = || knowledge.evidence(WorkerId(0), |evidence| evidence.blocks());
    until("events have come", || blocks() > Some(0)).await;
    fleet.engines[0].set_fault(Fault {
        die: true,
        die_for_ms: Some(1),
        ..Fault::default()
    });
    until("what the old process held is forgotten", || blocks() == Some(0)).await;
    all_live(&fleet).await;
    until("the engine takes requests", || {
        std::net::TcpStream::connect(fleet.engines[0].addr()).is_ok()
    })
    .await;
    let mut cached = Vec::new();
    for turn in 0..3 {
        cached.push(
            fleet
                .turn(&mut talk, &headers, &words(20 + turn, 40))
                .await
                .cached,
        );
        fleet.at_rest().await;
    }
    assert!(
        cached[0] == 0 && cached[1] > 300 && cached[2] > cached[1],
        "{cached:?}"
    );
    let page = fleet.metrics().await;
    assert!(page.sum("tailroute_kv_stream_total", &[("what", "forget")]) >= 1.0);
    let (exact, _) = agreement(&page);
    assert_eq!(exact, 1.0);
}

#[tokio::test]
async fn a_dead_engine_is_not_followed_and_is_followed_after_its_return() {
    let fleet = Fleet::start(vec![publishing()], |_| {}).await;
    all_live(&fleet).await;
    fleet.kill(0).await;
    let parts = Arc::clone(fleet.router.parts());
    until("its stream to be given up", || {
        parts.state.routing.knowledge.stored(WorkerId(0)).is_none()
    })
    .await;
    assert!(!parts.state.routing.fleet.workers()[0].is_ready());
    fleet.engines[0].set_fault(Fault::default());
    until("it to be back", || {
        parts.state.routing.fleet.workers()[0].is_ready()
    })
    .await;
    all_live(&fleet).await;
    agreement::subscribed_and_cleared(&fleet).await;
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..3 {
        fleet
            .turn(&mut talk, &[("x-session-id", "one")], &words(10 + turn, 40))
            .await;
        fleet.at_rest().await;
    }
    assert_eq!(agreement(&fleet.metrics().await).0, 1.0);
}

fn publishing() -> EngineConfig {
    EngineConfig {
        kv_events: Some(KvEventsConfig::default()),
        ..quick()
    }
}

/// Restarts the router with this snapshot; the engines keep running.
async fn restart(fleet: Fleet, path: &Path) -> Fleet {
    let engines = down(fleet).await;
    up(engines, path).await
}

/// Stops the router, which writes its snapshot. Returns the engines.
async fn down(fleet: Fleet) -> Vec<Engine> {
    assert_eq!(fleet.router.drain().await, 0);
    fleet.engines
}

/// Starts a router, which reads the snapshot.
async fn up(engines: Vec<Engine>, path: &Path) -> Fleet {
    let addresses: Vec<SocketAddr> = engines.iter().map(Engine::addr).collect();
    let router = route(&addresses, |config| config.index.snapshot = Some(kept_at(path))).await;
    Fleet { engines, router }
}

fn kept_at(path: &Path) -> Snapshot {
    Snapshot {
        path: path.to_owned(),
        interval: Duration::from_secs(3600),
        max_age: Duration::from_secs(600),
    }
}

/// Other routers started empty after a failover: <https://github.com/llm-d/llm-d-router/issues/1892>,
/// <https://github.com/llm-d/llm-d-router/issues/1946>.
#[tokio::test]
async fn a_restarted_router_knows_the_workers_of_conversations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut fleet = Fleet::start(vec![quick(); 3], |config| {
        probe_often(config);
        config.index.snapshot = Some(kept_at(&path));
    })
    .await;
    let mut talks: Vec<Conversation> = (0..6).map(|seed| Conversation::new(&words(seed, 300))).collect();
    let mut homes = Vec::new();
    for (at, talk) in (0..).zip(&mut talks) {
        fleet.turn(talk, &[], &words(100 + at, 50)).await;
        homes.push(fleet.turn(talk, &[], &words(200 + at, 50)).await);
    }
    fleet.at_rest().await;
    fleet = restart(fleet, &path).await;
    let state = &fleet.router.parts().state;
    let knowledge = &state.routing.knowledge;
    // Another thread restores it.
    until("the snapshot is restored", || {
        let held: u64 = (0..3).map(|slot| knowledge.held(WorkerId(slot)).0).sum();
        held > 6 * 400 && !state.operations.snapshot.is_locked()
    })
    .await;
    for (at, (talk, home)) in (0..).zip(talks.iter_mut().zip(&homes)) {
        let turned = fleet.turn(talk, &[], &words(300 + at, 50)).await;
        assert_eq!(turned.engine, home.engine);
        assert!(turned.cached + 16 > home.prompt, "{turned:?} {home:?}");
    }
    fleet.at_rest().await;
    let (exact, block) = agreement(&fleet.metrics().await);
    assert_eq!((exact, block), (1.0, 1.0), "predictions are as good as before");
}

#[tokio::test]
async fn the_router_serves_while_a_snapshot_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (written, other) = (folder.path().join("index"), folder.path().join("other"));
    let mut fleet = Fleet::start(vec![quick()], |config| {
        config.index.snapshot = Some(kept_at(&written));
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    fleet.turn(&mut talk, &[], &words(2, 50)).await;
    fleet.at_rest().await;
    fleet = restart(fleet, &other).await;
    let (parts, bytes) = (Arc::clone(fleet.router.parts()), std::fs::read(&written).unwrap());
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = tokio::sync::oneshot::channel();
    // Another snapshot is in progress until the test releases it.
    let reading = tokio::task::spawn_blocking(move || {
        let under_way = parts.state.operations.snapshot.lock();
        begins.send(()).unwrap();
        let _ = held.recv();
        drop(under_way);
        state::snapshot::restore(&parts.state, &bytes).unwrap()
    });
    // The lock alone may be that of the router's own reading at its start.
    within(begun).await.unwrap();
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    let first = fleet
        .turn(&mut Conversation::new(&words(5, 100)), &[], &words(6, 20))
        .await;
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_requests_total", &[("outcome", "ok")]), 1.0);
    assert!(fleet.router.parts().state.operations.snapshot.is_locked());
    let already = knowledge.held(WorkerId(0)).0;
    assert!(already >= first.prompt && already < 300, "{already} of {first:?}");
    drop(go_on);
    assert!(reading.await.unwrap() > 0);
    assert!(knowledge.held(WorkerId(0)).0 >= already + 350);
    let turned = fleet.turn(&mut talk, &[], &words(3, 50)).await;
    fleet.at_rest().await;
    assert!(turned.cached >= 350, "{turned:?}");
    assert_eq!(agreement(&fleet.metrics().await), (1.0, 1.0));
}

#[tokio::test]
async fn a_cache_cleared_while_the_router_was_down_is_known_from_the_replay() {
    // The cache is cleared, or the engine restarted.
    for dies in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let fleet = Fleet::start(vec![publishing()], |config| {
            probe_often(config);
            config.index.snapshot = Some(kept_at(&path));
        })
        .await;
        all_live(&fleet).await;
        let mut talks: Vec<Conversation> = (0..4).map(|seed| Conversation::new(&words(seed, 300))).collect();
        for (at, talk) in (0..).zip(&mut talks) {
            fleet.turn(talk, &[], &words(100 + at, 50)).await;
        }
        fleet.at_rest().await;
        let engines = down(fleet).await;
        let address = engines[0].addr();
        let takes_requests = || std::net::TcpStream::connect(address).is_ok();
        if dies {
            engines[0].set_fault(Fault {
                die: true,
                ..Fault::default()
            });
            until("the engine is gone", || !takes_requests()).await;
            engines[0].set_fault(Fault::default());
            until("it is back", takes_requests).await;
        } else {
            engines[0].set_fault(Fault {
                clear_cache: true,
                ..Fault::default()
            });
        }
        // A request that bypasses the new router, which it learns of by events.
        let aside = chat(&[("user", &words(9, 100))], json!({}));
        let other = call(address, "POST", CHAT, &[], aside.to_string()).await;
        assert_eq!(other.status, 200);
        let fleet = up(engines, &path).await;
        all_live(&fleet).await;
        let parts = fleet.router.parts();
        until("the snapshot was read", || {
            !parts.state.routing.knowledge.contents(&[], 0).prompts.is_empty()
                && !parts.state.operations.snapshot.is_locked()
        })
        .await;
        assert_eq!(
            parts.state.routing.knowledge.held(WorkerId(0)).0,
            0,
            "dies: {dies}"
        );
        for (at, talk) in (0..).zip(&mut talks) {
            let turned = fleet.turn(talk, &[], &words(200 + at, 50)).await;
            assert_eq!(turned.cached, 0);
            fleet.at_rest().await;
        }
        assert_eq!(agreement(&fleet.metrics().await), (1.0, 1.0), "dies: {dies}");
    }
}

#[tokio::test]
async fn a_damaged_snapshot_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    std::fs::write(&path, b"tailrout of another kind").unwrap();
    let fleet = Fleet::start(vec![quick()], |config| {
        config.index.snapshot = Some(kept_at(&path));
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    fleet.turn(&mut talk, &[], &words(2, 50)).await;
    fleet.at_rest().await;
    assert_eq!(fleet.router.drain().await, 0);
    let written = learning::format::decode(&std::fs::read(&path).unwrap())
        .unwrap()
        .contents;
    assert_eq!((written.workers.len(), written.last_workers.len()), (1, 1));
    assert!(!written.workers[0].1.is_empty());
}

/// Returns the tokens that the router believes its two workers hold.
fn held(fleet: &Fleet) -> u64 {
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    (0..2).map(|slot| knowledge.held(WorkerId(slot)).0).sum()
}

/// Returns the number of clears that the router has received.
async fn cleared(fleet: &Fleet) -> f64 {
    let page = fleet.metrics().await;
    page.sum("tailroute_kv_events_total", &[("kind", "cleared")])
}

#[tokio::test]
async fn after_a_restart_predictions_are_exact_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut fleet = Fleet::start(vec![publishing(); 2], |config| {
        probe_often(config);
        config.index.snapshot = Some(kept_at(&path));
    })
    .await;
    all_live(&fleet).await;
    let mut talks: Vec<Conversation> = (0..6)
        .map(|seed| Conversation::new(&words(seed % 2, 300)))
        .collect();
    // A clear older than the snapshot, which the replayed history repeats.
    fleet
        .turn(&mut Conversation::new(&words(9, 300)), &[], &words(99, 50))
        .await;
    fleet.at_rest().await;
    for engine in &fleet.engines {
        engine.set_fault(Fault {
            clear_cache: true,
            ..Fault::default()
        });
    }
    within(async {
        while cleared(&fleet).await < 2.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for round in 0..2 {
        for (at, talk) in (0..).zip(&mut talks) {
            fleet.turn(talk, &[], &words(100 * round + at, 50)).await;
            fleet.at_rest().await;
        }
    }
    let before = held(&fleet);
    assert!(before > 600, "{before}");
    fleet = restart(fleet, &path).await;
    all_live(&fleet).await;
    assert_eq!(cleared(&fleet).await, 2.0, "the history tells of it");
    let snapshot = &fleet.router.parts().state.operations.snapshot;
    until("the snapshot is restored", || {
        held(&fleet) * 10 >= before * 9 && !snapshot.is_locked()
    })
    .await;
    subscribed(&fleet).await;
    let mut by_events = Vec::new();
    for round in 2..4 {
        let before = told(&fleet.metrics().await);
        for (at, talk) in (0..).zip(&mut talks) {
            fleet.turn(talk, &[], &words(100 * round + at, 50)).await;
            fleet.at_rest().await;
        }
        by_events.push(told(&fleet.metrics().await) - before);
    }
    // The snapshot does not say which blocks belong to which text: the mirror knows the text, and one turn binds it
    // again.
    assert_eq!(by_events[1], 6.0);
    assert_eq!(agreement(&fleet.metrics().await), (1.0, 1.0));
}
