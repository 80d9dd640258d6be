//! Random deviation of prefill times: proportional normal noise, and occasional stalls.

use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal};
use rand_pcg::Pcg64;

use crate::config::Jitter;

/// Smallest factor: a prefill takes at least this share of its cost.
const LEAST: f64 = 0.1;

#[derive(Debug)]
pub(super) struct Jittering {
    jitter: Jitter,
    rng: Pcg64,
}

impl Jittering {
    pub(super) fn new(jitter: Jitter) -> Self {
        let rng = Pcg64::seed_from_u64(jitter.seed);
        Self { jitter, rng }
    }

    pub(super) fn factor(&mut self) -> f64 {
        if self.jitter.share == 0.0 && self.jitter.stalls == 0.0 {
            return 1.0;
        }
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        let stalls = self.rng.random::<f64>() < self.jitter.stalls;
        let stall = if stalls {
            self.rng.random_range(2.0..10.0)
        } else {
            1.0
        };
        (1.0 + self.jitter.share * normal).max(LEAST) * stall
    }
}
