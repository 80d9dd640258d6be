//! What `drive` sends shares exactly what the trace shares: an engine with room for everything answers from its cache
//! as many tokens as an ideal cache of the trace's own blocks would.

#![allow(clippy::unwrap_used, reason = "what helpers cannot do fails the test")]

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use client::drive::client::ChatClient;
use client::drive::plan::Plan;
use client::drive::run::{RunSettings, replay};
use client::drive::stats::Run;
use policy::ids::ConversationId;
use policy::units::Tokens;
use sim_engine::{Engine, EngineConfig};
use simulator::trace::{Captured, ClassId, Format, Turn};
use simulator::trace_file::TraceFile;

/// Tokens of the prompts that were in some earlier prompt or answer, whole blocks of a conversation-blind cache.
fn ideal(turns: &[Turn], block_size: u64) -> u64 {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut shared = 0;
    for turn in turns {
        let blocks = turn.blocks.as_deref().unwrap_or_default();
        let known = blocks.iter().take_while(|block| seen.contains(*block)).count() as u64;
        seen.extend(blocks);
        shared += (known * block_size)
            .min(turn.input_tokens().0)
            .max(turn.history_tokens.0);
    }
    shared
}

async fn cached(turns: Vec<Turn>, block_size: Option<u32>, change: impl FnOnce(&mut EngineConfig)) -> Run {
    let mut config = EngineConfig {
        capacity_blocks: 1 << 22,
        time_scale: 10_000.0,
        ..EngineConfig::default()
    };
    change(&mut config);
    let engine = Engine::start(config).await.unwrap();
    let settings = RunSettings {
        urls: vec![format!("{}/v1/chat/completions", engine.url()).parse().unwrap()],
        model: "sim".to_owned(),
        session: true,
        seed: 1,
        // One at a time: what an engine has not yet computed, it cannot share.
        concurrency_limit: 1,
    };
    let plan = Plan::new(turns, block_size, 1.0, 0.0);
    let client = ChatClient::new(Duration::from_secs(60)).unwrap();
    let samples = replay(client, settings, &plan, |_| (), std::future::pending()).await;
    engine.shutdown().await;
    Run::of(&samples, None, None)
}

fn turn(at: u32, conversation: u64, history: u64, new: u64, blocks: Option<Vec<u64>>) -> Turn {
    Turn {
        ts_s: f64::from(at) * 1e-3,
        conversation: ConversationId(conversation),
        turn: at,
        prompt_tokens: Tokens(new),
        history_tokens: Tokens(history),
        response_tokens: Tokens(40),
        blocks,
        class: ClassId::DEFAULT,
        captured: Captured::default(),
    }
}

/// As close as a chat template, a block's rounding at each end and the last token of a prompt allow.
#[track_caller]
fn about(found: u64, expected: u64, turns: u64) {
    assert!(
        found.abs_diff(expected) <= 40 * turns,
        "{found} cached tokens, {expected} expected"
    );
}

#[tokio::test]
async fn a_conversations_next_turn_finds_prompt_and_answer_in_the_cache() {
    for multibyte in [false, true] {
        let turns = vec![
            turn(0, 1, 0, 500, None),
            turn(1, 2, 0, 300, None),
            turn(2, 1, 540, 60, None),
            turn(3, 1, 640, 60, None),
            turn(4, 2, 340, 10, None),
        ];
        let run = cached(turns, None, |config| config.multibyte = multibyte).await;
        assert_eq!((run.errors, run.incomplete), (0, 0));
        about(run.cached_tokens, 540 + 640 + 340, 3);
        about(run.prompt_tokens, 500 + 300 + 600 + 700 + 350, 5);
    }
}

#[tokio::test]
async fn another_conversation_finds_the_blocks_that_it_shares() {
    let turns = vec![
        turn(0, 1, 0, 96, Some(vec![1, 2, 3, 4, 5, 6])),
        turn(1, 2, 0, 96, Some(vec![1, 2, 3, 4, 7, 8])),
        turn(2, 3, 0, 64, Some(vec![1, 2, 3, 4])),
    ];
    let run = cached(turns, Some(16), |_| ()).await;
    // The template's first tokens shift blocks: one block may be lost at each end.
    assert!((96..=128).contains(&run.cached_tokens), "{run:?}");
}

#[tokio::test]
async fn a_published_trace_is_shared_as_an_ideal_cache_would() {
    let folder = std::env::var_os("TAILROUTE_TRACES").map(PathBuf::from);
    let folder =
        folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces"));
    let path = folder.join("mooncake_conv.jsonl.gz");
    if !path.exists() {
        println!("skipped: no {} (set TAILROUTE_TRACES)", path.display());
        return;
    }
    let mut file = TraceFile::open(&path, Format::Auto).unwrap();
    let mut turns: Vec<Turn> = file.by_ref().take(150).map(Result::unwrap).collect();
    let block_size = file.reader().meta().block_size;
    for (at, turn) in turns.iter_mut().enumerate() {
        turn.ts_s = at as f64 * 1e-3;
    }
    let expected = ideal(&turns, u64::from(block_size.unwrap()));
    let prompts: u64 = turns.iter().map(|turn| turn.input_tokens().0).sum();
    let run = cached(turns, block_size, |_| ()).await;
    assert_eq!((run.errors, run.incomplete), (0, 0));
    let error = run.cached_tokens.abs_diff(expected) as f64 / expected as f64;
    assert!(
        error < 0.05,
        "{} cached tokens, {expected} expected",
        run.cached_tokens
    );
    assert!(
        run.prompt_tokens.abs_diff(prompts) < prompts / 1000,
        "{} of {prompts}",
        run.prompt_tokens
    );
}
