//! One decision at 1 to 256 workers, beyond the index lookup: `cargo bench -p tailroute-policy --bench decide`.
//!
//! The bar is 2 µs at 64 workers.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use policy::cost::PrefillCost;
use policy::ids::{ConversationId, PrefixHash, WorkerId};
use policy::route::{PolicyName, Settings, Snapshot, Turn, WorkerView, decide};
use policy::units::{Millis, Tokens};

fn workers(count: u32) -> Vec<WorkerView> {
    (0..count)
        .map(|id| WorkerView {
            id: WorkerId(id),
            ready: id % 16 != 7,
            cost: PrefillCost {
                gamma_ms_per_token2: 1e-7,
                ..PrefillCost::linear(0.05, 20.0)
            },
            overhead: Millis::ZERO,
            wait: Millis(f64::from(id * 37 % 101) * 10.0),
            utilisation: f64::from(id * 13 % 97) / 100.0,
            mean_work: Millis(400.0),
            in_flight: id * 7 % 11,
            indexed: Tokens(u64::from(id) * 1000),
            conversations: f64::from(id % 7),
        })
        .collect()
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for count in [1u32, 8, 64, 256] {
        let workers = workers(count);
        let resident: Vec<Tokens> = (0..u64::from(count)).map(|at| Tokens(at * 97 % 9000)).collect();
        for policy in [PolicyName::Tail, PolicyName::CacheAware, PolicyName::LeastTtft] {
            let settings = Settings {
                policy,
                ..Settings::default()
            };
            let mut sequence = 0;
            group.bench_function(BenchmarkId::new(policy.as_str(), count), |bencher| {
                bencher.iter(|| {
                    sequence += 1;
                    let snapshot = Snapshot {
                        workers: black_box(&workers),
                        settings: &settings,
                        sequence,
                    };
                    let turn = Turn {
                        prompt: Tokens(10_000),
                        resident: &resident,
                        objective: Millis(500.0),
                        last_worker: Some(WorkerId(3)),
                        conversation: Some(ConversationId(sequence)),
                        head: Some(PrefixHash(sequence)),
                        class: "",
                        ask: None,
                    };
                    decide(&snapshot, &turn)
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).without_plots()
        .warm_up_time(std::time::Duration::from_millis(200)).measurement_time(std::time::Duration::from_millis(600));
    targets = decisions
}
criterion_main!(benches);
