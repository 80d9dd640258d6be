//! Cache events from the wire to the answer: what a block costs, and what a lookup costs while events come at full rate.
//!
//! `cargo bench -p tailroute-evidence --bench events`. A batch is a prompt of 64 blocks that is stored (one event with its 1,024
//! token ids, as vLLM sends it, or 64 events, as SGLang does) and another one that is removed (64 events), so an element
//! is a block stored or removed.

#![allow(clippy::unwrap_used, reason = "a bench may stop")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use evidence::wire::decode;
use learning::knowledge::{CountedTurn, Knowledge};
use policy::evidence::Event;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use protocol::api::Endpoint;
use protocol::fingerprint::Fingerprint;
use protocol::parse::parse;
use serde_json::{Value, json};

const BLOCKS: u64 = 64;
const PROMPTS: u64 = 400;
const WORKERS: usize = 64;

fn hash(prompt: u64, block: u64) -> u64 {
    (prompt * BLOCKS + block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Batches that can be applied round and round: each stores a prompt and removes the one stored half a round ago.
fn batches(sglang: bool) -> Vec<Vec<u8>> {
    let batch = |prompt: u64| {
        let hashes: Vec<u64> = (0..BLOCKS).map(|block| hash(prompt, block)).collect();
        let tokens = vec![50_000; 16];
        let mut events: Vec<Value> = Vec::new();
        if sglang {
            events.extend((0..BLOCKS as usize).map(|at| {
                json!({"type": "BlockStored", "block_hashes": [hashes[at] as i64], "token_ids": tokens,
                    "parent_block_hash": at.checked_sub(1).map(|at| hashes[at] as i64), "block_size": 16,
                    "lora_id": null, "medium": "GPU", "cache_salt": null})
            }));
        } else {
            events.push(json!({"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": null,
                "token_ids": vec![50_000; 16 * BLOCKS as usize], "block_size": 16, "lora_id": null, "medium": "GPU",
                "lora_name": null, "extra_keys": vec![Value::Null; BLOCKS as usize], "group_idx": 0,
                "kv_cache_spec_kind": "full_attention", "session_id": format!("session-{prompt}")}));
        }
        let old = (prompt + PROMPTS / 2) % PROMPTS;
        events.extend((0..BLOCKS).rev().map(|block| {
            json!({"type": "BlockRemoved", "block_hashes": [hash(old, block)], "medium": "GPU", "group_idx": 0})
        }));
        rmp_serde::to_vec_named(&(1.8e9, events, 0_u32)).unwrap()
    };
    (0..PROMPTS).map(batch).collect()
}

fn knowledge() -> Knowledge {
    let knowledge = Knowledge::new(
        256 << 20,
        &[(Tokens(500_000), 16); WORKERS],
        0.25,
        Millis(60_000.0),
    );
    for slot in 0..WORKERS as u32 {
        knowledge.evidence_live(WorkerId(slot));
    }
    knowledge
}

fn apply(knowledge: &Knowledge, worker: WorkerId, payload: &[u8]) {
    let mut events: Vec<Event> = Vec::new();
    decode(payload, |event| events.push(event)).unwrap();
    for some in events.chunks(64) {
        knowledge.evidence(worker, |evidence| {
            some.iter().for_each(|event| evidence.apply(event))
        });
    }
}

fn events(c: &mut Criterion) {
    for (name, sglang) in [("vllm", false), ("sglang", true)] {
        let batches = batches(sglang);
        let mut group = c.benchmark_group(format!("events/{name}"));
        group.throughput(Throughput::Elements(2 * BLOCKS));
        let mut at = batches.iter().cycle();
        group.bench_function("decode", |b| {
            b.iter(|| decode(black_box(at.next().unwrap()), |event| drop(black_box(event))));
        });
        let knowledge = knowledge();
        let mut at = batches.iter().cycle();
        group.bench_function("decode and apply", |b| {
            b.iter(|| apply(&knowledge, WorkerId(0), at.next().unwrap()));
        });
        group.finish();
    }
}

/// A chat of 32 messages of 1 kB, served and bound on every fourth worker.
fn served(knowledge: &Knowledge) -> Fingerprint {
    let messages: Vec<Value> = (0..32)
        .map(|at| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(200)}))
        .collect();
    let body = json!({"messages": messages, "model": "m"}).to_string();
    let prompt = parse(Endpoint::Chat, body.as_bytes()).unwrap().fingerprint;
    let blocks: Vec<u64> = (0..500).map(|block| hash(PROMPTS + 1, block)).collect();
    for slot in (0..WORKERS as u32).step_by(4) {
        let event = json!({"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": null, "token_ids": [1],
            "block_size": 16, "medium": "GPU", "session_id": "s"});
        apply(
            knowledge,
            WorkerId(slot),
            &rmp_serde::to_vec_named(&(1.8e9, [event], 0_u32)).unwrap(),
        );
        turn_over(knowledge, WorkerId(slot), &prompt);
    }
    prompt
}

fn turn_over(knowledge: &Knowledge, worker: WorkerId, prompt: &Fingerprint) {
    knowledge.turn_over(&CountedTurn {
        model: "m",
        worker,
        session: Some([xxhash_rust::xxh3::xxh3_64(b"s"); 2]),
        since: 0,
        prompt: &prompt.chain,
        media: &[],
        reply: None,
        goes_on: false,
        cached: None,
        prompt_tokens: 8001,
        reply_tokens: 1,
        ended: false,
    });
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup, 64 workers");
    let knowledge = Arc::new(knowledge());
    let prompt = Arc::new(served(&knowledge));
    let batches = Arc::new(batches(false));
    let look_up = |b: &mut criterion::Bencher<'_>| {
        b.iter(|| knowledge.look_up("m", black_box(&prompt), WORKERS));
    };
    group.bench_function("nothing else", look_up);
    type Beside = fn(&Knowledge, &Fingerprint, &[u8], u32);
    let beside: [(&str, Beside); 2] = [
        ("events at full rate", |knowledge, _, payload, at| {
            apply(knowledge, WorkerId(at % WORKERS as u32), payload);
        }),
        ("turns that end", |knowledge, prompt, _, at| {
            turn_over(knowledge, WorkerId(4 * (at % 16)), prompt);
        }),
    ];
    for (name, what) in beside {
        let over = Arc::new(AtomicBool::new(false));
        let (told, shared, text, all) = (over.clone(), knowledge.clone(), prompt.clone(), batches.clone());
        let busy = std::thread::spawn(move || {
            let mut done = 0_u32;
            while !told.load(Ordering::Relaxed) {
                what(&shared, &text, &all[done as usize % all.len()], done);
                done = done.wrapping_add(1);
            }
        });
        group.bench_function(name, look_up);
        over.store(true, Ordering::Relaxed);
        busy.join().unwrap();
    }
    group.finish();
}

criterion_group!(benches, events, lookups);
criterion_main!(benches);
