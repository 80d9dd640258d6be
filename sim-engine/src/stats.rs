//! Statistics and captured requests, for tests and operators.

use bytes::Bytes;

use crate::hints::Objective;
use crate::memory::MemoryCounters;
use crate::scheduler::{Aborts, Scheduler};

/// A request as received, for tests that compare bytes.
#[derive(Clone, Debug)]
pub struct Captured {
    pub method: ::http::Method,
    /// Path and query.
    pub uri: ::http::Uri,
    /// All header fields.
    pub headers: ::http::HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// Counts since the start. Times are wall times.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Stats {
    /// Completion requests received, valid or not.
    pub received: u64,
    pub completed: u64,
    pub refused: u64,
    pub aborted: Aborts,
    /// Connections cut and errors returned by faults.
    pub faults_injected: u64,
    pub waiting: usize,
    pub running: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generation_tokens: u64,
    pub prefill_seconds: f64,
    pub ttft_seconds: f64,
    pub ttft_count: u64,
    pub cache_used_tokens: u64,
    pub cache_pinned_tokens: u64,
    pub cache_evict_first_tokens: u64,
    pub cache_capacity_tokens: u64,
    pub sessions: usize,
    pub memory: MemoryCounters,
    pub objective: Option<Objective>,
    /// Seconds since the newest objective came, in force or not.
    pub objective_age_s: Option<f64>,
}

impl Stats {
    pub(crate) fn of(scheduler: &Scheduler, received: u64, faults_injected: u64) -> Self {
        let counters = &scheduler.counters;
        let cache = scheduler.memory.cache();
        Stats {
            received,
            completed: counters.completed,
            refused: counters.refused,
            aborted: counters.aborted,
            faults_injected,
            waiting: scheduler.waiting(),
            running: scheduler.running(),
            prompt_tokens: counters.prompt_tokens,
            cached_tokens: counters.cached_tokens,
            generation_tokens: counters.generation_tokens,
            prefill_seconds: counters.prefill_seconds,
            ttft_seconds: counters.ttft_seconds,
            ttft_count: counters.ttft_count,
            cache_used_tokens: cache.used().0,
            cache_pinned_tokens: cache.pinned().0,
            cache_evict_first_tokens: cache.evict_first().0,
            cache_capacity_tokens: cache.capacity().0,
            sessions: scheduler.memory.sessions_known(),
            memory: scheduler.memory.counters,
            objective: scheduler.memory.objective(),
            objective_age_s: scheduler.memory.objective_age_s(),
        }
    }
}
