//! A worker's score, term by term, as a table for the decision, its record, the explain API and the console. A term is
//! added here, and computed and charged in [`super::tail`].

use schemars::JsonSchema;
use serde::Serialize;

use crate::ids::WorkerId;
use crate::units::{Millis, Tokens};

macro_rules! terms {
    ($($(#[doc = $help:literal])+ $field:ident = $initial:literal;)+) => {
        /// One worker's score, term by term. Costs in milliseconds.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        pub struct Terms {
            /// The worker that is scored.
            pub worker: WorkerId,
            /// Whether the worker could be chosen.
            pub ready: bool,
            /// h: cached prompt tokens.
            pub cached: Tokens,
            /// u: prompt tokens to compute.
            pub uncached: Tokens,
            $($(#[doc = $help])+ pub $field: f64,)+
            /// The value that the policy minimised; milliseconds under `tail`, the policy's own measure elsewhere.
            pub score: f64,
        }

        impl Terms {
            /// Returns the terms of a worker that is not ready, with an infinite score.
            #[must_use]
            pub const fn unscored(worker: WorkerId) -> Self {
                Self {
                    worker,
                    ready: false,
                    cached: Tokens::ZERO,
                    uncached: Tokens::ZERO,
                    $($field: $initial,)+
                    score: f64::INFINITY,
                }
            }

            /// Returns the terms that are plain numbers.
            #[must_use]
            pub const fn costs(&self) -> Costs<f64> {
                Costs { $($field: self.$field),+ }
            }
        }

        /// The terms that are plain numbers, in the precision `T`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
        pub struct Costs<T> {
            $($(#[doc = $help])+ pub $field: T,)+
        }

        impl<T: Copy> Costs<T> {
            /// Creates terms that all have this value.
            #[must_use]
            pub const fn all(value: T) -> Self {
                Self { $($field: value),+ }
            }

            /// Returns the terms with `change` applied to each.
            #[must_use]
            pub fn map<U>(self, change: impl Fn(T) -> U) -> Costs<U> {
                Costs { $($field: change(self.$field)),+ }
            }
        }
    };
}

terms! {
    /// Predicted time before its own prefill starts.
    wait_ms = 0.0;
    /// α·u + γ·u·(h + u/2).
    marginal_ms = 0.0;
    /// β.
    fixed_ms = 0.0;
    /// Time to first token beyond queue and prefill; zero where β is measured by the router's own clock.
    overhead_ms = 0.0;
    /// κ: the cost of a millisecond of prefill, to this turn and to those behind it.
    kappa = 1.0;
    /// Predicted milliseconds beyond the objective, times the `slo` weight.
    slo_ms = 0.0;
    /// Cost of making this worker the conversation's home.
    home_ms = 0.0;
    /// Credit for being the conversation's last worker (negative).
    affinity_ms = 0.0;
    /// Random tie-breaking.
    spread_ms = 0.0;
}

impl Terms {
    /// Returns the predicted time to first token, which is later compared with the observed one.
    #[must_use]
    pub fn predicted_ttft(&self) -> Millis {
        Millis(self.wait_ms + self.overhead_ms) + self.prefill()
    }

    /// Returns the predicted prefill time.
    #[must_use]
    pub fn prefill(&self) -> Millis {
        Millis(self.marginal_ms + self.fixed_ms)
    }
}

/// One part of a cost: see [`super::parts`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Part {
    /// Name of the part.
    pub name: &'static str,
    /// Milliseconds of cost.
    pub ms: f64,
}
