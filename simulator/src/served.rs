//! Turns as a worker's cache is told of them.

use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

use crate::trace::ClassId;

/// A turn that was just served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn's number within the conversation.
    pub turn: u32,
    /// Traffic class.
    pub class: ClassId,
    /// Arrival time. Times never decrease.
    pub at: Millis,
    /// Tokens that the prompt added to the history.
    pub prompt: Tokens,
    /// L: the conversation's tokens after the turn, response included.
    pub length: Tokens,
    /// The next turn, for policies with foresight.
    pub future: Future,
}

/// An oracle's knowledge of a conversation's next turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Future {
    /// No foresight.
    #[default]
    Unknown,
    /// There is no next turn.
    Last,
    /// There is a next turn.
    Next {
        /// Unique position of the next turn in the order of all turns, greater than this turn's.
        position: u64,
        /// Tokens that the next prompt adds.
        prompt: Tokens,
    },
}
