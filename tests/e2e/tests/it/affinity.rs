//! Turns go to the worker with their cache, unless that costs more than it saves.

use config::PolicyName;
use serde_json::json;
use sim_engine::Fault;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{CompletedTurn, Fleet, NEVER_MS, quick, stuck_in_decode};
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::until;

const TURNS: u64 = 6;

/// Returns whether prediction and report agree within the tolerance: the router cuts text in chunks, the engine in
/// blocks.
fn is_close(predicted: f64, reported: f64) -> bool {
    (predicted - reported).abs() <= 0.15 * reported.max(400.0)
}

async fn six_turns(fleet: &Fleet, headers: &[(&str, &str)]) -> Vec<CompletedTurn> {
    let mut talk = Conversation::new(&words(1, 200));
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let text = words(100 + turn, 150 + turn as usize);
        turns.push(fleet.turn(&mut talk, headers, &text).await);
    }
    turns
}

fn all_on_one_engine(turns: &[CompletedTurn]) -> bool {
    turns.windows(2).all(|pair| pair[0].engine == pair[1].engine)
}

fn check_kept(turns: &[CompletedTurn]) {
    assert!(all_on_one_engine(turns), "{turns:?}");
    for pair in turns.windows(2) {
        // All of the last prompt, and of the reply all but an incomplete block, is cached.
        assert!(pair[1].cached + 16 > pair[0].prompt, "{turns:?}");
    }
}

/// Conversations moved between workers when all scores were equal and the choice was random:
/// <https://github.com/ai-dynamo/dynamo/issues/3581>.
#[tokio::test]
async fn a_conversation_without_a_session_id_stays_with_its_cache() {
    let fleet = Fleet::of(4).await;
    check_kept(&six_turns(&fleet, &[]).await);
}

#[tokio::test]
async fn a_conversation_with_a_session_id_stays_with_its_cache() {
    let fleet = Fleet::of(4).await;
    check_kept(&six_turns(&fleet, &[("x-session-id", "conversation-7")]).await);
}

#[tokio::test]
async fn predicted_cached_tokens_equal_reported_ones() {
    let fleet = Fleet::of(3).await;
    six_turns(&fleet, &[]).await;
    fleet.at_rest().await;
    let before = fleet.metrics().await;
    // By now the ratio of tokens to bytes has been learned.
    let mut talk = Conversation::new(&words(2, 400));
    for turn in 0..TURNS {
        let turned = fleet.turn(&mut talk, &[], &words(200 + turn, 300)).await;
        assert_eq!(turned.cached > 0, turn > 0, "{turned:?}");
    }
    fleet.at_rest().await;
    let after = fleet.metrics().await;
    let of = |kind| {
        let sum = |page: &Page| page.sum("tailroute_prompt_tokens_total", &[("kind", kind)]);
        sum(&after) - sum(&before)
    };
    let (predicted, reported) = (of("predicted_cached"), of("reported_cached"));
    assert!(is_close(predicted, reported), "{predicted} {reported}");
    assert!(reported > 0.6 * of("all"));
}

/// A shared system prompt was mistaken for affinity: <https://github.com/sgl-project/sglang/issues/34513>.
#[tokio::test]
async fn conversations_with_a_shared_system_prompt_begin_at_its_cache_and_then_separate() {
    let fleet = Fleet::of(4).await;
    let system = words(3, 800);
    let mut first = Conversation::new(&system);
    let home = fleet.turn(&mut first, &[], &words(10, 60)).await.engine;
    let mut second = Conversation::new(&system);
    let turned = fleet.turn(&mut second, &[], &words(11, 60)).await;
    assert_eq!(turned.engine, home, "its system prompt is there");
    assert!(
        (784..=816).contains(&turned.cached),
        "the system prompt and no more: {turned:?}"
    );
    for turn in 0..3 {
        for talk in [&mut first, &mut second] {
            let before = talk.clone();
            let turned = fleet.turn(talk, &[], &words(20 + turn, 60)).await;
            assert_eq!(turned.engine, home, "{before:?}");
            assert!(turned.prompt - turned.cached < 60 + 16 + 8, "{turned:?}");
        }
    }
}

