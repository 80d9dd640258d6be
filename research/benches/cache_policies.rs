//! What a turn costs a cache policy, with some 100,000 conversations resident.
//!
//! `cargo bench -p tailroute-policy --bench cache_policies`. Half of the turns continue one of 200,000 recent
//! conversations, half begin one; the cache is full, so every turn also evicts. Turns are made outside the measured time.
//!
//! The aim, T-LRU within 10 % of LRU, is measured apart: `paired` runs both on the same turns, taking turns in
//! short batches, so that a busy machine slows both alike. It prints the median of the batches' ratios, and the ratio of
//! the batches that nobody disturbed (each policy's fastest tenth). There are two comparisons, since T-LRU holds half as
//! many conversations again in the same number of tokens, which is its point:
//!
//! - *same conversations*, the fair one for the policy's own cost: T-LRU's cache is made smaller until both hold as many
//!   conversations, so that both maps and rings have the same size and miss the processor's caches alike;
//! - *same tokens*, what somebody who switches sees: it includes looking up among half as many conversations again.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use lab::cache::{CacheConfig, CachePolicy, Future, PolicySpec, Served};
use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use simulator::trace::ClassId;

const RESIDENT: u64 = 100_000;
const MEAN_TOKENS: u64 = 1000;

/// Endless turns over a sliding window of conversations, whose lengths are remembered.
struct Turns {
    rng: Pcg64,
    lengths: std::collections::VecDeque<(u64, u64, u32)>,
    born: u64,
    now_ms: f64,
}

impl Turns {
    fn new() -> Self {
        Self {
            rng: Pcg64::seed_from_u64(7),
            lengths: std::collections::VecDeque::new(),
            born: 0,
            now_ms: 0.0,
        }
    }

    fn next_turn(&mut self) -> Served {
        self.now_ms += 10.0;
        let known = self.lengths.len();
        let at = if known > 0 && self.rng.random_bool(0.5) {
            self.rng.random_range(0..known)
        } else {
            known
        };
        if at == known {
            self.lengths.push_back((self.born, 0, 0));
            self.born += 1;
            if self.lengths.len() as u64 > 2 * RESIDENT {
                self.lengths.pop_front();
            }
        }
        let at = at.min(self.lengths.len() - 1);
        let prompt = self.rng.random_range(10..MEAN_TOKENS / 2);
        let (conversation, length, turn) = &mut self.lengths[at];
        *length += 2 * prompt;
        *turn += 1;
        Served {
            conversation: ConversationId(*conversation),
            turn: *turn - 1,
            class: ClassId::DEFAULT,
            at: Millis(self.now_ms),
            prompt: Tokens(prompt),
            length: Tokens(*length),
            future: Future::Unknown,
        }
    }
}

fn timed(cache: &mut dyn CachePolicy, turns: &mut Turns, count: u64) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let batch: Vec<Served> = (0..left.min(50_000)).map(|_| turns.next_turn()).collect();
        left -= batch.len() as u64;
        let start = Instant::now();
        for turn in &batch {
            std::hint::black_box(cache.resident(turn.conversation));
            cache.served(turn);
        }
        total += start.elapsed();
    }
    total
}

fn config() -> CacheConfig {
    CacheConfig {
        capacity: Tokens(RESIDENT * MEAN_TOKENS),
        xi_tokens: 1200.0,
        next_prompt: Tokens(MEAN_TOKENS / 4),
        ..CacheConfig::new(Tokens::ZERO)
    }
}

fn a_turn(c: &mut Criterion) {
    let mut group = c.benchmark_group("turn_at_100k_conversations");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    for name in PolicySpec::NAMES {
        let Ok(spec) = name.parse::<PolicySpec>() else {
            continue;
        };
        let config = config();
        let mut cache = spec.build(config);
        let mut turns = Turns::new();
        timed(&mut *cache, &mut turns, 4 * RESIDENT);
        group.bench_function(*name, |bencher| {
            bencher.iter_custom(|n| timed(&mut *cache, &mut turns, n))
        });
    }
    group.finish();
}

fn paired(_: &mut Criterion) {
    let same_size = config().capacity;
    // What T-LRU needs to hold as many conversations as LRU does, in four steps of proportion.
    let wanted = held(PolicySpec::Lru, same_size);
    let mut capacity = same_size;
    for _ in 0..4 {
        let ratio = wanted / held(PolicySpec::TLru, capacity);
        capacity = Tokens((capacity.as_f64() * ratio) as u64);
    }
    compare("same conversations", [same_size, capacity]);
    compare("same tokens", [same_size; 2]);
}

/// Turns of a comparison's batches, batches, and the first of them that is measured: those before it fill the caches.
const BATCH: usize = 5_000;
const ROUNDS: usize = 600;
const WARM: usize = 200;

/// Conversations that a cache holds at the end of a comparison.
fn held(spec: PolicySpec, capacity: Tokens) -> f64 {
    let mut cache = spec.build(CacheConfig { capacity, ..config() });
    timed(&mut *cache, &mut Turns::new(), (BATCH * ROUNDS) as u64);
    cache.dump().len() as f64
}

#[allow(clippy::print_stdout, reason = "the figure that this bench is for")]
fn compare(what: &str, capacities: [Tokens; 2]) {
    let mut turns = Turns::new();
    let mut caches = [
        (PolicySpec::Lru, capacities[0]),
        (PolicySpec::TLru, capacities[1]),
    ]
    .map(|(spec, capacity)| spec.build(CacheConfig { capacity, ..config() }));
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        let batch: Vec<Served> = (0..BATCH).map(|_| turns.next_turn()).collect();
        let mut nanos = [0.0f64; 2];
        // Who goes first alternates too.
        for which in [round % 2, 1 - round % 2] {
            let start = Instant::now();
            for turn in &batch {
                std::hint::black_box(caches[which].resident(turn.conversation));
                caches[which].served(turn);
            }
            nanos[which] = start.elapsed().as_nanos() as f64 / BATCH as f64;
        }
        if round >= WARM {
            samples.push([nanos[1] / nanos[0], nanos[0], nanos[1]]);
        }
    }
    let held = caches.map(|cache| cache.dump().len());
    let quantile = |which: usize, share: f64| {
        let mut all: Vec<f64> = samples.iter().map(|sample| sample[which]).collect();
        all.sort_by(f64::total_cmp);
        all[(all.len() as f64 * share) as usize]
    };
    println!(
        "t-lru/lru per turn, {what}: median {:.3} (quartiles {:.3} to {:.3}), undisturbed {:.3}; lru {:.0} ns ({:.0} undisturbed) over {} conversations, t-lru {:.0} ns ({:.0}) over {}",
        quantile(0, 0.5),
        quantile(0, 0.25),
        quantile(0, 0.75),
        quantile(2, 0.1) / quantile(1, 0.1),
        quantile(1, 0.5),
        quantile(1, 0.1),
        held[0],
        quantile(2, 0.5),
        quantile(2, 0.1),
        held[1]
    );
}

criterion_group!(benches, paired, a_turn);
criterion_main!(benches);
