//! Tail sampling: which traces are kept, decided when a request has ended.
//!
//! | why | what |
//! |---|---|
//! | `error` | it failed, and not by the client's doing: 5xx, a stream that broke off, a deadline |
//! | `objective` | its first token came later than its objective |
//! | `slow` | its first token was among the slowest of late: a share of turns |
//! | `asked` | the client's `traceparent` says sampled |
//! | `share` | it was drawn by its trace's id, so that every service that draws by it draws the same |
//!
//! "Of late" is a histogram of times to first token whose counts are halved whenever there are [`MEMORY`] of them. Its bins
//! are 7 % wide; of the bin in which the share ends a part is kept that fills it, drawn by the id: however alike turns
//! are, what is kept is the share, and not all.

use parking_lot::Mutex;
use policy::units::Millis;

use super::record::SpanRecord;
use crate::context::Context;

/// Counts at which all of them are halved.
const MEMORY: f32 = 8192.0;
/// Turns before any of them is called slow.
const ENOUGH: f32 = 100.0;
/// Turns from one look at the histogram to the next.
const LOOK_EVERY: u32 = 32;
const BINS: usize = 256;
/// The upper end of the first bin, in milliseconds.
const LEAST_MS: f64 = 0.1;
/// From one bin's end to the next one's, as a logarithm.
const STEP: f64 = 0.068;

/// Why a trace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// It failed.
    Error,
    /// It missed its objective.
    Objective,
    /// It is among the slowest.
    Slow,
    /// Its client asked for it.
    Asked,
    /// It was drawn.
    Share,
}

impl KeepReason {
    /// Its name in metrics and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Objective => "objective",
            Self::Slow => "slow",
            Self::Asked => "asked",
            Self::Share => "share",
        }
    }
}

/// Shares of the traces in which nothing went wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) slowest: f64,
    pub(super) rest: f64,
    pub(super) asked: bool,
}

/// Decides which traces are kept.
#[derive(Debug)]
pub(super) struct TailSampler {
    shares: Shares,
    recent: Mutex<Recent>,
}

#[derive(Debug)]
struct Recent {
    counts: [f32; BINS],
    total: f32,
    since_look: u32,
    /// The bin in which the slowest share ends, and the part of it that belongs to it.
    edge: (usize, f64),
}

impl TailSampler {
    pub(super) fn new(shares: Shares) -> Self {
        Self {
            shares,
            recent: Mutex::new(Recent {
                counts: [0.0; BINS],
                total: 0.0,
                since_look: 0,
                edge: (BINS, 0.0),
            }),
        }
    }

    /// Whether the draw falls on this trace.
    pub(super) fn is_drawn(&self, trace: u128) -> bool {
        // The low 56 bits are the ones that are random by the W3C's second level.
        part(trace as u64) < self.shares.rest
    }

    /// Whether a trace is kept, and why.
    pub(super) fn decide(&self, record: &SpanRecord) -> Option<KeepReason> {
        let ttft = record.ttft();
        let is_slow = ttft.is_some_and(|ttft| self.is_slow(ttft, record.context.trace));
        if record.failure().is_some() {
            Some(KeepReason::Error)
        } else if record.is_late() {
            Some(KeepReason::Objective)
        } else if is_slow {
            Some(KeepReason::Slow)
        } else if self.is_asked(&record.context) {
            Some(KeepReason::Asked)
        } else {
            self.is_drawn(record.context.trace).then_some(KeepReason::Share)
        }
    }

    fn is_asked(&self, context: &Context) -> bool {
        self.shares.asked && context.asked
    }

    /// Whether a trace is kept whatever comes of it.
    pub(super) fn is_chosen(&self, context: &Context) -> bool {
        self.is_asked(context) || self.is_drawn(context.trace)
    }

    fn is_slow(&self, ttft: Millis, trace: u128) -> bool {
        self.recent
            .lock()
            .is_slow(ttft, self.shares.slowest, part((trace >> 64) as u64))
    }
}

