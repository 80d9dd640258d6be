//! The engine's counters. Times are reported in wall seconds, as clients see them.

use policy::units::{Millis, Tokens};

/// vLLM's buckets of `vllm:time_to_first_token_seconds`.
pub const TTFT_BUCKETS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// The phase of a request when its client disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for prefill.
    Queued,
    /// Being prefilled.
    Prefill,
    /// Being decoded.
    Decode,
}

/// Aborted requests by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Aborts {
    pub queued: u64,
    pub prefill: u64,
    pub decode: u64,
}

impl Aborts {
    /// Returns the sum of all phases.
    pub fn total(&self) -> u64 {
        self.queued + self.prefill + self.decode
    }

    pub(super) fn count(&mut self, phase: Phase) {
        match phase {
            Phase::Queued => self.queued += 1,
            Phase::Prefill => self.prefill += 1,
            Phase::Decode => self.decode += 1,
        }
    }
}

/// Totals since the engine started.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    virtual_ms_per_wall_s: f64,
    pub completed: u64,
    /// Completed requests that ended at their token limit.
    pub ran_out: u64,
    pub refused: u64,
    pub aborted: Aborts,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub computed_tokens: u64,
    pub generation_tokens: u64,
    pub queue_seconds: f64,
    pub prefill_seconds: f64,
    pub prefills: u64,
    pub ttft_seconds: f64,
    pub ttft_count: u64,
    /// Number of first tokens per bucket, not cumulative; the last bucket is beyond every bound.
    pub ttft_buckets: [u64; TTFT_BUCKETS_S.len() + 1],
}

impl Counters {
    pub(super) fn new(time_scale: f64) -> Self {
        Self {
            virtual_ms_per_wall_s: 1000.0 * time_scale,
            ..Self::default()
        }
    }

    pub(super) fn started(&mut self, queue: Millis, cost: Millis, prompt: Tokens, cached: Tokens) {
        self.prefills += 1;
        self.queue_seconds += queue.0 / self.virtual_ms_per_wall_s;
        self.prefill_seconds += cost.0 / self.virtual_ms_per_wall_s;
        self.prompt_tokens += prompt.0;
        self.cached_tokens += cached.0;
        self.computed_tokens += prompt.saturating_sub(cached).0;
    }

    pub(super) fn first_token(&mut self, ttft: Millis) {
        let seconds = ttft.0 / self.virtual_ms_per_wall_s;
        self.generation_tokens += 1;
        self.ttft_count += 1;
        self.ttft_seconds += seconds;
        let bucket = TTFT_BUCKETS_S.partition_point(|&bound| bound < seconds);
        self.ttft_buckets[bucket] += 1;
    }
}
