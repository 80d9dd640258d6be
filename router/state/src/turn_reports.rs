//! Interface through which the request path reports turns to other replicas. The crate `replicas` implements it.

use std::fmt::Debug;
use std::sync::Arc;

use fleet::Worker;
use fleet::clock::Clock;
use policy::fingerprint::Chain;
use policy::ids::PrefixHash;
use policy::residency::Reply;
use policy::units::{Millis, Tokens};

/// Converts an end in a chain of keys into tokens.
pub type TokensAt<'a> = &'a dyn Fn(u64) -> u64;

/// A turn that was sent to a worker.
#[derive(Clone, Copy, Debug)]
pub struct SentTurn<'a> {
    pub worker: &'a Worker,
    /// Predicted prefill time.
    pub prefill: Millis,
    /// Key of the conversation, if known.
    pub session: Option<u64>,
    /// Keys of the prompt.
    pub keys: &'a Chain,
}

/// Reports to other replicas. A report never waits.
pub trait TurnReports: Debug + Send + Sync {
    /// Reports a turn sent to a worker.
    fn sent(
        self: Arc<Self>,
        clock: Clock,
        turn: &SentTurn<'_>,
        tokens: TokensAt<'_>,
    ) -> Box<dyn ReportedTurn>;

    /// Reports that a worker was sent a hint with this epoch.
    fn hinted(&self, worker: &Worker, epoch: u64);

    /// Reports a hint to evict a conversation beyond `keep` tokens first. `keys` are some of its keys, the last first.
    fn trimmed(&self, worker: &Worker, keep: Tokens, keys: &[PrefixHash]);
}

/// A turn that was reported to other replicas. Dropping it reports its end, unless [`answered`](Self::answered) has.
pub trait ReportedTurn: Debug + Send + Sync {
    /// Reports the first token.
    fn begun(&self);

    /// Reports that the worker computed the turn and holds its prompt and reply. Of `total` tokens, the last
    /// `evict_first` are evicted first.
    fn answered(
        self: Box<Self>,
        reply: Option<&Reply<'_>>,
        evict_first: Tokens,
        total: Tokens,
        tokens: TokensAt<'_>,
    );
}