impl Recent {
    /// Whether a turn is among the slowest before it; `drawn` decides at the edge. It counts from now on.
    fn is_slow(&mut self, ttft: Millis, share: f64, drawn: f64) -> bool {
        let bin = bin(ttft);
        let (edge, part) = self.edge;
        let is_slow = bin > edge || (bin == edge && drawn < part);
        self.counts[bin] += 1.0;
        self.total += 1.0;
        if self.total >= MEMORY {
            self.counts.iter_mut().for_each(|count| *count /= 2.0);
            self.total /= 2.0;
        }
        self.since_look += 1;
        if self.since_look >= LOOK_EVERY {
            self.since_look = 0;
            self.edge = self.look(share);
        }
        is_slow
    }

    fn look(&self, share: f64) -> (usize, f64) {
        let mut left = share * f64::from(self.total);
        if self.total < ENOUGH {
            return (BINS, 0.0);
        }
        for (bin, count) in self.counts.iter().enumerate().rev() {
            let count = f64::from(*count);
            if count > 0.0 && count >= left {
                return (bin, left / count);
            }
            left -= count;
        }
        (0, 1.0)
    }
}

fn bin(ttft: Millis) -> usize {
    let steps = (ttft.0.max(LEAST_MS) / LEAST_MS).ln() / STEP;
    (steps as usize).min(BINS - 1)
}

/// The low 56 bits as a number from 0 to 1, without 1.
fn part(bits: u64) -> f64 {
    (bits & ((1 << 56) - 1)) as f64 / (1_u64 << 56) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn recent() -> Recent {
        let shares = Shares {
            slowest: 0.0,
            rest: 0.0,
            asked: false,
        };
        TailSampler::new(shares).recent.into_inner()
    }

    fn draw(number: u64) -> f64 {
        part(xxh3_64(&number.to_le_bytes()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn however_times_are_spread_the_slowest_share_is_kept(
            share in 0.005_f64..0.2, spread in prop_oneof![Just(0.0_f64), 0.0_f64..5.0], scale in 1.0_f64..10_000.0,
        ) {
            let mut recent = recent();
            let turns = 40_000;
            let kept = (0..turns)
                .filter(|turn| recent.is_slow(Millis(scale * (spread * draw(turn * 2)).exp()), share, draw(turn * 2 + 1)))
                .count();
            let kept = kept as f64 / turns as f64;
            prop_assert!((kept / share - 1.0).abs() < 0.25, "{kept} of {share}");
        }
    }

    #[test]
    fn the_slow_ones_are_those_and_no_others() {
        let mut recent = recent();
        for turn in 0..10_000_u64 {
            let slow = turn % 100 == 7;
            let kept = recent.is_slow(Millis(if slow { 900.0 } else { 100.0 }), 0.01, draw(turn));
            if turn > 2000 && !slow {
                assert!(!kept || draw(turn) < 0.01, "turn {turn}");
            }
            if turn > 2000 && slow {
                assert!(kept || draw(turn) > 0.9, "turn {turn}");
            }
        }
    }

    #[test]
    fn before_there_are_enough_nobody_is_slow() {
        let mut recent = recent();
        assert!(!(0..99).any(|turn| recent.is_slow(Millis(f64::from(turn)), 0.5, 0.0)));
    }

    #[test]
    fn a_draw_takes_its_share_by_the_id_alone() {
        let shares = Shares {
            slowest: 0.0,
            rest: 0.1,
            asked: false,
        };
        let sampler = TailSampler::new(shares);
        let ids = (0..10_000_u64).map(|number| u128::from(xxh3_64(&number.to_le_bytes())));
        let drawn = ids.filter(|id| sampler.is_drawn(*id)).count();
        assert!((900..1100).contains(&drawn), "{drawn}");
        assert!(sampler.is_drawn(7) && !sampler.is_drawn(u128::MAX));
    }
}
