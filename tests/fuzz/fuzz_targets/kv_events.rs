//! Whatever a publisher of cache events sends: read or refused, never a panic, and what is read changes what a worker is
//! believed to hold without one either.
#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::evidence::WorkerEvidence;
use evidence::wire::decode;

fuzz_target!(|payload: &[u8]| {
    let mut evidence = WorkerEvidence::default();
    let _ = decode(payload, |event| evidence.apply(&event));
});
