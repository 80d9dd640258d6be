//! Parse and fingerprint of chat bodies, as the request path does it, on the [shapes](shapes) that clients send.
//!
//! `cargo bench -p tailroute-protocol --bench fingerprint`; with `-- '128 KB'` those of that size alone.

#![allow(clippy::unwrap_used, reason = "a bench may stop")]

#[path = "fingerprint/shapes.rs"]
mod shapes;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use protocol::api::Endpoint;
use protocol::parse::parse;

fn bench(c: &mut Criterion) {
    for (size, bytes) in [("8 KB", 8 << 10), ("128 KB", 128 << 10), ("1 MB", 1 << 20)] {
        let mut group = c.benchmark_group(format!("fingerprint/{size}"));
        for (name, write) in shapes::SHAPES {
            let body = shapes::of_size(write, bytes);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function(name, |b| {
                b.iter(|| {
                    let read = parse(Endpoint::Chat, black_box(body.as_bytes())).unwrap();
                    read.fingerprint.chain.len()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
