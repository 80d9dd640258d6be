//! Publishers that violate the protocol to exhaust the router's memory or time. The worker is predicted by its
//! mirror, and the router keeps serving.

use std::time::{Duration, Instant};

use config::KvEvents;
use operator::events::EventKind;
use policy::ids::WorkerId;
use sim_engine::{EngineConfig, KvEventsConfig};
use tailroute::serve::Server;
use tailroute_e2e::fleet::{Fleet, quick, route};
use tailroute_e2e::publisher::{Hostile, Script, greeting, handshake, long_frame};
use tailroute_e2e::talk::{Conversation, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;

use crate::{agreement, rendered, told};

const MIB: u64 = 1 << 20;
const MORE: u8 = 1;
const COMMAND: u8 = 4;

/// Returns how often this happened to a stream.
fn happened(fleet: &Fleet, what: &str) -> f64 {
    happened_in(&fleet.router, what)
}

fn happened_in(router: &Server, what: &str) -> f64 {
    rendered(router).sum("tailroute_kv_stream_total", &[("what", what)])
}

/// Starts a fleet whose worker has this publisher.
async fn beside(hostile: &Hostile) -> Fleet {
    let endpoint = hostile.endpoint.clone();
    Fleet::start(vec![quick()], |config| {
        config.workers[0].kv_events = KvEvents::At {
            endpoint,
            replay: None,
        };
    })
    .await
}

/// Checks that three turns are answered, and predicted by the mirror.
async fn served_from_the_mirror(fleet: &Fleet, case: &str) {
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..3 {
        fleet.turn(&mut talk, &[], &words(10 + turn, 40)).await;
        fleet.at_rest().await;
    }
    let page = fleet.metrics().await;
    assert_eq!(agreement(&page).0, 1.0, "{case}");
    assert_eq!(told(&page), 0.0, "{case}: nothing is predicted from events");
}

fn then(opening: &[&[u8]], then: Vec<u8>) -> Script {
    Script {
        opening: opening.concat(),
        then,
        ..Script::default()
    }
}

#[tokio::test]
async fn an_oversized_publisher_is_disconnected_and_its_worker_predicted_by_the_mirror() {
    let hello = handshake("PUB");
    let mebibytes = |head: Vec<u8>, count: u64| [head, vec![7; (count * MIB) as usize]].concat();
    let frame = [&[MORE, 200][..], &[7; 200]].concat();
    let cases = [
        (
            "a frame of 2^62 bytes",
            then(&[&hello, &long_frame(0, 1 << 62)], vec![]),
            16,
        ),
        (
            "a frame of 2^64-1 bytes",
            then(&[&hello, &long_frame(0, u64::MAX)], vec![]),
            16,
        ),
        (
            "a frame without end",
            then(&[&hello, &long_frame(0, 1 << 40)], vec![7; MIB as usize]),
            16,
        ),
        ("frames without end", then(&[&hello], frame.repeat(1000)), 16),
        (
            "frames of 8 MiB without end",
            then(&[&hello], mebibytes(long_frame(MORE, 8 * MIB), 8)),
            96,
        ),
        (
            "a command of 2^40 bytes",
            then(&[&hello, &long_frame(COMMAND, 1 << 40)], vec![7; MIB as usize]),
            16,
        ),
        (
            "a READY without end",
            then(
                &[&greeting(), &long_frame(COMMAND, 1 << 20)],
                vec![7; MIB as usize],
            ),
            16,
        ),
    ];
    for (case, script, most) in cases {
        let hostile = Hostile::start(script).await;
        let fleet = beside(&hostile).await;
        until(&format!("{case} is counted"), || {
            happened(&fleet, "oversized") >= 1.0
        })
        .await;
        served_from_the_mirror(&fleet, case).await;
        until(&format!("{case}: its connection is closed"), || {
            hostile.ended() >= 1
        })
        .await;
        let taken = hostile.longest() / MIB;
        assert!(taken < most, "{case}: {taken} MiB were read");
    }
}

#[tokio::test]
async fn an_endless_greeting_times_out_and_an_invalid_one_is_rejected() {
    let drip = |opening: &[u8]| Script {
        opening: opening.to_vec(),
        then: vec![0],
        pause: Duration::from_secs(1),
        ..Script::default()
    };
    let cases = [
        ("one byte a second", drip(b"\xff"), "unfinished"),
        (
            "one byte a second after the greeting",
            drip(&[&greeting()[..], &[COMMAND, 200]].concat()),
            "unfinished",
        ),
        ("0xff without end", then(&[], vec![0xff; 1024]), "malformed"),
        (
            "an answer of HTTP",
            then(&[b"HTTP/1.1 400 Bad Request\r\n"], b"x: y\r\n".repeat(100)),
            "malformed",
        ),
    ];
    for (case, script, what) in cases {
        let hostile = Hostile::start(script).await;
        let fleet = beside(&hostile).await;
        let mut events = fleet.router.parts().state.operations.operator.events.listen();
        served_from_the_mirror(&fleet, case).await;
        until(&format!("{case} is counted"), || happened(&fleet, what) >= 1.0).await;
        let lost =
            std::iter::from_fn(|| events.try_recv().ok()).find(|event| event.kind == EventKind::Evidence);
        assert!(lost.is_none_or(|event| event.now["followed"] == false), "{case}");
    }
}

#[tokio::test]
async fn an_oversized_replay_ends_the_stream_with_an_event() {
    let hostile = Hostile::start(then(&[&handshake("ROUTER"), &long_frame(0, 1 << 62)], vec![])).await;
    let engine = EngineConfig {
        kv_events: Some(KvEventsConfig::default()),
        ..quick()
    };
    let engine = sim_engine::Engine::start(engine).await.unwrap();
    let endpoint = engine.kv_source().unwrap().endpoint.clone();
    let router = route(&[engine.addr()], |config| {
        config.workers[0].kv_events = KvEvents::At {
            endpoint,
            replay: Some(hostile.endpoint.clone()),
        };
    })
    .await;
    let mut events = router.parts().state.operations.operator.events.listen();
    let fleet = Fleet {
        engines: vec![engine],
        router,
    };
    until("it is counted", || happened(&fleet, "oversized") >= 2.0).await;
    assert!(
        fleet
            .router
            .parts()
            .state
            .routing
            .knowledge
            .stored(WorkerId(0))
            .is_none()
    );
    let lost = std::iter::from_fn(|| events.try_recv().ok()).find(|event| event.kind == EventKind::Evidence);
    let lost = lost.expect("an event");
    assert_eq!(lost.now["followed"], false);
    assert!(
        lost.now["error"]
            .as_str()
            .unwrap()
            .contains("max_kv_message_bytes"),
        "{:?}",
        lost.now
    );
    served_from_the_mirror(&fleet, "a replay").await;
}

#[tokio::test]
async fn a_publisher_that_always_disconnects_is_retried_with_backoff() {
    let hostile = Hostile::start(Script {
        opening: handshake("PUB"),
        hangs_up: true,
        ..Script::default()
    })
    .await;
    let fleet = beside(&hostile).await;
    until("a first connection", || hostile.connections() >= 1).await;
    let (began, first) = (Instant::now(), hostile.connections());
    until("five more", || hostile.connections() >= first + 5).await;
    // 0.1, 0.2, 0.4, 0.8 and 1.6 s, or longer ones, minus the time until the first one was observed.
    assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
    served_from_the_mirror(&fleet, "it hangs up").await;
}

/// Starts a worker that reports this publisher and nothing else.
async fn naming(path: &'static str, answer: String) -> (Upstream, Server) {
    let worker = Upstream::saying(&[(path, answer.leak())]).await;
    let router = route(&[worker.address], |_| {}).await;
    (worker, router)
}

#[tokio::test]
async fn a_worker_cannot_make_the_router_connect_to_another_host() {
    let victim = Hostile::on("127.0.0.9", then(&[&handshake("PUB")], vec![])).await;
    let endpoint = &victim.endpoint;
    let port = endpoint.rsplit(':').next().unwrap();
    let says = [
        (
            "/kv_event_sources",
            format!(
                r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{endpoint}","replay_endpoint":"{endpoint}"}}}}"#
            ),
        ),
        (
            "/server_info",
            format!(
                r#"{{"kv_events":{{"publisher":"zmq","endpoint_host":"127.0.0.9","endpoint_port_base":{port}}}}}"#
            ),
        ),
    ];
    for (path, answer) in says {
        let (_worker, router) = naming(path, answer).await;
        until(&format!("{path} is refused"), || {
            happened_in(&router, "refused") >= 1.0
        })
        .await;
        assert_eq!(victim.connections(), 0, "{path}");
    }
}

#[tokio::test]
async fn a_replay_endpoint_on_another_host_is_not_used() {
    let victim = Hostile::on("127.0.0.9", then(&[&handshake("ROUTER")], vec![])).await;
    let publisher = Hostile::start(then(&[&handshake("PUB")], vec![])).await;
    let answer = format!(
        r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{}","replay_endpoint":"{}"}}}}"#,
        publisher.endpoint, victim.endpoint
    );
    let (_worker, router) = naming("/kv_event_sources", answer).await;
    until("its publisher is followed", || {
        router
            .parts()
            .state
            .routing
            .knowledge
            .stored(WorkerId(0))
            .is_some()
    })
    .await;
    assert_eq!(happened_in(&router, "refused"), 1.0);
    assert_eq!(victim.connections(), 0);
}
