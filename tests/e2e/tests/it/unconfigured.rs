//! A router configured only with URLs: what it does not know at first does not decide where conversations are placed.
//! Time is virtual: the router learns costs by its own clock, and a busy machine must not be in them.

use std::collections::BTreeSet;

use config::Config;
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use sim_engine::EngineConfig;
use tailroute_e2e::fleet::{CompletedTurn, Fleet, quick};
use tailroute_e2e::talk::{Conversation, words};

/// Concurrent conversations, and turns per conversation.
const LIVE: u64 = 40;
const TURNS: usize = 10;
/// Number of turns, and of the turns at the beginning that are not counted.
const ALL: usize = 2_400;
const FIRST: usize = 600;
const WORKERS: usize = 4;
/// Blocks of an engine's cache: a quarter of the active conversations, with some that have ended.
const BLOCKS: u64 = 900;

fn engine() -> EngineConfig {
    EngineConfig {
        time_scale: 1.0,
        prefill: PrefillCost::linear(0.06, 5.0),
        // Turns run one after another, so decoding would only slow the test.
        tpot_ms: 0.05,
        tpot_batch_ms: 0.0,
        default_output_tokens: 32,
        capacity_blocks: BLOCKS,
        capture: false,
        multibyte: false,
        ..quick()
    }
}

/// Configures a router without knowledge beyond URLs. Hints would tell engines which conversations have ended.
fn told_nothing(config: &mut Config) {
    config.hints.rule = config::HintRule::Off;
    for worker in &mut config.workers {
        assert!(!worker.cost_is_known && !worker.capacity_is_known);
    }
}

/// A worker's turns after the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    turns: usize,
    begun: usize,
}

/// Runs turns one after another, each of a random active conversation. A conversation ends with its last turn without
/// notice, and another begins.
async fn converse(fleet: &Fleet) -> [Given; WORKERS] {
    // The earlier messages make the first turn a streamed one, which teaches the cost of long prompts.
    let begin = |number: u64| {
        let mut talk = Conversation::new(&words(100_000 + number, 400));
        talk.user("Hello.");
        talk.assistant("Hello.");
        (talk, 0)
    };
    tokio::time::pause();
    let mut live: Vec<_> = (0..LIVE).map(begin).collect();
    let (mut begun, mut given, mut drawn) = (LIVE, [Given::default(); WORKERS], 3u64);
    for turn in 0..ALL {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (drawn >> 33) as usize % live.len();
        let (talk, turns) = &mut live[at];
        let text = words(1_000 + turn as u64, 120);
        let CompletedTurn { engine, .. } = fleet.turn(talk, &[], &text).await;
        if turn >= FIRST {
            given[engine].turns += 1;
            given[engine].begun += usize::from(*turns == 0);
        }
        *turns += 1;
        if *turns == TURNS {
            live[at] = begin(begun);
            begun += 1;
        }
    }
    given
}

/// Returns whether all counts are within this share of their mean.
fn is_even(counts: [usize; WORKERS], share: f64) -> bool {
    let mean = counts.iter().sum::<usize>() as f64 / WORKERS as f64;
    counts
        .iter()
        .all(|&count| (count as f64 - mean).abs() <= share * mean)
}

/// Checks the shares. By chance, workers differ by up to a tenth in turns, and by a third in the 45 conversations
/// that begin on each.
fn check(given: [Given; WORKERS]) {
    assert!(is_even(given.map(|given| given.turns), 0.15), "{given:?}");
    assert!(is_even(given.map(|given| given.begun), 0.5), "{given:?}");
}

#[tokio::test]
async fn conversations_are_shared_evenly_with_reported_cache_sizes() {
    let fleet = Fleet::start(vec![engine(); WORKERS], told_nothing).await;
    let capacity = fleet.router.parts().state.routing.knowledge.capacity(WorkerId(0));
    assert_eq!(
        capacity.0,
        (BLOCKS - 1) * 16,
        "but for the block that a running request fills"
    );
    check(converse(&fleet).await);
}

#[tokio::test]
async fn conversations_are_shared_evenly_without_reported_cache_sizes() {
    let silent = EngineConfig {
        tells_capacity: false,
        ..engine()
    };
    let fleet = Fleet::start(vec![silent; WORKERS], told_nothing).await;
    check(converse(&fleet).await);
    let parts = fleet.router.parts();
    let learned: BTreeSet<u64> = (0..WORKERS as u32)
        .map(|worker| parts.state.routing.knowledge.capacity(WorkerId(worker)).0)
        .collect();
    let real = BLOCKS * 16;
    let near = real * 3 / 4..real * 3 / 2;
    assert!(
        learned.iter().all(|capacity| near.contains(capacity)),
        "{learned:?} of {real}"
    );
}
