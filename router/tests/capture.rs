//! A round trip of traffic: `drive` sends a trace through the router, the router captures it, and `replay` plays
//! the captured turns.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use config::{Config, Sources};
use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use simulator::trace::{Format, Turn};
use simulator::trace_file::TraceFile;
use tailroute::serve::Server;

/// Three conversations of three turns that share their first 256 tokens, in 64-token blocks.
fn trace() -> String {
    let mut text = "{\"meta\":{\"bs\":64}}\n".to_owned();
    let mut fresh = 1000u64;
    let mut chains: Vec<Vec<u64>> = vec![(1..=4).collect(); 3];
    let mut history = [0u64; 3];
    for turn in 0..3u64 {
        for (conversation, chain) in chains.iter_mut().enumerate() {
            let prompt = if turn == 0 { 512 } else { 128 };
            let input = history[conversation] + prompt;
            while (chain.len() as u64) < input / 64 {
                chain.push(fresh);
                fresh += 1;
            }
            let line = json!({
                "ts": turn as f64 + conversation as f64 * 0.1, "conv": conversation, "turn": turn,
                "prompt_tokens": prompt, "history_tokens": history[conversation], "response_tokens": 64,
                "blocks": chain[..(input / 64) as usize],
            });
            text += &format!("{line}\n");
            history[conversation] = input + 64;
        }
    }
    text
}

async fn engines(prefill: PrefillCost, time_scale: f64) -> Vec<Engine> {
    let config = EngineConfig {
        time_scale,
        prefill,
        ..EngineConfig::default()
    };
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(Engine::start(config.clone()).await.unwrap());
    }
    engines
}

fn configuration(engines: &[Engine], capture: &Path) -> (String, Config) {
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[capture]\npath = {:?}\n\
         [[objective.classes]]\nname = \"chat\"\nttft_ms = 700\nmodels = [\"sim\"]\n",
        capture.display().to_string()
    );
    for (at, engine) in engines.iter().enumerate() {
        text += &format!(
            "[[workers]]\nname = \"w{at}\"\nurl = \"{}\"\ncapacity_tokens = 131072\n",
            engine.url()
        );
    }
    let sources = Sources {
        file: Some(("t.toml", &text)),
        ..Sources::default()
    };
    let config = config::load(&sources).unwrap();
    (text, config)
}

