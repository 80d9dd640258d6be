//! What a worker should be told, beside its requests: queued, coalesced, lost without harm.
//!
//! A hint is about one conversation on one worker. A newer one replaces an older one that was not yet sent, except that
//! protection of a shared beginning and the fate of the rest do not replace each other. The queue is bounded; when it is
//! full the oldest hint is dropped, since the newest say more about what the worker holds now. The objective is one
//! value: only the last one that differs from what the worker was told waits.
//!
//! One task per worker sends what waits here (`upkeep::hints`), one message after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use policy::units::Tokens;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Hints that may wait for one worker.
const QUEUE: usize = 1024;
/// Hints in one message.
const BATCH: usize = 256;
/// Share by which an objective must differ from the one that the worker was told.
const NEWS: f64 = 0.05;

/// How far ahead of this clock another replica's number may be: an hour.
const MOST_AHEAD_US: u64 = 3_600_000_000;

/// What is hinted. Each is idempotent, and says how much of the conversation's beginning it leaves alone or protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keep the first tokens of the conversation; the rest may go first.
    Trim {
        /// Tokens to keep.
        keep: Tokens,
    },
    /// The conversation is over.
    Ended {
        /// Tokens that others share.
        keep: Tokens,
    },
    /// The first tokens are used by many conversations: they are no dead weight, whoever said so.
    Protect {
        /// Tokens that others share.
        keep: Tokens,
    },
}

impl Kind {
    /// The name on the wire and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trim { .. } => "trim",
            Self::Ended { .. } => "ended",
            Self::Protect { .. } => "protect",
        }
    }

    fn keep(self) -> Tokens {
        let (Self::Trim { keep } | Self::Ended { keep } | Self::Protect { keep }) = self;
        keep
    }

    fn protects(self) -> bool {
        matches!(self, Self::Protect { .. })
    }
}

/// A hint that waits to be sent.
#[derive(Clone, Debug)]
pub struct Hint {
    /// The conversation, as the worker knows it.
    pub session: Arc<str>,
    /// What about it.
    pub kind: Kind,
    /// Its number on this worker: of two about one conversation the higher one counts.
    pub epoch: u64,
}

impl Hint {
    /// As it goes over the wire.
    #[must_use]
    pub fn json(&self, ttl_ms: f64) -> Value {
        json!({
            "kind": self.kind.as_str(), "session_id": &*self.session, "keep_tokens": self.kind.keep().0,
            "epoch": self.epoch, "ttl_ms": ttl_ms,
        })
    }
}

/// The budget for requests that carry none of their own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Told {
    /// ξ: uncached tokens that fit in the objective.
    pub xi_tokens: f64,
    /// Q̂.
    pub next_prompt_tokens: u64,
}

impl Told {
    /// Tokens at the end of a conversation that may go first by it.
    #[must_use]
    pub fn tail(&self) -> Tokens {
        Tokens((self.xi_tokens - self.next_prompt_tokens as f64).max(0.0) as u64)
    }

    fn differs(&self, other: &Self) -> bool {
        let differs = |a: f64, b: f64| (a - b).abs() > NEWS * a.abs().max(b.abs());
        differs(self.xi_tokens, other.xi_tokens)
            || differs(self.next_prompt_tokens as f64, other.next_prompt_tokens as f64)
    }
}

/// What waits for one worker.
#[derive(Debug, Default)]
pub struct HintQueue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Hint>,
    objective: Option<Told>,
    told: Option<Told>,
    epoch: u64,
}

impl State {
    /// Grows with each statement, and from router to router: a worker outlives the routers that speak to it, and of two
    /// that speak at once the one that spoke last counts. Microseconds since 1970, or one more than the last.
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
    /// Another replica has told the worker something under this number: what it is told from here comes after. No clock is
    /// believed that is further ahead than [`MOST_AHEAD_US`]: a worker that was once told such a number would hear nobody again.
    pub fn told_elsewhere(&self, epoch: u64) {
        if epoch <= unix_us().saturating_add(MOST_AHEAD_US) {
            let mut state = self.state.lock();
            state.epoch = state.epoch.max(epoch);
        }
    }

    /// Queues a hint, replacing one about the same conversation.
    pub fn push(&self, session: Arc<str>, kind: Kind) {
        let mut state = self.state.lock();
        let epoch = state.next_epoch();
        let same = |hint: &Hint| hint.session == session && hint.kind.protects() == kind.protects();
        if let Some(at) = state.waiting.iter().position(same) {
            // To the end: of two hints about a conversation the worker takes the one with the higher epoch only.
            state.waiting.remove(at);
        } else if state.waiting.len() == QUEUE {
            state.waiting.pop_front();
        }
        state.waiting.push_back(Hint { session, kind, epoch });
        drop(state);
        self.wake.notify_one();
    }

    /// Queues the objective if it is news to the worker. Returns whether it is.
    pub fn objective(&self, objective: Told) -> bool {
        let mut state = self.state.lock();
        let news = state.told.is_none_or(|told| objective.differs(&told));
        state.objective = news.then_some(objective);
        drop(state);
        if news {
            self.wake.notify_one();
        }
        news
    }

