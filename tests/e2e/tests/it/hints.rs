//! Hints to workers, beside and within requests, and their effect.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;

use config::{Capture, PolicyName, Priority};
use policy::units::Millis;
use serde_json::{Value, json};
use sim_engine::{EngineConfig, Fault, Order};
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::{COST, Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::within;

/// Waits until this number of hints has been delivered.
async fn delivered(fleet: &Fleet, kind: &str, count: f64) {
    let labels = [("kind", kind), ("delivered", "true")];
    within(async {
        while fleet.metrics().await.sum("tailroute_hints_total", &labels) < count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_ended_conversation_may_be_evicted_first_completely() {
    for in_request in [true, false] {
        let fleet = Fleet::start(vec![quick()], |config| {
            config.hints.in_request = in_request;
        })
        .await;
        let engine = &fleet.engines[0];
        let mut talk = Conversation::new(&words(1, 600));
        fleet.turn(&mut talk, &[], &words(10, 50)).await;
        fleet
            .turn(&mut talk, &[("x-session-end", "1")], &words(11, 50))
            .await;
        delivered(&fleet, "ended", 1.0).await;
        let stats = engine.stats();
        assert_eq!(
            stats.cache_evict_first_tokens, stats.cache_used_tokens,
            "nothing that it holds is worth keeping"
        );
    }
}

#[tokio::test]
async fn a_shared_prefix_outlives_each_conversation() {
    shared_beginning(None).await;
}

#[tokio::test]
async fn a_capture_does_not_change_learning() {
    let folder = tempfile::tempdir().unwrap();
    let capture = Capture {
        path: folder.path().join("capture.jsonl"),
        max_bytes: NonZeroUsize::new(1 << 20).unwrap(),
    };
    shared_beginning(Some(capture)).await;
}

async fn shared_beginning(capture: Option<Capture>) {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.hints.in_request = false;
        config.hints.protect_from = NonZeroU32::new(3);
        config.capture = capture;
    })
    .await;
    let engine = &fleet.engines[0];
    let system = words(1, 800);
    for number in 0..4 {
        let mut talk = Conversation::new(&system);
        let ends: &[(&str, &str)] = &[("x-session-end", "true")];
        fleet.turn(&mut talk, ends, &words(10 + number, 300)).await;
        delivered(&fleet, "ended", number as f64 + 1.0).await;
    }
    delivered(&fleet, "protect", 1.0).await;
    let stats = engine.stats();
    let kept = stats.cache_used_tokens - stats.cache_evict_first_tokens;
    assert!((700..=900).contains(&kept), "{stats:?}");
    assert!(stats.cache_evict_first_tokens >= 4 * 250, "{stats:?}");
    assert_eq!(stats.memory.hints_stale + stats.memory.hints_rejected, 0);
}

#[tokio::test]
async fn hints_are_sent_in_sequence_with_epochs_and_a_time_to_live() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.routing.policy = PolicyName::RoundRobin;
        config.hints.ttl = Millis(5000.0);
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..6 {
        fleet
            .turn(
                &mut talk,
                &[("x-session-id", "rover"), ("x-session-end", "true")],
                &words(turn, 40),
            )
            .await;
        delivered(&fleet, "ended", turn as f64 + 1.0).await;
    }
    for engine in &fleet.engines {
        let hints: Vec<Value> = engine
            .captured()
            .iter()
            .filter(|request| request.uri.path() == "/v1/tailroute/hints")
            .flat_map(|request| {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                body["hints"].as_array().unwrap().clone()
            })
            .collect();
        assert!(!hints.is_empty());
        assert!(
            hints
                .iter()
                .all(|hint| hint["session_id"] == "rover" && hint["ttl_ms"] == 5000.0)
        );
        let epochs: Vec<u64> = hints.iter().map(|hint| hint["epoch"].as_u64().unwrap()).collect();
        assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
        assert_eq!(engine.stats().memory.hints_stale, 0);
    }
}

fn priorities(fleet: &Fleet) -> Vec<Option<i64>> {
    let priority = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["priority"].as_i64();
    let all = fleet.engines[0].captured();
    let chats = all.iter().filter(|request| request.uri.path() == CHAT);
    chats.map(|request| priority(&request.body)).collect()
}

#[tokio::test]
async fn a_priority_is_added_and_a_clients_own_is_kept() {
    for (priority, sign) in [
        (Priority::LowestFirst, 1),
        (Priority::HighestFirst, -1),
        (Priority::Off, 0),
    ] {
        let engine = EngineConfig {
            strict: true,
            ..quick()
        };
        let fleet = Fleet::start(vec![engine], |config| {
            config.workers[0].priority = priority;
            config.objective.ttft = Millis(10_000.0);
            config.learning.costs = false;
        })
        .await;
        let (short, long) = (ask(&words(1, 100), json!({})), ask(&words(2, 5000), json!({})));
        let own = ask(&words(3, 100), json!({ "priority": 7 }));
        for body in [&short, &long, &own] {
            assert_eq!(fleet.chat(&[], body).await.status, 200);
        }
        let sent = priorities(&fleet);
        assert_eq!(sent[2], Some(7));
        if sign == 0 {
            assert_eq!(sent[..2], [None, None]);
            continue;
        }
        // Four times some 490 ms more prefill, and the milliseconds between the two.
        let apart = sign * (sent[1].unwrap() - sent[0].unwrap());
        assert!((1800..1800 + 4000).contains(&apart), "{sent:?}");
        let all = fleet.engines[0].captured();
        let chats: Vec<_> = all.iter().filter(|request| request.uri.path() == CHAT).collect();
        let body = String::from_utf8(chats[1].body.to_vec()).unwrap();
        let (rest, added) = body.rsplit_once(',').unwrap();
        assert_eq!(added, format!("\"priority\":{}}}", sent[1].unwrap()));
        assert_eq!(
            format!("{rest}}}"),
            long.to_string(),
            "the rest is as the client wrote it"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_turn_overtakes_a_long_one_that_waits() {
    let engine = EngineConfig {
        time_scale: 1.0,
        prefill: COST,
        order: Order::Priority,
        default_output_tokens: 1,
        per_request_metrics: true,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |config| {
        config.workers[0].priority = Priority::LowestFirst;
        config.objective.ttft = Millis(10_000.0);
        config.learning.costs = false;
    })
    .await;
    let fleet = Arc::new(fleet);
    let send = |seed: u64, tokens: usize| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let answer = fleet.chat(&[], &ask(&words(seed, tokens), json!({}))).await;
            assert_eq!(answer.status, 200);
            let times = answer.json();
            ["queue_time_ms", "time_to_first_token_ms"].map(|name| times["metrics"][name].as_f64().unwrap())
        })
    };
    // The first one occupies the engine until both others wait.
    fleet.engines[0].set_fault(Fault {
        slow: 1e9,
        ..Fault::default()
    });
    let first = send(1, 50);
    within(fleet.engines[0].stats_when(|stats| stats.running == 1)).await;
    fleet.engines[0].set_fault(Fault::default());
    let long = send(2, 12_000);
    within(fleet.engines[0].stats_when(|stats| stats.waiting == 1)).await;
    let short = send(3, 50);
    within(fleet.engines[0].stats_when(|stats| stats.waiting == 2)).await;
    first.abort();
    let [_, short_took] = within(short).await.unwrap();
    let [long_waited, _] = within(long).await.unwrap();
    // By the engine's own clock: the long one was there before, and began when the short one had its token.
    assert!(long_waited > short_took, "{long_waited} {short_took}");
}
