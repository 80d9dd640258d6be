//! The feedback loop: learns from completed turns and publishes what routing and hints use.
//!
//! ```text
//! path/flight ──Observation──▶ queue ──▶ upkeep/learner ──▶ costs, conversations, shared prefixes, value of ends
//!                                    objectives of workers      │ published: a worker's cost, Q̂, free tails
//! path/select ◀─────────────────────────────────────────────────┘
//! ```
//!
//! A finished turn puts an [`Observation`] into a bounded queue, and one task applies the queue, so no client waits for
//! a regression or for room on a worker. When the queue is full, observations are dropped and counted: learning from a
//! sample is better than learning late. The routing decision reads one atomic pointer and one table of conversations,
//! whose lock is held for a single look-up.

mod conversations;
mod costs;
mod counters;
mod objectives;
mod shared;
mod state;
mod trimmed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use config::Config;
use parking_lot::Mutex;
use policy::cost::PrefillCost;
use policy::estimate::{Class, Finish};
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::residency::Compared;
use policy::slo::feedback::Objective;
use policy::tail::{Class as TailClass, Tail, Trim};
use policy::units::{Millis, Tokens};
use tokio::sync::mpsc;

pub use conversations::{CompletedTurn, Conversations, Expected, KeptConversation, Turns};
pub use costs::{CostState, Costs, KeptCost, KeptPrompt, PrefillSample};
pub use counters::{Counted, FleetCounters};
pub use objectives::Objectives;
pub use shared::SharedPrefixes;
pub use state::{ClassState, TailState};
pub use trimmed::{CopyKeys, RecentTrims, Trimmed};

use fleet::Worker;

const QUEUE: usize = 4096;

/// The observation of a completed turn.
#[derive(Debug)]
pub struct Observation {
    /// Worker that served the turn.
    pub worker: WorkerId,
    /// Worker that served the conversation's previous turn, if it was a different one.
    pub left: Option<WorkerId>,
    /// Key of the conversation, and its name as passed to workers.
    pub conversation: Option<(u64, Arc<str>)>,
    /// Class of the turn as known when it was sent.
    pub class: Class,
    /// Reason for which the response ended.
    pub finish: Finish,
    /// Whether the client marked the turn as the conversation's last.
    pub last: bool,
    /// Arrival time of the request.
    pub arrived: Millis,
    /// Time at which the response was complete.
    pub ended: Millis,
    pub prompt: Tokens,
    pub response: Tokens,
    /// Prompt tokens that the worker found in its cache: as reported by the worker, else as predicted.
    pub cached: Tokens,
    /// Whether `cached` was reported by the worker.
    pub cached_is_told: bool,
    /// Measured prefill time, if known.
    pub prefill: Option<PrefillSample>,
    /// Time to first token beyond the queue and prefill times that the engine reports.
    pub beside: Option<Millis>,
    /// Cached tokens with hints and without, where both are tracked.
    pub compared: Option<Compared>,
    /// Prefill cost assumed at routing time.
    pub cost: PrefillCost,
    /// Predicted time before the prefill.
    pub wait: Millis,
    /// Objective for the time to first token.
    pub objective: Millis,
    /// The same as one of the configured objectives, or as the request states it.
    pub objective_of: Objective,
    /// Time to first token; for a response that was not streamed, the predicted one.
    pub ttft: Millis,
    /// Whether `ttft` was measured.
    pub ttft_is_measured: bool,
    /// Last key of the response, if the next turn can repeat it.
    pub end: Option<PrefixHash>,
    /// Keys of the prompt.
    pub chain: Arc<Chain>,
    /// Tokens per unit of the chain's ends, in this prompt.
    pub tokens_per_unit: f64,
}

/// Number of a prompt's keys that are kept for finding the resident part of a copy later.
const TIPS: usize = 8;

impl Observation {
    /// Returns the conversation's last key, then keys of the prompt at even distances, the last one first.
    pub fn tips(&self) -> Vec<PrefixHash> {
        let keys = self.chain.hashes();
        let at = |i: usize| {
            keys.get((keys.len() * (TIPS - i) / TIPS).checked_sub(1)?)
                .copied()
        };
        let mut tips: Vec<PrefixHash> = self.end.into_iter().chain((0..TIPS).filter_map(at)).collect();
        tips.dedup();
        tips
    }
}

/// A first token so late that the worker's cost must have changed, which the learner applies at once.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Worker that served the turn.
    pub worker: WorkerId,
    /// Time at which the first token arrived.
    pub at: Millis,
    /// Prompt tokens predicted to be computed.
    pub uncached: Tokens,
    /// Prompt tokens predicted to be cached.
    pub cached: Tokens,
    /// Measured prefill time.
    pub took: PrefillSample,
}

/// The start of a response stream, which shows that the conversation is active.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Arrival time of the request.
    pub arrived: Millis,
    /// Key of the conversation.
    pub conversation: u64,
    /// Worker that serves the turn.
    pub worker: WorkerId,
    /// Worker of the conversation's previous turn, if it was a different one.
    pub left: Option<WorkerId>,
}

