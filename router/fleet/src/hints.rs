//! Queue of hints that a worker gets outside of requests: bounded and coalesced; losing one is harmless.
//!
//! A newer hint about a conversation replaces an older unsent one; [`HintKind::Protect`] and the other kinds do not
//! replace each other. When the queue is full, the oldest is dropped, since the newest say more about what the worker
//! holds now. Of objectives only the latest is queued, if it differs from the last one sent or before that one expires.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use policy::slo::evict_first_tail;
use policy::slo::feedback::WorkerObjective;
use policy::units::{Millis, Tokens};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

const QUEUE: usize = 1024;
const BATCH: usize = 256;
/// Relative difference from the last objective sent from which a new one is sent.
const NEWS: f64 = 0.1;
/// Time for which an objective is in force. An engine that hears nothing for so long is LRU again.
pub const OBJECTIVE_TTL: Millis = Millis(30_000.0);
/// Age at which an accepted objective is sent again although nothing has changed.
pub const OBJECTIVE_REFRESH: Millis = Millis(OBJECTIVE_TTL.0 / 3.0);

/// Largest accepted lead of another replica's epoch over this clock: an hour.
const MOST_AHEAD_US: u64 = 3_600_000_000;

/// Content of a hint. A hint is idempotent and states how many leading tokens of the conversation it keeps or protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// All but the first tokens of the conversation may be evicted first.
    Trim {
        /// Tokens to keep.
        keep: Tokens,
    },
    /// The conversation is over.
    Ended {
        /// Leading tokens that other conversations share.
        keep: Tokens,
    },
    /// The conversation goes on at another worker.
    Moved {
        /// Leading tokens that other conversations share.
        keep: Tokens,
    },
    /// Many conversations use the first tokens: the worker removes evict-first marks from them.
    Protect {
        /// Leading tokens that other conversations share.
        keep: Tokens,
    },
}

impl HintKind {
    /// Returns the name on the wire. An engine treats a conversation that moved as one that ended.
    fn on_the_wire(self) -> &'static str {
        match self {
            Self::Moved { .. } => "ended",
            other => other.as_str(),
        }
    }

    /// Returns the name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trim { .. } => "trim",
            Self::Ended { .. } => "ended",
            Self::Moved { .. } => "moved",
            Self::Protect { .. } => "protect",
        }
    }

    fn keep(self) -> Tokens {
        let (Self::Trim { keep } | Self::Ended { keep } | Self::Moved { keep } | Self::Protect { keep }) =
            self;
        keep
    }

    fn protects(self) -> bool {
        matches!(self, Self::Protect { .. })
    }
}

/// A queued hint.
#[derive(Clone, Debug)]
pub struct Hint {
    /// Name of the conversation on the worker.
    pub session: Arc<str>,
    pub kind: HintKind,
    /// Number of the hint on this worker: of two hints about one conversation the one with the higher number counts.
    pub epoch: u64,
}

impl Hint {
    /// Returns the hint's form on the wire.
    pub fn json(&self, ttl_ms: f64) -> Value {
        json!({
            "kind": self.kind.on_the_wire(), "session_id": &*self.session, "keep_tokens": self.kind.keep().0,
            "epoch": self.epoch, "ttl_ms": ttl_ms,
        })
    }
}

/// Objective sent to a worker, which applies to requests without a separate hint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SentObjective {
    /// ξ and what it follows from.
    #[serde(flatten)]
    pub objective: WorkerObjective,
    /// Q̂: tokens that the next prompt is expected to add.
    pub next_prompt_tokens: u64,
    /// Whether the engine evicts by T-LRU with this ξ; otherwise by hints and LRU alone.
    pub t_lru: bool,
}

impl SentObjective {
    /// Returns the tokens at the end of a conversation that may be evicted first under this objective.
    pub fn tail(&self) -> Tokens {
        match self.t_lru {
            true => evict_first_tail(self.objective.xi_tokens, Tokens(self.next_prompt_tokens)),
            false => Tokens::ZERO,
        }
    }

    fn differs(&self, other: &Self) -> bool {
        let differs = |a: f64, b: f64| (a - b).abs() > NEWS * a.abs().max(b.abs());
        self.t_lru != other.t_lru
            || differs(self.objective.xi_tokens, other.objective.xi_tokens)
            || differs(
                self.objective.ttft_objective_ms,
                other.objective.ttft_objective_ms,
            )
            || differs(self.next_prompt_tokens as f64, other.next_prompt_tokens as f64)
    }
}

/// An objective that the worker accepted, and when.
#[derive(Clone, Debug)]
struct Accepted {
    objective: Arc<SentObjective>,
    at: Millis,
}

impl Accepted {
    fn age(&self, now: Millis) -> Millis {
        now.saturating_sub(self.at)
    }
}

