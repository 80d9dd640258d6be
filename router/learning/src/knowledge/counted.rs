//! A turn whose tokens its worker counted.

use policy::fingerprint::{Chain, MediaPart};
use policy::ids::{PrefixHash, WorkerId};

/// A turn with the token counts reported by its worker.
#[derive(Debug)]
pub struct CountedTurn<'a> {
    pub model: &'a str,
    pub worker: WorkerId,
    /// Conversation, by the hashes of the names that the worker may use for it.
    pub session: Option<[u64; 2]>,
    /// Value of [`policy::evidence::WorkerEvidence::stored`] when the turn was sent.
    pub since: u64,
    /// Keys of the prompt.
    pub prompt: &'a Chain,
    /// Media of the prompt.
    pub media: &'a [MediaPart],
    /// Key of the prompt that the reply continues, and the reply's keys, if the next turn can repeat them.
    pub reply: Option<(Option<PrefixHash>, &'a Chain)>,
    /// Whether the reply continues within the prompt's text: [`policy::fingerprint::ChainBuilder::goes_on`].
    pub goes_on: bool,
    /// Prompt tokens found in the worker's cache, if reported.
    pub cached: Option<u64>,
    pub prompt_tokens: u64,
    pub reply_tokens: u64,
    /// Whether the reply ended by itself, so that its last token is an end mark.
    pub ended: bool,
}