async fn tailroute(arguments: Vec<String>) -> Output {
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_tailroute"))
            .args(arguments)
            .output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

/// Drives a trace through the router. Returns the report.
async fn drive(trace: &str, server: &Server, speed: u32) -> Output {
    let driven = tailroute(vec![
        "drive".to_owned(),
        format!("--trace={trace}"),
        format!("--target=http://{}", server.address),
        format!("--speed={speed}"),
        "--warmup-share=0".to_owned(),
        "--json".to_owned(),
    ])
    .await;
    assert!(
        driven.status.success(),
        "{}",
        String::from_utf8_lossy(&driven.stderr)
    );
    driven
}

fn read(path: &Path) -> Vec<Turn> {
    TraceFile::open(path, Format::Auto)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn shared(a: &Turn, b: &Turn) -> usize {
    let blocks = |turn: &Turn| turn.blocks.clone().unwrap_or_default();
    blocks(a)
        .iter()
        .zip(blocks(b))
        .take_while(|(a, b)| **a == *b)
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_driven_is_captured_and_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("trace.jsonl"), trace()).unwrap();
    let engines = engines(PrefillCost::linear(0.1, 20.0), 1000.0).await;
    let (text, config) = configuration(&engines, &file("capture.jsonl"));
    let server = Server::start(config).await.unwrap();
    assert!(server.wait_ready(Duration::from_secs(30)).await);

    let path = |name: &str| file(name).display().to_string();
    let driven = drive(&path("trace.jsonl"), &server, 5).await;
    let driven: Value = serde_json::from_slice(&driven.stdout).unwrap();
    let run = &driven["targets"][0]["rounds"][0];
    server.drain().await;

    let captured = read(&file("capture.jsonl"));
    assert_eq!(captured.len(), 9);
    let sum = |of: fn(&Turn) -> u64| captured.iter().map(of).sum::<u64>();
    assert_eq!(
        sum(|turn| turn.input_tokens().0),
        run["prompt_tokens"].as_u64().unwrap()
    );
    assert_eq!(
        sum(|turn| turn.response_tokens.0),
        run["completion_tokens"].as_u64().unwrap()
    );

    // Under load the conversations arrive in any order, so their numbers may differ.
    let mut conversations: BTreeMap<u64, Vec<&Turn>> = BTreeMap::new();
    for turn in &captured {
        conversations.entry(turn.conversation.0).or_default().push(turn);
    }
    assert_eq!(conversations.len(), 3);
    for turns in conversations.values() {
        for (number, (turn, history)) in turns.iter().zip([0u64, 576, 768]).enumerate() {
            assert_eq!(turn.turn as usize, number);
            let off = turn.history_tokens.0.abs_diff(history);
            assert!(off <= 32, "templates aside, {turn:?} has a history of {history}");
        }
        let grown = turns[0].blocks.as_ref().unwrap().len();
        assert!(shared(turns[0], turns[1]) + 1 >= grown, "{turns:?}");
    }
    // The capture preserves the shared 256 tokens, except for the block in which the prompts diverge.
    let openings: Vec<&Turn> = conversations.values().map(|turns| turns[0]).collect();
    assert!(
        (2..=5).contains(&shared(openings[0], openings[1])),
        "{openings:?}"
    );
    let raw = std::fs::read_to_string(file("capture.jsonl")).unwrap();
    // Lines without a worker describe the fleet.
    let lines = raw
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = lines.rev().find(|line| line["worker"].is_string()).unwrap();
    assert!(["w0", "w1"].contains(&last["worker"].as_str().unwrap()));
    assert_eq!((&last["outcome"], &last["model"]), (&"ok".into(), &"sim".into()));
    assert_eq!(
        (&last["class"], &last["objective_ms"]),
        (&"chat".into(), &700.0.into())
    );
    assert!(last["ttft_ms"].as_f64().unwrap() > 0.0 && last["cached_tokens"].as_u64().unwrap() > 0);

    std::fs::write(file("tailroute.toml"), text).unwrap();
    std::fs::write(file("after.toml"), "[routing]\npolicy = \"round_robin\"\n").unwrap();
    let mut arguments: Vec<String> = ["replay", "--warmup-share=0", "--json"].map(str::to_owned).into();
    for (flag, name) in [
        ("--capture", "capture.jsonl"),
        ("--config", "tailroute.toml"),
        ("--weights", "after.toml"),
    ] {
        arguments.extend([flag.to_owned(), path(name)]);
    }
    let replayed = tailroute(arguments).await;
    assert!(
        replayed.status.success(),
        "{}",
        String::from_utf8_lossy(&replayed.stderr)
    );
    let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(
        (&report["turns"], &report["workers"]),
        (&9.into(), &json!(["w0", "w1"]))
    );
    let class = &report["classes"][0];
    assert_eq!(
        (&class["class"], &class["objective_ms"]),
        (&"chat".into(), &700.0.into())
    );
    assert_eq!(class["baseline"], {
        // All turns have one class, so its figures equal the totals.
        let mut all = report["baseline"].clone();
        let keys: Vec<String> = class["baseline"].as_object().unwrap().keys().cloned().collect();
        all.as_object_mut().unwrap().retain(|key, _| keys.contains(key));
        all
    });
    assert!(
        report["baseline"]["hit_ratio"].as_f64().unwrap() > 0.5,
        "{report:#}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_cannot_be_written_stops_the_start() {
    let engines = engines(PrefillCost::linear(0.1, 20.0), 1000.0).await;
    let (_, config) = configuration(&engines, Path::new("/nowhere/at/all.jsonl"));
    let error = Server::start(config).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot write a capture to /nowhere/at/all.jsonl (capture.path)"
    );
}

/// The engines cost four times what a router assumes that has learned nothing.
const COSTLY: PrefillCost = PrefillCost::linear(0.4, 20.0);

/// Twelve conversations of five turns of 400 tokens.
fn costly_trace() -> String {
    let turn = |at: u64| {
        let (turn, conversation) = (at / 12, at % 12);
        json!({
            "ts": at as f64 * 0.25, "conv": conversation, "turn": turn, "prompt_tokens": 400,
            "history_tokens": turn * 410, "response_tokens": 10,
        })
    };
    (0..60).map(|at| format!("{}\n", turn(at))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_of_a_capture_simulates_the_workers_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("trace.jsonl"), costly_trace()).unwrap();
    let engines = engines(COSTLY, 1.0).await;
    let (text, config) = configuration(&engines, &folder.path().join("capture.jsonl"));
    let server = Server::start(config).await.unwrap();
    assert!(server.wait_ready(Duration::from_secs(30)).await);
    drive(&path("trace.jsonl"), &server, 1).await;
    server.drain().await;
    std::fs::write(path("tailroute.toml"), text).unwrap();

    let replay = |capture: &str, more: &[&str]| {
        let capture = format!("--capture={}", path(capture));
        let arguments = ["replay", &capture, "--json"]
            .into_iter()
            .chain(more.iter().copied());
        tailroute(arguments.map(str::to_owned).collect())
    };
    let config = format!("--config={}", path("tailroute.toml"));
    for more in [&[][..], &[&*config][..]] {
        let replayed = replay("capture.jsonl", more).await;
        let refused = String::from_utf8_lossy(&replayed.stderr).into_owned();
        assert!(replayed.status.success(), "{refused}");
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        assert_eq!(report["costs"], "from the capture, learned");
        assert_eq!(report["workers"], json!(["w0", "w1"]));
        assert_eq!(report["fleet"][0]["capacity_tokens"], 131_072);
        let check = &report["check"];
        assert!(check["turns"].as_u64().unwrap() >= 50, "{check}");
        let off = check["simulated"]["hit_ratio"].as_f64().unwrap()
            - check["measured"]["hit_ratio"].as_f64().unwrap();
        assert!(off.abs() < 0.1, "{check}");
    }

    // The same without costs, as older routers wrote it.
    let whole = std::fs::read_to_string(path("capture.jsonl")).unwrap();
    let costless = whole.lines().filter(|line| !line.starts_with("{\"fleet\""));
    let costless: String = costless
        .map(|line| line.replace(",\"version\":2", "") + "\n")
        .collect();
    assert!(costless.len() < whole.len());
    std::fs::write(path("costless.jsonl"), costless).unwrap();
    let refused = replay("costless.jsonl", &[&config]).await;
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.contains("does not reproduce the captured turns"),
        "{refused}"
    );
    assert!(
        refused.contains("costs: assumed (α 0.1 ms per token, β 20 ms)"),
        "{refused}"
    );
    let anyway = replay("costless.jsonl", &[&config, "--anyway"]).await;
    assert!(anyway.status.success());
}