/// Queue of hints for one worker.
#[derive(Debug, Default)]
pub struct HintQueue {
    state: Mutex<HintQueueState>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct HintQueueState {
    waiting: VecDeque<Hint>,
    objective: Option<Arc<SentObjective>>,
    told: Option<Accepted>,
    epoch: u64,
}

impl HintQueueState {
    /// Returns the next epoch, which increases across routers too: a worker outlives the routers, and of two that send
    /// at once the later one counts. Microseconds since 1970, or one more than the last.
    fn next_epoch(&mut self) -> u64 {
        self.epoch = self.epoch.saturating_add(1).max(unix_us());
        self.epoch
    }
}

fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

impl HintQueue {
    /// Advances the epoch past one that another replica has sent to this worker. Ignores epochs more than
    /// [`MOST_AHEAD_US`] ahead of this clock, after which the worker would ignore all later hints.
    pub fn observe_epoch(&self, epoch: u64) {
        if epoch <= unix_us().saturating_add(MOST_AHEAD_US) {
            let mut state = self.state.lock();
            state.epoch = state.epoch.max(epoch);
        }
    }

    /// Queues a hint, which replaces one of the same sort about the same conversation.
    pub fn push(&self, session: Arc<str>, kind: HintKind) {
        let mut state = self.state.lock();
        let epoch = state.next_epoch();
        let same = |hint: &Hint| hint.session == session && hint.kind.protects() == kind.protects();
        if let Some(at) = state.waiting.iter().position(same) {
            // Moves to the end: of two hints about a conversation the worker takes only the one with the higher epoch.
            state.waiting.remove(at);
        } else if state.waiting.len() == QUEUE {
            state.waiting.pop_front();
        }
        state.waiting.push_back(Hint { session, kind, epoch });
        drop(state);
        self.wake.notify_one();
    }

    /// Queues the objective if it differs from the last one that the worker accepted, or if that one is
    /// [`OBJECTIVE_REFRESH`] old. Returns whether it is queued.
    pub fn objective(&self, now: Millis, objective: SentObjective) -> bool {
        let mut state = self.state.lock();
        let is_news =
            |told: &Accepted| objective.differs(&told.objective) || told.age(now) >= OBJECTIVE_REFRESH;
        let is_news = state.told.as_ref().is_none_or(is_news);
        state.objective = is_news.then(|| Arc::new(objective));
        drop(state);
        if is_news {
            self.wake.notify_one();
        }
        is_news
    }

    /// Returns the last objective that the worker accepted, while it is in force.
    #[must_use]
    pub fn sent_objective(&self, now: Millis) -> Option<Arc<SentObjective>> {
        let state = self.state.lock();
        let told = state.told.as_ref().filter(|told| told.age(now) < OBJECTIVE_TTL)?;
        Some(Arc::clone(&told.objective))
    }

    /// Returns the tail that the engine evicts first by the last objective that it accepted: none once that is no longer
    /// in force; `None` if the engine never had one.
    #[must_use]
    pub fn sent_tail(&self, now: Millis) -> Option<Tokens> {
        let state = self.state.lock();
        let told = state.told.as_ref()?;
        let is_in_force = told.age(now) < OBJECTIVE_TTL;
        Some(if is_in_force {
            told.objective.tail()
        } else {
            Tokens::ZERO
        })
    }

    /// Records that the worker accepted an objective.
    pub fn took(&self, now: Millis, objective: Arc<SentObjective>) {
        self.state.lock().told = Some(Accepted { objective, at: now });
    }

    /// Records that the worker has no objective, as after a restart.
    pub fn restarted(&self) {
        self.state.lock().told = None;
    }

    /// Returns the number of queued hints.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits until something is queued.
    pub async fn queued(&self) {
        self.wake.notified().await;
    }

    /// Takes the queued objective, and the epoch for it.
    #[must_use]
    pub fn take_objective(&self) -> Option<(Arc<SentObjective>, u64)> {
        let mut state = self.state.lock();
        let objective = state.objective.take()?;
        Some((objective, state.next_epoch()))
    }

