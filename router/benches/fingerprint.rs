//! Parse and fingerprint of chat bodies, as the request path does it. Escapes are what costs, so text is measured with a
//! line break in every line (as in code) and in every paragraph (as in prose).
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

/// A chat of about this many bytes: messages of about 4 kB, a line break every so many sentences of 81 characters.
fn body(bytes: usize, sentences: usize) -> String {
    let sentence = "the quick brown fox jumps over the lazy dog and then goes on to read some papers ";
    let text = format!("{}\n", sentence.repeat(sentences)).repeat(50 / sentences);
    let messages: Vec<_> = (0..bytes / text.len())
        .map(|at| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": format!("{at} {text}")}))
        .collect();
    json!({"messages": messages, "model": "m", "stream": true, "temperature": 0.7}).to_string()
}

fn bench(c: &mut Criterion) {
    for (kind, sentences) in [("prose", 5), ("code", 1)] {
        let mut group = c.benchmark_group(format!("fingerprint/{kind}"));
        for (name, bytes) in [("8 KB", 8 << 10), ("128 KB", 128 << 10), ("1 MB", 1 << 20)] {
            let body = body(bytes, sentences);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function(name, |b| {
                b.iter(|| fingerprint(&parse(black_box(body.as_bytes())).unwrap()))
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
