//! Whatever a peer of ZMTP sends, cut anywhere: read within the bounds or refused, never a panic, and no more memory than
//! has arrived.
//!
//! Input: the bound on messages (two bytes), the length of pieces, a greeting of 64 bytes, frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use evidence::zmtp::codec::{self, Decoder, GREETING_BYTES, Incoming};

/// What is set aside for a frame before any of it has arrived.
const SLACK_BYTES: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((&[high, low, piece, ref greeting @ ..], frames)) = input.split_first_chunk::<{ 3 + GREETING_BYTES }>()
    else {
        return;
    };
    let _ = codec::check_greeting(greeting);
    let bound = usize::from(u16::from_be_bytes([high, low]));
    let whole = read(frames, frames.len().max(1), bound);
    let cut = read(frames, usize::from(piece) + 1, bound);
    assert_eq!(whole, cut);
});

/// What arrives, and whether the rest was refused.
fn read(bytes: &[u8], piece: usize, bound: usize) -> (Vec<Incoming>, bool) {
    let mut decoder = Decoder::new(bound);
    let (mut found, mut arrived) = (Vec::new(), 0);
    for mut piece in bytes.chunks(piece) {
        arrived += piece.len();
        loop {
            match decoder.read(&mut piece) {
                Ok(Some(incoming)) => found.push(checked(incoming, bound)),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
        assert!(decoder.allocated_bytes() <= 2 * arrived + SLACK_BYTES);
    }
    (found, false)
}

fn checked(incoming: Incoming, bound: usize) -> Incoming {
    match &incoming {
        Incoming::Message(frames) => assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() <= bound),
        Incoming::Command(body) => {
            if let Ok((_, data)) = codec::name(body) {
                let _ = codec::socket_type(data);
            }
        }
    }
    incoming
}