    /// Takes the oldest hints, as many as fit in one message.
    #[must_use]
    pub fn take(&self) -> Vec<Hint> {
        let mut state = self.state.lock();
        let batch = state.waiting.len().min(BATCH);
        state.waiting.drain(..batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use policy::cost::PrefillCost;
    use policy::slo::feedback::ObservedTurns;

    use super::*;

    const ALL: Tokens = Tokens::ZERO;

    fn sessions(batch: &[Hint]) -> Vec<&str> {
        batch.iter().map(|hint| &*hint.session).collect()
    }

    #[test]
    fn a_newer_hint_replaces_an_older_one_and_epochs_grow() {
        let queue = HintQueue::default();
        queue.push("a".into(), HintKind::Trim { keep: Tokens(5) });
        queue.push("b".into(), HintKind::Ended { keep: ALL });
        queue.push("a".into(), HintKind::Ended { keep: ALL });
        let batch = queue.take();
        assert_eq!(sessions(&batch), ["b", "a"]);
        assert_eq!(batch[1].kind, HintKind::Ended { keep: ALL });
        assert!(batch[1].epoch > batch[0].epoch);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn what_another_replica_has_told_comes_before_but_no_clock_that_is_far_ahead_is_believed() {
        let queue = HintQueue::default();
        let ahead = unix_us() + 1_000_000;
        queue.observe_epoch(ahead);
        queue.push("a".into(), HintKind::Ended { keep: ALL });
        assert_eq!(queue.take()[0].epoch, ahead + 1);
        for absurd in [u64::MAX, unix_us() + 2 * MOST_AHEAD_US] {
            queue.observe_epoch(absurd);
        }
        queue.push("b".into(), HintKind::Ended { keep: ALL });
        assert_eq!(queue.take()[0].epoch, ahead + 2);
    }

    #[test]
    fn protection_stands_beside_what_becomes_of_the_rest() {
        let queue = HintQueue::default();
        queue.push("a".into(), HintKind::Ended { keep: ALL });
        queue.push("a".into(), HintKind::Protect { keep: Tokens(64) });
        queue.push("a".into(), HintKind::Protect { keep: Tokens(128) });
        let batch = queue.take();
        let kinds: Vec<HintKind> = batch.iter().map(|hint| hint.kind).collect();
        assert_eq!(
            kinds,
            [
                HintKind::Ended { keep: ALL },
                HintKind::Protect { keep: Tokens(128) }
            ]
        );
        assert!(batch.is_sorted_by_key(|hint| hint.epoch));
    }

    #[test]
    fn a_full_queue_drops_its_oldest() {
        let queue = HintQueue::default();
        for i in 0..QUEUE + 1 {
            queue.push(i.to_string().into(), HintKind::Ended { keep: ALL });
        }
        assert_eq!(queue.state.lock().waiting.len(), QUEUE);
        assert_eq!(queue.take()[0].session, "1".into());
    }

    #[test]
    fn what_a_new_router_says_is_newer_than_what_the_old_one_said() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let queue = HintQueue::default();
        queue.push("a".into(), HintKind::Ended { keep: ALL });
        assert!(u128::from(queue.take()[0].epoch) >= before.as_micros());
    }

    #[test]
    fn messages_are_bounded() {
        let queue = HintQueue::default();
        for i in 0..BATCH + 1 {
            queue.push(i.to_string().into(), HintKind::Ended { keep: ALL });
        }
        assert_eq!(queue.take().len(), BATCH);
        assert_eq!(queue.take().len(), 1);
    }

    fn told(xi_tokens: f64) -> SentObjective {
        let objective = WorkerObjective {
            xi_tokens,
            ttft_objective_ms: 500.0,
            mix: Vec::new(),
            observed: ObservedTurns::default(),
            cost: PrefillCost::linear(0.1, 0.0),
        };
        SentObjective {
            objective,
            next_prompt_tokens: 200,
            t_lru: true,
        }
    }

    #[test]
    fn an_objective_is_told_once_and_again_when_it_changed() {
        let (queue, now) = (HintQueue::default(), Millis::ZERO);
        assert!(queue.objective(now, told(1000.0)));
        let (first, epoch) = queue.take_objective().unwrap();
        queue.took(now, first);
        assert!(!queue.objective(now, told(1040.0)));
        assert!(queue.take_objective().is_none());
        assert!(queue.objective(now, told(1200.0)));
        assert!(
            !queue.objective(now, told(1010.0)),
            "it went back before it was sent"
        );
        assert!(queue.take_objective().is_none());
        assert!(queue.objective(now, told(0.0)));
        assert!(queue.take_objective().unwrap().1 > epoch);
        let informs = SentObjective {
            t_lru: false,
            ..told(1000.0)
        };
        assert!(queue.objective(now, informs), "the rule changed");
        queue.restarted();
        assert!(queue.objective(now, told(1000.0)), "it came back knowing nothing");
    }

    #[test]
    fn an_objective_is_told_again_before_it_expires_and_is_in_force_until_then() {
        let queue = HintQueue::default();
        assert_eq!(queue.sent_tail(Millis::ZERO), None);
        queue.took(Millis::ZERO, Arc::new(told(1000.0)));
        for (at, is_due, tail) in [(9_999.0, false, 800), (10_000.0, true, 800), (30_000.0, true, 0)] {
            assert_eq!(queue.objective(Millis(at), told(1000.0)), is_due, "{at}");
            assert_eq!(queue.sent_tail(Millis(at)), Some(Tokens(tail)), "{at}");
            assert_eq!(queue.sent_objective(Millis(at)).is_some(), tail > 0, "{at}");
        }
    }
}
