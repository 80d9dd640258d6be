//! Whatever is in a snapshot's file: read or refused, never a panic. The checksums are put right, so that the fuzzer gets
//! past them. The first byte selects the section, or the format without sections.
#![no_main]

use learning::format::{decode, decode_early, encode, Contents};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

fn sum_from(file: &mut Vec<u8>, start: usize) {
    let sum = xxh3_64(&file[start..]);
    file.extend_from_slice(&sum.to_le_bytes());
}

fuzz_target!(|input: &[u8]| {
    let Some((&kind, body)) = input.split_first() else { return };
    let _ = (decode(input), decode_early(input));
    let mut file;
    if kind == 0 {
        file = b"tailrout\x07\0\0\0".to_vec();
        file.extend_from_slice(body);
        sum_from(&mut file, 0);
    } else {
        file = encode(&Contents::default());
        let start = file.len();
        file.extend_from_slice(&u32::from(kind % 16).to_le_bytes());
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(body);
        sum_from(&mut file, start);
    }
    if let Ok(decoded) = decode(&file) {
        for (_, entries) in &decoded.contents.workers {
            policy::residency::chains(entries).take(64).for_each(drop);
        }
        let again = decode(&encode(&decoded.contents)).map(|again| again.contents.workers);
        assert_eq!(again, Ok(decoded.contents.workers));
    }
    let _ = decode_early(&file);
});
