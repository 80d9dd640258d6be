//! The index and the fingerprint on their own: `cargo bench -p tailroute-policy --bench index`.

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use policy::fingerprint::{Chain, ChainBuilder, Field, push_token_blocks, token_root};
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{Index, IndexLimits, Reach};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const WORKERS: u32 = 64;
const CONVERSATIONS: usize = 3000;

/// Conversations over 16 shared prompts, each on one worker.
fn filled() -> (Index, Vec<Vec<PrefixHash>>) {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut index = Index::new(IndexLimits::default());
    let chains: Vec<Vec<PrefixHash>> = (0..CONVERSATIONS)
        .map(|conversation| {
            let prompt = (conversation % 16) as u64;
            let mut chain: Vec<_> = (1..=32).map(|at| PrefixHash(prompt << 8 | at)).collect();
            chain.extend((0..rng.random_range(32..=480)).map(|_| PrefixHash(rng.random())));
            chain
        })
        .collect();
    for (conversation, chain) in (0..).zip(&chains) {
        let _ = index.store(WorkerId(conversation % WORKERS), chain);
    }
    (index, chains)
}

fn lookups(criterion: &mut Criterion) {
    let (index, chains) = filled();
    let mut reach = Reach::new();
    let mut group = criterion.benchmark_group("index/lookup");
    for depth in [32, 64, 512] {
        let asked: Vec<&[PrefixHash]> = chains
            .iter()
            .map(|chain| &chain[..depth.min(chain.len())])
            .collect();
        let mut next = 0;
        group.bench_function(format!("depth {depth}"), |bencher| {
            bencher.iter(|| {
                next = (next + 1) % asked.len();
                index.lookup(black_box(asked[next]), &mut reach);
                reach.deepest()
            });
        });
    }
    group.finish();
}

fn evidence(criterion: &mut Criterion) {
    let (mut index, chains) = filled();
    let mut group = criterion.benchmark_group("index/evidence");
    group.throughput(Throughput::Elements(
        chains
            .iter()
            .take(WORKERS as usize)
            .map(|chain| chain.len() as u64)
            .sum(),
    ));
    group.bench_function(
        "a conversation moves to another worker and its copy goes block by block",
        |bencher| {
            bencher.iter(|| {
                for chain in chains.iter().take(WORKERS as usize) {
                    let _ = index.store(WorkerId(WORKERS), chain);
                    for key in chain[32..].iter().rev() {
                        index.remove(WorkerId(WORKERS), *key);
                    }
                }
            });
        },
    );
    group.finish();
}

fn fingerprints(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fingerprint");
    let mut builder = ChainBuilder::new("model", None);
    for bytes in [4 << 10, 128 << 10, 1 << 20] {
        let message = "Hier steht ein Satz mit etwa achtzig Byte, wie Menschen ihn schreiben würden. "
            .repeat(bytes / 80 / 8);
        group.throughput(Throughput::Bytes((message.len() * 8) as u64));
        group.bench_function(format!("text, {} KB in 8 messages", bytes >> 10), |bencher| {
            bencher.iter(|| {
                builder.restart("model", None);
                for _ in 0..8 {
                    builder.begin_message("user");
                    builder.field(Field::Text);
                    builder.push(black_box(message.as_bytes()));
                    builder.end_message();
                }
                builder.chain().last()
            });
        });
    }
    let tokens: Vec<u32> = (0..8192).map(|at| at * 7 % 150_000).collect();
    let root = token_root("model", None);
    for size in [16, 64] {
        let size = NonZeroU32::MIN.saturating_add(size - 1);
        group.throughput(Throughput::Elements(tokens.len() as u64));
        group.bench_function(format!("8192 tokens in blocks of {size}"), |bencher| {
            bencher.iter_batched_ref(
                Chain::new,
                |chain| push_token_blocks(root, black_box(&tokens), size, chain),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = lookups, evidence, fingerprints
}
criterion_main!(benches);
