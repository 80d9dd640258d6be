//! The engine's simulation core: requests in, progress out, at virtual times given by the caller.
//!
//! One prefill server takes requests in order. A prompt with `u` uncached and `h` cached tokens occupies it for `β +
//! α·u + γ·u·(h + u/2)`, so TTFT is queueing plus that, exactly, whatever the polling interval. A decode step gives
//! every running sequence one token and takes `tpot + tpot_batch × batch`; a sequence that joins during a step waits
//! for the next one. Each running sequence slows prefill by `decode_drag`, 0 by default.
//!
//! As in vLLM: the cache is consulted when a prompt is scheduled, not when it arrives; the last prompt token is
//! always computed, so at most the full blocks of `prompt − 1` tokens count as cached; blocks are stored once
//! computed; a prompt waits while running sequences hold too much of the memory.
//!
//! [`Scheduler::advance`] handles each event at its own time. Ticks were rejected: timer granularity would add up.

mod counters;
mod jitter;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use policy::cache::Lease;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};
use rustc_hash::FxHashMap;

pub use self::counters::{Aborts, Counters, Phase, TTFT_BUCKETS_S};
use self::jitter::Jittering;
use crate::config::{EngineConfig, Order};
use crate::hints::CacheTerms;
use crate::memory::{FinishedTurn, Memory};
use crate::script::Script;
use crate::text;
use crate::tokens::{BlockHasher, piece_token};

/// The number of a request, in order of arrival.
pub type RequestId = u64;

/// A request as submitted to the scheduler.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// The prompt's full blocks.
    pub chain: Vec<PrefixHash>,
    /// The hash state after the prompt's last token, for the tokens that decoding adds.
    pub hasher: BlockHasher,
    /// The prompt's tokens, if cache events need them.
    pub tokens: Option<Arc<[u32]>>,
    /// Seed of the reply's words.
    pub seed: u64,
    /// A scripted reply instead of words.
    pub script: Option<Arc<Script>>,
    /// Number of tokens of the reply; at least one.
    pub output_tokens: u32,
    /// Whether the reply ends at its token limit.
    pub runs_out: bool,
    /// Smaller values go first under [`Order::Priority`].
    pub priority: i64,
    /// Session, salt and hint of the request.
    pub terms: CacheTerms,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Tokens generated so far.
    pub generated: u32,
    /// Whether the request has ended.
    pub done: bool,
    /// Whether the engine died during the request.
    pub lost: bool,
    /// Prompt tokens found in the cache, in any tier.
    pub cached_tokens: u64,
    /// Prompt tokens loaded from the host tier.
    pub host_tokens: u64,
    /// Virtual time in the queue.
    pub queue: Millis,
    /// Virtual time from arrival to the first token.
    pub ttft: Millis,
}

/// The error of a request that finds the waiting queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded;

#[derive(Debug)]
struct Sequence {
    request: Submission,
    arrived: Millis,
    lease: Option<Lease>,
    progress: Progress,
    dirty: bool,
}

/// The simulation core; see the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    prefill: policy::cost::PrefillCost,
    jitter: Jittering,
    decode_drag: f64,
    host_ms_per_token: f64,
    tpot: Millis,
    tpot_batch: Millis,
    block_size: usize,
    multibyte: bool,
    order: Order,
    max_queued: usize,
    max_running: usize,
    slow: f64,
    now: Millis,
    next_id: RequestId,
    sequences: FxHashMap<RequestId, Sequence>,
    waiting: BTreeSet<(i64, RequestId)>,
    prefilling: Option<(RequestId, Millis)>,
    /// Decoding sequences; the first `batch` of them are in the running step.
    running: Vec<RequestId>,
    batch: usize,
    step_end: Option<Millis>,
    dirty: Vec<RequestId>,
    finished: Vec<(RequestId, Progress)>,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
}