/// An entry of the learner's queue.
#[derive(Debug)]
pub enum LearnerEvent {
    /// A turn is complete.
    Turn(Box<Observation>),
    /// A first token is late.
    Late(Late),
    /// A turn was sent to a worker that has little room left in its cache.
    Sent(WorkerId),
    /// A stream has begun.
    Begun(Begun),
}

/// Learned state, each part behind its own lock.
#[derive(Debug)]
pub struct Feedback {
    events: mpsc::Sender<LearnerEvent>,
    /// Receiving end of the queue, until the learner takes it.
    waiting: Mutex<Option<mpsc::Receiver<LearnerEvent>>>,
    dropped: AtomicU64,
    /// Coefficients α, β, γ of each worker.
    pub costs: Mutex<Costs>,
    /// Prefill counters reported by engines.
    pub counters: Mutex<FleetCounters>,
    /// Conversations, and the habits of their classes.
    pub conversations: Mutex<Conversations>,
    /// Recent turns and ξ of each worker.
    pub objectives: Objectives,
    /// Value of the ends of silent conversations, by worker.
    pub tail: Mutex<Tail<Arc<CopyKeys>>>,
    /// Tokens stored by the turns for which a worker should keep room, which are read when turns are sent.
    next_turns: AtomicU64,
    pub recent: RecentTrims,
    /// Prefixes that many conversations share.
    pub shared: Mutex<SharedPrefixes>,
    /// Free tail of each class in tokens, by worker; empty for workers whose ends are trimmed just in time.
    free_tails: ArcSwap<Vec<Vec<u32>>>,
}

impl Feedback {
    /// Creates a state without observations.
    pub fn new(config: &Config) -> Self {
        let (events, waiting) = mpsc::channel(QUEUE);
        let mut tail = Tail::default();
        for (worker, spec) in (0..).zip(&config.workers) {
            tail.admit(WorkerId(worker), spec.capacity);
        }
        Self {
            events,
            waiting: Mutex::new(Some(waiting)),
            dropped: AtomicU64::new(0),
            costs: Mutex::new(Costs::new(&config.workers, config.learning.fade)),
            counters: Mutex::new(FleetCounters::new(config.workers.len())),
            conversations: Mutex::new(Conversations::new(config.objective.next_prompt)),
            objectives: Objectives::default(),
            tail: Mutex::new(tail),
            next_turns: AtomicU64::new(0),
            recent: RecentTrims::default(),
            shared: Mutex::new(SharedPrefixes::new(config.hints.protect_from)),
            free_tails: ArcSwap::default(),
        }
    }

    /// Registers a worker in its slot.
    pub fn admit(&self, worker: WorkerId, spec: &config::Worker) {
        self.costs.lock().admit(worker, spec);
        self.counters.lock().admit(worker);
        self.objectives.reset(worker);
        self.tail.lock().admit(worker, spec.capacity);
    }

    /// Removes a worker, so that its estimates no longer affect those of the others.
    pub fn remove_worker(&self, worker: WorkerId) {
        self.costs.lock().remove_worker(worker);
        self.counters.lock().admit(worker);
        self.objectives.reset(worker);
        self.tail.lock().admit(worker, Tokens::ZERO);
        self.shared.lock().left(worker);
    }

    /// Queues an event for the learner. Never waits.
    pub fn queue(&self, event: LearnerEvent) {
        if self.events.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the tokens stored by the turns for which a worker should keep room.
    #[must_use]
    pub fn next_turns(&self) -> Tokens {
        Tokens(self.next_turns.load(Ordering::Relaxed))
    }

    /// Publishes the tokens that [`Self::next_turns`] returns.
    pub fn publish_next_turns(&self, tokens: Tokens) {
        self.next_turns.store(tokens.0, Ordering::Relaxed);
    }

    /// Takes the receiving end of the queue; `None` if it was taken before.
    #[must_use]
    pub fn take_receiver(&self) -> Option<mpsc::Receiver<LearnerEvent>> {
        self.waiting.lock().take()
    }

    /// Returns the number of events dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the free tail of a conversation of this class, for a worker that takes hints in requests only.
    pub fn free_tail(&self, worker: WorkerId, class: TailClass) -> Tokens {
        let tails = self.free_tails.load();
        let of_worker = tails.get(worker.index());
        let tail = of_worker.and_then(|tails| tails.get(class.index()));
        Tokens(tail.map_or(0, |tokens| u64::from(*tokens)))
    }

    /// Publishes the free tails of `workers`.
    pub fn publish_free_tails(&self, workers: impl Iterator<Item = WorkerId>) {
        let tail = self.tail.lock();
        let mut tails = Vec::new();
        for worker in workers {
            tails.resize(tails.len().max(worker.index() + 1), Vec::new());
            let of_class = |class| tail.free_tail(worker, class).0.min(u32::MAX.into()) as u32;
            tails[worker.index()] = TailClass::all().map(of_class).collect();
        }
        drop(tail);
        self.free_tails.store(Arc::new(tails));
    }

    /// Records a trim among the recent ones.
    pub fn trimmed(&self, worker: &Worker, trim: &Trim<Arc<CopyKeys>>, keep: Tokens) {
        self.recent.push(worker.name(), trim, keep);
    }
}
