//! Parse and fingerprint of chat bodies, as the request path does it.
//!
//! `cargo bench -p tailroute --bench fingerprint`

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "criterion's macros make undocumented functions; a bench may stop"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use std::hint::black_box;
use tailroute::path::{fingerprint::fingerprint, parse::parse};

/// A chat of this many bytes: messages of about 4 kB, a line break every 80 characters.
fn body(bytes: usize) -> String {
    let line = "the quick brown fox jumps over the lazy dog and then goes on to read some papers\n";
    let text = line.repeat(50);
    let messages: Vec<_> = (0..bytes / text.len())
        .map(|at| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": format!("{at} {text}")}))
        .collect();
    json!({"messages": messages, "model": "m", "stream": true, "temperature": 0.7}).to_string()
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse and fingerprint");
    for (name, bytes) in [("8 KB", 8 << 10), ("128 KB", 128 << 10), ("1 MB", 1 << 20)] {
        let body = body(bytes);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| fingerprint(&parse(black_box(body.as_bytes())).unwrap()))
        });
        group.bench_function(format!("{name}, parse only"), |b| {
            b.iter(|| parse(black_box(body.as_bytes())).unwrap().messages)
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
