//! Whatever is in a snapshot's file: read or refused, never a panic. The checksum is put right, so that the fuzzer gets
//! past it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use learning::format::{decode, encode};
use xxhash_rust::xxh3::xxh3_64;

fuzz_target!(|body: &[u8]| {
    let mut file = b"tailrout\x03\0\0\0".to_vec();
    file.extend_from_slice(body);
    let sum = xxh3_64(&file);
    file.extend_from_slice(&sum.to_le_bytes());
    if let Ok(contents) = decode(&file) {
        for (_, entries) in &contents.workers {
            policy::residency::chains(entries).take(64).for_each(drop);
        }
        assert_eq!(decode(&encode(&contents)).map(|again| again.workers), Ok(contents.workers));
    }
});
