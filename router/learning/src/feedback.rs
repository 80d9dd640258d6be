//! The feedback loop: what answers teach, and what follows from it for the next choice and for the workers' caches.
//!
//! ```text
//! path/learn ──Lesson──▶ queue ──▶ upkeep/learner ──▶ costs, conversations, shared prefixes, worth of ends
//!                                                        │ published: a worker's cost, Q̂, free tails
//! path/choose ◀──────────────────────────────────────────┘
//! ```
//!
//! A finished turn leaves a [`Lesson`] in a bounded queue and is gone; one task applies them, so no client waits for a
//! regression or for a worker's room. A queue that is full loses lessons, which are counted: learning late is worse
//! than learning from a sample. What a choice reads of all this is one lock on a table of conversations, held for a
//! look-up, and one atomic pointer.

mod conversations;
mod costs;
mod counters;
mod shared;
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
use policy::tail::{Class as TailClass, Tail, Trim};
use policy::units::{Millis, Tokens};
use tokio::sync::mpsc;

pub use conversations::{Conversations, Expected, Turned, Turns};
pub use costs::{CostState, Costs, Sample};
pub use counters::{Counted, Counters};
pub use shared::SharedPrefixes;
pub use trimmed::{CopyKeys, Recent, Trimmed};

use fleet::Worker;

/// Lessons that may wait.
const QUEUE: usize = 4096;

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
    /// What of its prompt was cached, with hints and without, as far as that is followed.
    pub compared: Option<Compared>,
    /// What its prefill was believed to cost per token.
    pub cost: PrefillCost,
    /// Predicted time before its prefill.
    pub wait: Millis,
    /// What it was to meet.
    pub objective: Millis,
    /// What it took to its first token: of an answer that came whole, what it was predicted to take.
    pub ttft: Millis,
    /// The last key of its answer, if the next turn can repeat it.
    pub end: Option<PrefixHash>,
    /// Its prompt's keys.
    pub chain: Arc<Chain>,
    /// Tokens per unit of the chain's ends, of this prompt.
    pub tokens_per_unit: f64,
}

/// Keys of a prompt that are remembered, to find again what is left of it.
const TIPS: usize = 8;

impl Lesson {
    /// The conversation's last key, and keys of its prompt at even distances, the last one first.
    #[must_use]
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

/// A stream that began: its conversation is not silent.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// When its request arrived.
    pub arrived: Millis,
    /// The conversation's key.
    pub conversation: u64,
    /// The worker.
    pub worker: WorkerId,
    /// The worker of the conversation's last turn, if another.
    pub left: Option<WorkerId>,
}

/// What waits to be learned from.
#[derive(Debug)]
pub enum Taught {
    /// A turn that is over.
    Turn(Box<Lesson>),
    /// A first token.
    Late(Late),
    /// A turn went to a worker that has little room left.
    Sent(WorkerId),
    /// A stream began.
    Begun(Begun),
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
    /// What ends of silent conversations are worth, by worker.
    pub tail: Mutex<Tail<Arc<CopyKeys>>>,
    /// Tokens that the turns store for which a worker should have room, for those who send turns.
    next_turns: AtomicU64,
    /// The ends that were given up last.
    pub recent: Recent,
    /// Beginnings that many conversations share.
    pub shared: Mutex<SharedPrefixes>,
    /// By worker, the free tail of each class, in tokens; empty where ends are given up just in time.
    free_tails: ArcSwap<Vec<Vec<u32>>>,
}

impl Feedback {
    /// Nothing learned yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (lessons, waiting) = mpsc::channel(QUEUE);
        let mut tail = Tail::default();
        for (worker, spec) in (0..).zip(&config.workers) {
            tail.admit(WorkerId(worker), spec.capacity);
        }
        Self {
            lessons,
            waiting: Mutex::new(Some(waiting)),
            dropped: AtomicU64::new(0),
            costs: Mutex::new(Costs::new(&config.workers, config.learning.fade)),
            counters: Mutex::new(Counters::new(config.workers.len())),
            conversations: Mutex::new(Conversations::new(config.objective.next_prompt)),
            tail: Mutex::new(tail),
            next_turns: AtomicU64::new(0),
            recent: Recent::default(),
            shared: Mutex::new(SharedPrefixes::new(config.hints.protect_from)),
            free_tails: ArcSwap::default(),
        }
    }

    /// A worker takes a slot.
    pub fn admit(&self, worker: WorkerId, spec: &config::Worker) {
        self.costs.lock().admit(worker, spec);
        self.counters.lock().admit(worker);
        self.tail.lock().admit(worker, spec.capacity);
    }

    /// A worker is gone: what it was says nothing of the others any more.
    pub fn vacate(&self, worker: WorkerId) {
        self.costs.lock().vacate(worker);
        self.counters.lock().admit(worker);
        self.tail.lock().admit(worker, Tokens::ZERO);
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

    /// Leaves word that a turn went to a worker that has little room left. Never waits.
    pub fn sent(&self, worker: WorkerId) {
        self.leave(Taught::Sent(worker));
    }

    /// Leaves word of a stream that began. Never waits.
    pub fn begun(&self, begun: Begun) {
        self.leave(Taught::Begun(begun));
    }

    /// Tokens that the turns store for which a worker should have room.
    #[must_use]
    pub fn next_turns(&self) -> Tokens {
        Tokens(self.next_turns.load(Ordering::Relaxed))
    }

    /// What [`Self::next_turns`] says from now on.
    pub fn publish_next_turns(&self, tokens: Tokens) {
        self.next_turns.store(tokens.0, Ordering::Relaxed);
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

    /// The free tail of a conversation of this class, on a worker that can only be told in requests.
    #[must_use]
    pub fn free_tail(&self, worker: WorkerId, class: TailClass) -> Tokens {
        let tails = self.free_tails.load();
        let of_worker = tails.get(worker.index());
        let tail = of_worker.and_then(|tails| tails.get(class.index()));
        Tokens(tail.map_or(0, |tokens| u64::from(*tokens)))
    }

    /// Publishes the free tails of these workers.
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

    /// An end was given up.
    pub fn trimmed(&self, worker: &Worker, trim: &Trim<Arc<CopyKeys>>, keep: Tokens) {
        self.recent.push(worker.name(), trim, keep);
    }
}