impl Scheduler {
    /// Returns an idle engine at virtual time 0.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            prefill: config.prefill,
            jitter: Jittering::new(config.jitter),
            decode_drag: config.decode_drag,
            host_ms_per_token: config.host_ms_per_token,
            tpot: Millis(config.tpot_ms),
            tpot_batch: Millis(config.tpot_batch_ms),
            block_size: config.block_size.max(1) as usize,
            multibyte: config.multibyte,
            order: config.order,
            max_queued: config.max_queued,
            max_running: config.max_running.max(1),
            slow: 1.0,
            now: Millis::ZERO,
            next_id: 0,
            sequences: FxHashMap::default(),
            waiting: BTreeSet::new(),
            prefilling: None,
            running: Vec::new(),
            batch: 0,
            step_end: None,
            dirty: Vec::new(),
            finished: Vec::new(),
            memory: Memory::new(config),
            counters: Counters::new(config.time_scale),
        }
    }

    /// Returns the number of requests waiting for prefill.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of requests in prefill or decode.
    pub fn running(&self) -> usize {
        self.running.len() + usize::from(self.prefilling.is_some())
    }

    /// Returns the time of the next event, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<Millis> {
        let finish = self.prefilling.map(|(_, finish)| finish);
        match (finish, self.step_end) {
            (Some(finish), Some(step)) => Some(finish.min(step)),
            (finish, step) => finish.or(step),
        }
    }

    /// Handles all events up to `to`, each at its own time. Time never goes back.
    pub fn advance(&mut self, to: Millis) {
        while let Some(at) = self.next_event().filter(|&at| at <= to) {
            self.now = at;
            // A prefill that ends together with a step joins the step after it.
            match self.prefilling {
                Some((id, finish)) if finish <= at => self.finish_prefill(id),
                _ => self.finish_step(),
            }
        }
        self.now = self.now.max(to);
        self.memory.expire(self.now);
    }

    /// Submits a request at `at`.
    pub fn submit(&mut self, at: Millis, request: Submission) -> Result<RequestId, Overloaded> {
        self.advance(at);
        if self.waiting.len() >= self.max_queued {
            self.counters.refused += 1;
            return Err(Overloaded);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert((self.rank(&request), id));
        self.memory.arrived(&request.terms);
        let sequence = Sequence {
            request,
            arrived: self.now,
            lease: None,
            progress: Progress::default(),
            dirty: false,
        };
        self.sequences.insert(id, sequence);
        self.start_prefill();
        Ok(id)
    }

    /// Aborts a request at `at`, as when its client disconnects, and frees its memory; `None` if it was done already.
    pub fn abort(&mut self, at: Millis, id: RequestId) -> Option<Phase> {
        let phase = self.withdraw(at, id)?;
        self.counters.aborted.count(phase);
        Some(phase)
    }

    /// Aborts a request as [`Scheduler::abort`] does, without counting it as a client's abort.
    pub fn withdraw(&mut self, at: Millis, id: RequestId) -> Option<Phase> {
        self.advance(at);
        let sequence = self.sequences.remove(&id)?;
        let phase = if self.waiting.remove(&(self.rank(&sequence.request), id)) {
            Phase::Queued
        } else if self.prefilling.is_some_and(|(prefilling, _)| prefilling == id) {
            self.prefilling = None;
            Phase::Prefill
        } else {
            self.leave_running(id);
            Phase::Decode
        };
        self.let_go(sequence);
        self.start_prefill();
        Some(phase)
    }

    /// Sets a factor for the cost of every prefill and step that starts from now on.
    pub fn set_slow(&mut self, factor: f64) {
        self.slow = factor;
    }

    /// Simulates the death of the process: all requests and the cache are lost.
    pub fn die(&mut self, at: Millis) {
        self.advance(at);
        for (id, sequence) in self.sequences.drain() {
            self.finished.push((
                id,
                Progress {
                    done: true,
                    lost: true,
                    ..sequence.progress
                },
            ));
        }
        self.waiting.clear();
        self.running.clear();
        self.dirty.clear();
        self.prefilling = None;
        self.batch = 0;
        self.step_end = None;
        self.memory.clear(false);
    }

    /// Passes to `tell` the progress of each request that has changed since the last call.
    pub fn drain_progress(&mut self, mut tell: impl FnMut(RequestId, Progress)) {
        for id in self.dirty.drain(..) {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.dirty = false;
                tell(id, sequence.progress);
            }
        }
        for (id, progress) in self.finished.drain(..) {
            tell(id, progress);
        }
    }

    fn rank(&self, request: &Submission) -> i64 {
        match self.order {
            Order::Fifo => 0,
            Order::Priority => request.priority,
        }
    }

    fn start_prefill(&mut self) {
        if self.prefilling.is_some() || self.running.len() >= self.max_running {
            return;
        }
        let Some(&(rank, id)) = self.waiting.first() else {
            return;
        };
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if !self.running.is_empty() && !self.memory.has_room(&sequence.request.chain) {
            return;
        }
        self.waiting.remove(&(rank, id));
        self.memory.expire(self.now);
        let prompt = Tokens(sequence.request.prompt_tokens);
        let cacheable =
            (prompt.saturating_sub(Tokens(1)).0 as usize / self.block_size).min(sequence.request.chain.len());
        let lease = self.memory.begin(&sequence.request.chain[..cacheable]);
        let host = self
            .memory
            .in_host(&sequence.request.chain[lease.len()..cacheable]);
        let cached = lease.hit_tokens() + host;
        sequence.lease = Some(lease);
        sequence.progress.cached_tokens = cached.0;
        sequence.progress.host_tokens = host.0;
        sequence.progress.queue = self.now - sequence.arrived;
        let plain = self.prefill.prefill(prompt.saturating_sub(cached), cached).0;
        let loaded = host.as_f64() * self.host_ms_per_token;
        let drag = 1.0 + self.decode_drag * self.running.len() as f64;
        let cost = Millis((plain + loaded) * drag * self.slow * self.jitter.factor());
        self.counters
            .started(sequence.progress.queue, cost, prompt, cached);
        self.prefilling = Some((id, self.now + cost));
    }

    fn finish_prefill(&mut self, id: RequestId) {
        self.prefilling = None;
        if let Some(sequence) = self.sequences.get_mut(&id) {
            let request = &sequence.request;
            if let Some(lease) = &mut sequence.lease {
                let fresh = lease.len();
                let tokens = request
                    .tokens
                    .as_deref()
                    .and_then(|tokens| tokens.get(fresh * self.block_size..));
                self.memory.computed(
                    lease,
                    &request.chain[fresh..],
                    tokens.unwrap_or(&[]),
                    &request.terms,
                );
            }
            // The events no longer need the prompt's tokens.
            sequence.request.tokens = None;
            sequence.progress.generated = 1;
            sequence.progress.ttft = self.now - sequence.arrived;
            self.counters.first_token(sequence.progress.ttft);
            if sequence.request.output_tokens <= 1 {
                self.complete(id);
            } else {
                self.touch(id);
                self.running.push(id);
                if self.step_end.is_none() {
                    self.start_step();
                }
            }
        }
        self.start_prefill();
    }

    fn start_step(&mut self) {
        self.batch = self.running.len();
        let cost = (self.tpot.0 + self.tpot_batch.0 * self.batch as f64) * self.slow;
        self.step_end = (self.batch > 0).then(|| self.now + Millis(cost));
    }

    fn finish_step(&mut self) {
        let in_step: Vec<RequestId> = self.running[..self.batch].to_vec();
        let mut over = false;
        for id in in_step {
            let Some(sequence) = self.sequences.get_mut(&id) else {
                continue;
            };
            // The keys and values of a token exist once the next token was computed from it.
            let (request, last) = (&sequence.request, sequence.progress.generated - 1);
            let token = match &request.script {
                Some(script) => script.token(last),
                None => piece_token(text::word(request.seed, last, self.multibyte)),
            };
            grow(&mut self.memory, sequence, token);
            sequence.progress.generated += 1;
            self.counters.generation_tokens += 1;
            if sequence.progress.generated >= sequence.request.output_tokens {
                self.complete(id);
                over = true;
            } else {
                self.touch(id);
            }
        }
        if over {
            let sequences = &self.sequences;
            self.running.retain(|id| sequences.contains_key(id));
        }
        self.start_step();
        self.start_prefill();
    }

    fn complete(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        self.counters.completed += 1;
        self.counters.ran_out += u64::from(sequence.request.runs_out);
        self.finished.push((
            id,
            Progress {
                done: true,
                ..sequence.progress
            },
        ));
        self.let_go(sequence);
    }

    fn let_go(&mut self, sequence: Sequence) {
        let Sequence {
            request,
            lease,
            progress,
            ..
        } = sequence;
        let computed = progress.generated > 0;
        let turn = FinishedTurn {
            lease,
            chain: if computed { request.chain } else { Vec::new() },
            history: Tokens(request.prompt_tokens + u64::from(progress.generated)),
            terms: &request.terms,
        };
        self.memory.expire(self.now);
        self.memory.finished(self.now, turn);
    }

    fn leave_running(&mut self, id: RequestId) {
        if let Some(at) = self.running.iter().position(|&running| running == id) {
            self.running.remove(at);
            if at < self.batch {
                self.batch -= 1;
            }
        }
        // A step without sequences ends at once, which lets others begin.
        if self.batch == 0 && self.step_end.is_some() {
            self.start_step();
        }
    }

    fn touch(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && !sequence.dirty
        {
            sequence.dirty = true;
            self.dirty.push(id);
        }
    }
}

/// Adds a token to a sequence's memory. A block that it fills becomes resident.
fn grow(memory: &mut Memory, sequence: &mut Sequence, token: u32) {
    let request = &mut sequence.request;
    let block: Vec<u32> = if request.hasher.partial().len() + 1 == request.hasher.block_size() {
        request.hasher.partial().iter().copied().chain([token]).collect()
    } else {
        Vec::new()
    };
    if let Some(hash) = request.hasher.push(token) {
        request.chain.push(hash);
        if let Some(lease) = &mut sequence.lease {
            memory.computed(lease, &[hash], &block, &request.terms);
        }
    }
}
