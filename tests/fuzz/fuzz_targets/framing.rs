//! Any bytes on a connection, in any parts: what is refused does not depend on how they were cut, and what is refused stays so.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::framing::Framing;

const LONGEST: usize = 4096;

fn refused(parts: &[&[u8]]) -> bool {
    let mut framing = Framing::new(LONGEST);
    for (at, part) in parts.iter().enumerate() {
        if let Err(refused) = framing.read(part) {
            assert!(refused.at < part.len());
            assert!(parts[at + 1..].iter().all(|part| part.is_empty() || framing.read(part).is_err()));
            return true;
        }
    }
    false
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (sizes, stream) = input;
    let (mut parts, mut rest) = (Vec::new(), stream);
    for size in sizes {
        let (part, more) = rest.split_at(usize::from(size).min(rest.len()));
        parts.push(part);
        rest = more;
    }
    parts.push(rest);
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(refused(&parts), refused(&[stream]));
    assert_eq!(refused(&bytes), refused(&[stream]));
});