    /// What the worker was told last, if anything.
    #[must_use]
    pub fn told(&self) -> Option<Told> {
        self.state.lock().told
    }

    /// The worker took an objective, or came back and has none.
    pub fn took(&self, objective: Option<Told>) {
        self.state.lock().told = objective;
    }

    /// Hints that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Waits until something is queued.
    pub async fn queued(&self) {
        self.wake.notified().await;
    }

    /// Takes the objective that waits, with its epoch.
    #[must_use]
    pub fn take_objective(&self) -> Option<(Told, u64)> {
        let mut state = self.state.lock();
        let objective = state.objective.take()?;
        Some((objective, state.next_epoch()))
    }

    /// Takes the oldest hints, as many as fit a message.
    #[must_use]
    pub fn take(&self) -> Vec<Hint> {
        let mut state = self.state.lock();
        let batch = state.waiting.len().min(BATCH);
        state.waiting.drain(..batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Tokens = Tokens::ZERO;

    fn sessions(batch: &[Hint]) -> Vec<&str> {
        batch.iter().map(|hint| &*hint.session).collect()
    }

    #[test]
    fn a_newer_hint_replaces_an_older_one_and_epochs_grow() {
        let queue = HintQueue::default();
        queue.push("a".into(), Kind::Trim { keep: Tokens(5) });
        queue.push("b".into(), Kind::Ended { keep: ALL });
        queue.push("a".into(), Kind::Ended { keep: ALL });
        let batch = queue.take();
        assert_eq!(sessions(&batch), ["b", "a"]);
        assert_eq!(batch[1].kind, Kind::Ended { keep: ALL });
        assert!(batch[1].epoch > batch[0].epoch);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn what_another_replica_has_told_comes_before_but_no_clock_that_is_far_ahead_is_believed() {
        let queue = HintQueue::default();
        let ahead = unix_us() + 1_000_000;
        queue.told_elsewhere(ahead);
        queue.push("a".into(), Kind::Ended { keep: ALL });
        assert_eq!(queue.take()[0].epoch, ahead + 1);
        for absurd in [u64::MAX, unix_us() + 2 * MOST_AHEAD_US] {
            queue.told_elsewhere(absurd);
        }
        queue.push("b".into(), Kind::Ended { keep: ALL });
        assert_eq!(queue.take()[0].epoch, ahead + 2);
    }

    #[test]
    fn protection_stands_beside_what_becomes_of_the_rest() {
        let queue = HintQueue::default();
        queue.push("a".into(), Kind::Ended { keep: ALL });
        queue.push("a".into(), Kind::Protect { keep: Tokens(64) });
        queue.push("a".into(), Kind::Protect { keep: Tokens(128) });
        let batch = queue.take();
        let kinds: Vec<Kind> = batch.iter().map(|hint| hint.kind).collect();
        assert_eq!(
            kinds,
            [Kind::Ended { keep: ALL }, Kind::Protect { keep: Tokens(128) }]
        );
        assert!(batch.is_sorted_by_key(|hint| hint.epoch));
    }

    #[test]
    fn a_full_queue_drops_its_oldest() {
        let queue = HintQueue::default();
        for i in 0..QUEUE + 1 {
            queue.push(i.to_string().into(), Kind::Ended { keep: ALL });
        }
        assert_eq!(queue.state.lock().waiting.len(), QUEUE);
        assert_eq!(queue.take()[0].session, "1".into());
    }

    #[test]
    fn what_a_new_router_says_is_newer_than_what_the_old_one_said() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let queue = HintQueue::default();
        queue.push("a".into(), Kind::Ended { keep: ALL });
        assert!(u128::from(queue.take()[0].epoch) >= before.as_micros());
    }

    #[test]
    fn messages_are_bounded() {
        let queue = HintQueue::default();
        for i in 0..BATCH + 1 {
            queue.push(i.to_string().into(), Kind::Ended { keep: ALL });
        }
        assert_eq!(queue.take().len(), BATCH);
        assert_eq!(queue.take().len(), 1);
    }

    #[test]
    fn an_objective_is_told_once_and_again_only_when_it_changed() {
        let queue = HintQueue::default();
        let told = |xi_tokens| Told {
            xi_tokens,
            next_prompt_tokens: 200,
        };
        assert!(queue.objective(told(1000.0)));
        let (first, epoch) = queue.take_objective().unwrap();
        queue.took(Some(first));
        assert!(!queue.objective(told(1040.0)));
        assert!(queue.take_objective().is_none());
        assert!(queue.objective(told(1200.0)));
        assert!(!queue.objective(told(1010.0)), "it went back before it was sent");
        assert!(queue.take_objective().is_none());
        assert!(queue.objective(told(0.0)));
        assert!(queue.take_objective().unwrap().1 > epoch);
        queue.took(None);
        assert!(queue.objective(told(1000.0)), "it came back knowing nothing");
    }
}
