//! A router that was told nothing but urls: what it does not know at first does not decide where conversations live.

use std::collections::BTreeSet;

use config::Config;
use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::units::Millis;
use sim_engine::EngineConfig;
use tailroute_e2e::fleet::{Fleet, Turned, quick};
use tailroute_e2e::talk::{Conversation, words};

/// Conversations that live at a time, and the turns of each.
const LIVE: u64 = 40;
const TURNS: usize = 10;
/// Turns in all, and those of them at the beginning that are not counted.
const ALL: usize = 2_400;
const FIRST: usize = 600;
const WORKERS: usize = 4;
/// Blocks of an engine's cache: a quarter of the conversations that live, with some that have ended.
const BLOCKS: u64 = 900;
/// How much faster than the wall everything is: the engines, and the window over which the router counts.
const SPEED: f64 = 10.0;

fn engine() -> EngineConfig {
    EngineConfig {
        time_scale: SPEED,
        prefill: PrefillCost::linear(0.06, 5.0),
        // Turns come one after the other, so decoding only takes the test's time.
        tpot_ms: 0.05,
        tpot_batch_ms: 0.0,
        default_output_tokens: 32,
        capacity_blocks: BLOCKS,
        capture: false,
        multibyte: false,
        ..quick()
    }
}

/// As if the configuration held urls and nothing else. Hints would tell engines which conversations have ended.
fn told_nothing(config: &mut Config) {
    config.hints.enabled = false;
    config.routing.utilisation_window = Millis(config.routing.utilisation_window.0 / SPEED);
    for worker in &mut config.workers {
        assert!(!worker.cost_is_known && !worker.capacity_is_known);
    }
}

/// What a worker was given past the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    turns: usize,
    begun: usize,
}

/// One turn after the other, each of a conversation drawn from those that live. One that had its last turn ends without a word, and
/// another begins.
async fn converse(fleet: &Fleet) -> [Given; WORKERS] {
    // What was said before makes the first turn a streamed one, which tells what long prompts cost.
    let begin = |number: u64| {
        let mut talk = Conversation::new(&words(100_000 + number, 400));
        talk.user("Hello.");
        talk.assistant("Hello.");
        (talk, 0)
    };
    let mut live: Vec<_> = (0..LIVE).map(begin).collect();
    let (mut begun, mut given, mut drawn) = (LIVE, [Given::default(); WORKERS], 3u64);
    for turn in 0..ALL {
        drawn = drawn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (drawn >> 33) as usize % live.len();
        let (talk, turns) = &mut live[at];
        let text = words(1_000 + turn as u64, 120);
        let Turned { engine, .. } = fleet.turn(talk, &[], &text).await;
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

/// Within so large a share of equal.
fn is_even(counts: [usize; WORKERS], share: f64) -> bool {
    let mean = counts.iter().sum::<usize>() as f64 / WORKERS as f64;
    counts
        .iter()
        .all(|&count| (count as f64 - mean).abs() <= share * mean)
}

/// By chance single workers differ by up to a tenth in turns and a third in the 45 conversations that begin on each.
fn check(given: [Given; WORKERS]) {
    assert!(is_even(given.map(|given| given.turns), 0.15), "{given:?}");
    assert!(is_even(given.map(|given| given.begun), 0.5), "{given:?}");
}

#[tokio::test]
async fn conversations_are_shared_evenly_where_engines_tell_what_their_caches_hold() {
    let fleet = Fleet::start(vec![engine(); WORKERS], told_nothing).await;
    let capacity = fleet.router.app().knowledge.capacity(WorkerId(0));
    assert_eq!(
        capacity.0,
        (BLOCKS - 1) * 16,
        "but for the block that a running request fills"
    );
    check(converse(&fleet).await);
}

#[tokio::test]
async fn conversations_are_shared_evenly_where_engines_tell_nothing() {
    let silent = EngineConfig {
        tells_capacity: false,
        ..engine()
    };
    let fleet = Fleet::start(vec![silent; WORKERS], told_nothing).await;
    check(converse(&fleet).await);
    let app = fleet.router.app();
    let learned: BTreeSet<u64> = (0..WORKERS as u32)
        .map(|worker| app.knowledge.capacity(WorkerId(worker)).0)
        .collect();
    let real = BLOCKS * 16;
    let near = real * 3 / 4..real * 3 / 2;
    assert!(
        learned.iter().all(|capacity| near.contains(capacity)),
        "{learned:?} of {real}"
    );
}
