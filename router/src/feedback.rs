//! The feedback loop: what answers teach, and what follows from it for the next choice and for the workers' caches.
//!
//! ```text
//! path/learn ──Lesson──▶ queue ──▶ upkeep/learner ──▶ costs, conversations, controller, shared prefixes
//!                                                        │ published: a worker's cost, Q̂, the tail's rule
//! path/choose ◀──────────────────────────────────────────┘
//! ```
//!
//! A finished turn leaves a [`Lesson`] in a bounded queue and is gone; one task applies them, so no client waits for a
//! regression or for nine ghost caches. A queue that is full loses lessons, which are counted: learning late is worse
//! than learning from a sample. What a choice reads of all this is one lock on a table of conversations, held for a
//! look-up, and one atomic pointer.

mod conversations;
mod costs;
mod counters;
mod explain;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use config::Config;
use parking_lot::Mutex;
use policy::cost::PrefillCost;
use policy::estimate::{Class, Finish};
use policy::fingerprint::Chain;
use policy::ids::WorkerId;
use policy::slo::{Controller, TailRule};
use policy::units::{Millis, Tokens};
use tokio::sync::mpsc;

pub use conversations::{Conversations, Expected, Silent, Turned};
pub use costs::{CostState, Costs, Sample};
pub use counters::{Counted, Counters};
pub use explain::{ClassState, SloState, explain};
pub use shared::SharedPrefixes;

/// Lessons that may wait.
const QUEUE: usize = 4096;
/// Tokens of cache whose conversations the controller's ghosts follow; of larger fleets a sample.
const FOLLOWED_TOKENS: f64 = 64e6;

/// What a turn taught, when it was over.
#[derive(Debug)]
pub struct Lesson {
    /// The worker that served it.
    pub worker: WorkerId,
    /// The worker that served the conversation's last turn, if another.
    pub left: Option<WorkerId>,
    /// The conversation: its key, and the name that workers know.
    pub conversation: Option<(u64, Arc<str>)>,
    /// What was known of the turn when it was sent.
    pub class: Class,
    /// How its answer ended.
    pub finish: Finish,
    /// Its client said that it was the last.
    pub last: bool,
    /// When it was here.
    pub arrived: Millis,
    /// When its answer was complete.
    pub ended: Millis,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Tokens of its answer.
    pub response: Tokens,
    /// Prompt tokens that the worker found in its cache: what it said, else what was predicted.
    pub cached: Tokens,
    /// The worker said so.
    pub cached_is_told: bool,
    /// What its prefill took, if that is known.
    pub prefill: Option<Sample>,
    /// What its first token took beside the queue and the prefill that its engine told of.
    pub beside: Option<Millis>,
    /// What its prefill was believed to cost per token.
    pub cost: PrefillCost,
    /// Predicted time before its prefill.
    pub wait: Millis,
    /// What it was to meet.
    pub objective: Millis,
    /// Q̂ when it was sent.
    pub next_prompt: Tokens,
    /// ρ of the worker when it was sent.
    pub utilisation: f64,
    /// Tokens at the end of the conversation that the worker may drop first.
    pub evict_first: Tokens,
    /// Its prompt's keys.
    pub chain: Arc<Chain>,
    /// Tokens per unit of the chain's ends, of this prompt.
    pub tokens_per_unit: f64,
}

/// A first token that came so late that the worker must have changed: learned from at once.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// The worker.
    pub worker: WorkerId,
    /// When it came.
    pub at: Millis,
    /// Tokens of the prompt that were predicted to be computed.
    pub uncached: Tokens,
    /// Those that were predicted to be cached.
    pub cached: Tokens,
    /// What the prefill took.
    pub took: Sample,
}

/// What waits to be learned from.
#[derive(Debug)]
pub enum Taught {
    /// A turn that is over.
    Turn(Box<Lesson>),
    /// A first token.
    Late(Late),
}

/// Everything that is learned from answers, behind its locks.
#[derive(Debug)]
pub struct Feedback {
    lessons: mpsc::Sender<Taught>,
    /// Taken by the task that applies them.
    waiting: Mutex<Option<mpsc::Receiver<Taught>>>,
    dropped: AtomicU64,
    /// α, β, γ of each worker.
    pub costs: Mutex<Costs>,
    /// What engines count of their prefills.
    pub counters: Mutex<Counters>,
    /// Conversations, and the habits of their classes.
    pub conversations: Mutex<Conversations>,
    /// How much of the free tail it pays to give away.
    pub controller: Mutex<Controller>,
    /// Beginnings that many conversations share.
    pub shared: Mutex<SharedPrefixes>,
    rule: ArcSwap<TailRule>,
}

impl Feedback {
    /// Nothing learned yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (lessons, waiting) = mpsc::channel(QUEUE);
        let capacities: Vec<Tokens> = config.workers.iter().map(|worker| worker.capacity).collect();
        let all: f64 = capacities.iter().map(|capacity| capacity.as_f64()).sum();
        Self {
            lessons,
            waiting: Mutex::new(Some(waiting)),
            dropped: AtomicU64::new(0),
            costs: Mutex::new(Costs::new(&config.workers, config.learning.fade)),
            counters: Mutex::new(Counters::new(config.workers.len())),
            conversations: Mutex::new(Conversations::new(
                config.objective.next_prompt,
                config.hints.ended_below,
            )),
            controller: Mutex::new(Controller::new(&capacities, FOLLOWED_TOKENS / all.max(1.0))),
            shared: Mutex::new(SharedPrefixes::new(config.hints.protect_from)),
            rule: ArcSwap::from_pointee(TailRule::START),
        }
    }

    /// A worker takes a slot.
    pub fn admit(&self, worker: WorkerId, spec: &config::Worker) {
        self.costs.lock().admit(worker, spec);
        self.counters.lock().admit(worker);
        self.controller.lock().admit(worker, spec.capacity);
    }

    /// A worker is gone: what it was says nothing of the others any more.
    pub fn vacate(&self, worker: WorkerId) {
        self.costs.lock().vacate(worker);
        self.counters.lock().admit(worker);
        self.controller.lock().admit(worker, Tokens::ZERO);
        self.conversations.lock().left(worker);
        self.shared.lock().left(worker);
    }

    /// Leaves a lesson. Never waits.
    pub fn teach(&self, lesson: Lesson) {
        self.leave(Taught::Turn(Box::new(lesson)));
    }

    /// Leaves a first token that came late. Never waits.
    pub fn late(&self, late: Late) {
        self.leave(Taught::Late(late));
    }

    fn leave(&self, taught: Taught) {
        if self.lessons.try_send(taught).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The queue's other end; `None` if somebody has it already.
    #[must_use]
    pub fn lessons(&self) -> Option<mpsc::Receiver<Taught>> {
        self.waiting.lock().take()
    }

    /// Lessons lost to a full queue.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// How much of the free tail is given away now.
    #[must_use]
    pub fn rule(&self) -> TailRule {
        **self.rule.load()
    }

    /// The controller changed its mind.
    pub fn publish(&self, rule: TailRule) {
        if self.rule() != rule {
            self.rule.store(Arc::new(rule));
        }
    }
}
