//! Faults that can be injected with `PUT /sim/fault` or [`crate::Engine::set_fault`].

use serde::{Deserialize, Serialize};

/// All active faults of an engine; none by default. Setting a fault replaces the previous one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The process dies: nothing listens, open connections are cut, requests and cache are lost. This may cut the
    /// response to the request that set the fault.
    pub die: bool,
    /// With `die`: restart with a cold cache after this many wall milliseconds. Without it, the engine restarts when
    /// the fault is cleared through the library.
    pub die_for_ms: Option<u64>,
    /// Accepts connections and requests but answers only `/sim/…`.
    pub hang: bool,
    /// Multiplies the cost of every prefill and decode step.
    pub slow: f64,
    /// Status returned for completions.
    pub status: Option<u16>,
    /// The share of completions affected by `status`, resets, stalls and early ends, spread evenly.
    pub share: f64,
    /// Cuts the connection instead of answering a completion.
    pub reset_before_first_byte: bool,
    /// Cuts the connection after this many tokens of a streamed reply, or in the middle of an unstreamed one.
    pub reset_after_tokens: Option<u32>,
    /// Stops sending after this many tokens of a streamed reply, or after half of an unstreamed one, with the
    /// connection open.
    pub stall_after_tokens: Option<u32>,
    /// Ends the HTTP body of a streamed reply properly after this many tokens, without its last events, as an engine
    /// does when its generator fails; of an unstreamed reply after half.
    pub end_after_tokens: Option<u32>,
    /// Answers `/health` with 503.
    pub refuse_health: bool,
    /// Clears the cache once, when the fault is set, and publishes a clear.
    pub clear_cache: bool,
    /// Numbers and keeps cache events without publishing them.
    pub drop_events: bool,
    /// Leaves replay requests unanswered.
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
    /// Checks the values. Fails with the problem of the first invalid one.
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

    /// Returns the number of tokens after which a reply is cut short, and how.
    pub(crate) fn breaks(&self) -> Option<(u32, Break)> {
        [
            (self.reset_after_tokens, Break::Reset),
            (self.stall_after_tokens, Break::Stall),
            (self.end_after_tokens, Break::End),
        ]
        .into_iter()
        .find_map(|(tokens, how)| Some((tokens?.max(1), how)))
    }

    /// Returns whether the completion numbered `number` is affected: exactly ⌊share·n⌋ of any first n are.
    pub(crate) fn hits(&self, number: u64) -> bool {
        let before = (number as f64 * self.share).floor();
        ((number + 1) as f64 * self.share).floor() > before
    }
}

/// The way in which a reply is cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    Reset,
    /// Nothing more is sent on the open connection.
    Stall,
    /// The body ends as if it were complete.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_affects_exactly_that_share() {
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
