//! The pause before a failed source is tried again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

/// Exponential backoff up to 30 s, randomised from one half to one so that routers do not retry in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    random: Pcg64Mcg,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            next: FIRST,
            random: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let all = self.next;
        self.next = (all * 2).min(LONGEST);
        all.mul_f64(self.random.random_range(0.5..=1.0))
    }
}

pub(crate) fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ u64::from(std::process::id()).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_half_a_minute_and_begin_anew_after_success() {
        let mut pause = Backoff::new(7);
        for whole in [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0] {
            let pause = pause.next().as_secs_f64();
            assert!((whole / 2.0..=whole).contains(&pause), "{pause} of {whole}");
        }
        pause.reset();
        assert!(pause.next() <= FIRST);
    }
}