/// One worker was overloaded because of a shared prefix, or because long prefills were counted too late:
/// <https://github.com/vllm-project/production-stack/issues/957>,
/// <https://github.com/vllm-project/production-stack/issues/990>, <https://github.com/smg-project/smg/issues/1714>.
#[tokio::test]
async fn a_turn_moves_when_queueing_costs_more_than_recomputing() {
    let fleet = Fleet::of(2).await;
    let mut talk = Conversation::new(&words(4, 600));
    let home = fleet.turn(&mut talk, &[], &words(30, 50)).await.engine;
    assert_eq!(fleet.turn(&mut talk, &[], &words(31, 50)).await.engine, home);

    // The conversation's worker is stuck; the other one would have to compute some 700 tokens, which takes 70 ms.
    fleet.engines[home].set_fault(Fault {
        slow: NEVER_MS,
        ..Fault::default()
    });
    let before = fleet.received();
    let (mut pile, mut at_home) = (Vec::new(), 0);
    loop {
        let mut talk = talk.clone();
        talk.user(&words(1000 + pile.len() as u64, 150));
        let body = talk.body(json!({})).to_string();
        pile.push(tokio::spawn(client::open(
            fleet.address(),
            "POST",
            CHAT,
            &[],
            body,
        )));
        let sent = pile.len() as u64;
        until("the request is on a worker", || {
            fleet.received().iter().sum::<u64>() == before.iter().sum::<u64>() + sent
        })
        .await;
        if fleet.received()[home] < before[home] + sent {
            break;
        }
        at_home += 1;
    }
    // Each waiting request adds its 20 ms and 15 ms.
    assert!((2..=8).contains(&at_home), "{at_home} before one went elsewhere");
    pile.iter().for_each(tokio::task::JoinHandle::abort);
    fleet.at_rest().await;
}

#[tokio::test]
async fn round_robin_gives_each_worker_its_turn() {
    let fleet = Fleet::start(vec![quick(); 3], |config| {
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await;
    let mut talk = Conversation::new(&words(5, 100));
    let mut engines = Vec::new();
    for turn in 0..6 {
        engines.push(fleet.turn(&mut talk, &[], &words(turn, 20)).await.engine);
    }
    assert_eq!(engines[..3], engines[3..]);
    engines[..3].sort_unstable();
    assert_eq!(engines[..3], [0, 1, 2]);
}

#[tokio::test]
async fn least_loaded_chooses_the_fewest_requests_in_flight() {
    let fleet = Fleet::start(vec![stuck_in_decode(); 3], |config| {
        config.routing.policy = PolicyName::LeastLoaded;
    })
    .await;
    let mut open = Vec::new();
    for seed in 0..6 {
        let body = ask(&words(seed, 20), json!({ "stream": true }));
        let mut answer = fleet.open(&[], &body).await;
        answer.chunk().await.unwrap().unwrap();
        open.push(answer);
    }
    assert_eq!(fleet.received(), [2, 2, 2]);
}

/// A routing rule did not log the reason of its choice: <https://github.com/sgl-project/sglang/pull/28509>.
#[tokio::test]
async fn cache_aware_follows_the_prefix_or_fills_the_smallest_tree_and_reports_which() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.routing.policy = PolicyName::CacheAware;
    })
    .await;
    let mut first = Conversation::new(&words(6, 300));
    let mut second = Conversation::new(&words(7, 100));
    let home = fleet.turn(&mut first, &[], &words(40, 20)).await.engine;
    let other = fleet.turn(&mut second, &[], &words(41, 20)).await.engine;
    assert_ne!(home, other, "nobody holds it: the smaller tree");
    for turn in 0..3 {
        assert_eq!(
            fleet.turn(&mut first, &[], &words(42 + turn, 20)).await.engine,
            home
        );
        assert_eq!(
            fleet.turn(&mut second, &[], &words(52 + turn, 20)).await.engine,
            other
        );
    }
    let page = fleet.metrics().await;
    let decided = |reason| {
        page.sum(
            "tailroute_decisions_total",
            &[("policy", "cache_aware"), ("reason", reason)],
        )
    };
    assert_eq!((decided("smallest_tree"), decided("prefix_match")), (2.0, 6.0));
}
