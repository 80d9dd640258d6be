//! What can be made to go wrong, over `PUT /sim/fault` or [`crate::Engine::set_fault`].

use serde::{Deserialize, Serialize};

/// Everything that is wrong with an engine at the moment. The default is: nothing. Setting a fault replaces the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The process is gone: nothing listens, open connections are cut, requests and cache are lost. Even the answer to
    /// the request that asked for it may be cut.
    pub die: bool,
    /// With `die`: back, with a cold cache, after this many wall milliseconds. Absent: when told over the library.
    pub die_for_ms: Option<u64>,
    /// Takes connections and requests, answers none (but `/sim/…`).
    pub hang: bool,
    /// Multiplies the cost of every prefill and decode step.
    pub slow: f64,
    /// Answers completions with this status.
    pub status: Option<u16>,
    /// The share of completions that `status`, resets, stalls and early ends hit, spread evenly.
    pub share: f64,
    /// Cuts the connection instead of answering a completion.
    pub reset_before_first_byte: bool,
    /// Cuts the connection after this many tokens of a streamed reply, and in the middle of a whole one.
    pub reset_after_tokens: Option<u32>,
    /// Says nothing more after this many tokens of a streamed reply, or the first half of a whole one, and keeps the
    /// connection.
    pub stall_after_tokens: Option<u32>,
    /// Ends a streamed reply after this many tokens as HTTP ends a body, without its last events, as an engine does whose
    /// generator has failed; a whole one after its first half.
    pub end_after_tokens: Option<u32>,
    /// `/health` answers 503.
    pub refuse_health: bool,
    /// Forgets the cache once, now, and says so in the events.
    pub clear_cache: bool,
    /// Batches of cache events are numbered and kept, but nobody is sent them.
    pub drop_events: bool,
    /// Who asks for lost events is not answered.
    pub no_replay: bool,
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            die: false,
            die_for_ms: None,
            hang: false,
            slow: 1.0,
            status: None,
            share: 1.0,
            reset_before_first_byte: false,
            reset_after_tokens: None,
            stall_after_tokens: None,
            end_after_tokens: None,
            refuse_health: false,
            clear_cache: false,
            drop_events: false,
            no_replay: false,
        }
    }
}

impl Fault {
    /// What is wrong with the fault itself.
    pub fn check(&self) -> Result<(), &'static str> {
        if !(self.slow.is_finite() && self.slow > 0.0) {
            return Err("slow must be a finite number above 0");
        }
        if !(0.0..=1.0).contains(&self.share) {
            return Err("share must lie between 0 and 1");
        }
        if self.status.is_some_and(|status| !(400..600).contains(&status)) {
            return Err("status must lie between 400 and 599");
        }
        Ok(())
    }

    /// How a reply breaks off, and after how many tokens.
    pub(crate) fn breaks(&self) -> Option<(u32, Break)> {
        [
            (self.reset_after_tokens, Break::Reset),
            (self.stall_after_tokens, Break::Stall),
            (self.end_after_tokens, Break::End),
        ]
        .into_iter()
        .find_map(|(tokens, how)| Some((tokens?.max(1), how)))
    }

    /// Whether the completion numbered `number` is among the share: exactly ⌊share·n⌋ of any first n.
    pub(crate) fn hits(&self, number: u64) -> bool {
        let before = (number as f64 * self.share).floor();
        ((number + 1) as f64 * self.share).floor() > before
    }
}

/// How a reply breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// The connection is cut.
    Reset,
    /// Nothing more comes.
    Stall,
    /// The body ends as if it were whole.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_hits_that_share() {
        for share in [0.0, 0.1, 0.5, 1.0] {
            let fault = Fault {
                share,
                ..Fault::default()
            };
            let hits = (0..1000).filter(|&number| fault.hits(number)).count();
            assert!((hits as f64 - 1000.0 * share).abs() <= 1.0, "{share}: {hits}");
        }
    }
}
