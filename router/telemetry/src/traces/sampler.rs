//! Tail sampling: decides which traces are kept when a request has ended.
//!
//! | reason | condition |
//! |---|---|
//! | `error` | a failure not caused by the client: 5xx, a broken stream, a deadline |
//! | `objective` | the first token came later than the objective |
//! | `slow` | the time to first token is among the slowest share of recent turns |
//! | `asked` | the client's `traceparent` is sampled |
//! | `share` | selected by trace id, consistently across services |
//!
//! Recent turns are a histogram of times to first token; all counts are halved whenever their sum reaches [`MEMORY`].
//! Bins are 7 % wide. Within the bin that contains the threshold, turns are selected by trace id in proportion, so that
//! the share holds even if all turns fall into one bin.

use parking_lot::Mutex;
use policy::units::Millis;

use super::record::SpanRecord;
use crate::context::Context;

/// Total count at which all counts are halved.
const MEMORY: f32 = 8192.0;
/// Minimum number of turns before any is slow.
const ENOUGH: f32 = 100.0;
const LOOK_EVERY: u32 = 32;
const BINS: usize = 256;
/// Lower end of the first bin, in milliseconds. Shorter times count in that bin.
const LEAST_MS: f64 = 0.1;
/// Width of a bin, as a natural logarithm.
const STEP: f64 = 0.068;

/// Reason why a trace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// The request failed, and not by the client's fault.
    Error,
    /// The first token came later than the objective.
    Objective,
    /// The time to first token is among the slowest share of recent turns.
    Slow,
    /// The client sampled the trace.
    Asked,
    /// The trace was selected by its id.
    Share,
}

impl KeepReason {
    /// Returns the name in metrics and traces.
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) slowest: f64,
    pub(super) rest: f64,
    pub(super) asked: bool,
}

#[derive(Debug)]
pub(super) struct TailSampler {
    shares: Shares,
    recent: Mutex<TtftHistogram>,
}

#[derive(Debug)]
struct TtftHistogram {
    counts: [f32; BINS],
    total: f32,
    since_look: u32,
    /// Bin that contains the threshold, and the selected part of it.
    edge: (usize, f64),
}

impl TailSampler {
    pub(super) fn new(shares: Shares) -> Self {
        Self {
            shares,
            recent: Mutex::new(TtftHistogram {
                counts: [0.0; BINS],
                total: 0.0,
                since_look: 0,
                edge: (BINS, 0.0),
            }),
        }
    }

    pub(super) fn is_drawn(&self, trace: u128) -> bool {
        // The low 56 bits are random in W3C Trace Context Level 2.
        part(trace as u64) < self.shares.rest
    }

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

    /// Returns whether a trace is kept regardless of its outcome.
    pub(super) fn is_chosen(&self, context: &Context) -> bool {
        self.is_asked(context) || self.is_drawn(context.trace)
    }

    fn is_slow(&self, ttft: Millis, trace: u128) -> bool {
        self.recent
            .lock()
            .is_slow(ttft, self.shares.slowest, part((trace >> 64) as u64))
    }
}

impl TtftHistogram {
    /// Returns whether a turn is among the slowest so far, and counts it. `drawn` decides in the bin of the threshold.
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

/// Returns the low 56 bits as a fraction in `[0, 1)`.
fn part(bits: u64) -> f64 {
    (bits & ((1 << 56) - 1)) as f64 / (1_u64 << 56) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn recent() -> TtftHistogram {
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
