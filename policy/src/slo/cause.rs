//! The cause of a late turn: its time to first token, decomposed.
//!
//! A turn that arrives at 0, is sent at `a` and has its first token at `T` spent `s = T − a` at the worker. The parts
//! below add up to `T`. They are computed in this order, each between zero and what the earlier ones leave:
//!
//! ```text
//! network = s − E                         E: the engine's own time to first token, where reported in a stream; else s
//! queue   = (a + q)·(1 − σ)               q: the engine's own queue time, where reported; else the predicted wait
//! slow    = (a + q)·σ                     σ: share of the queue that slow workers cause, else 0
//! miss    = c(u, h) − c(u − m, h + m)     m = h⁺ − h: tokens that could have been cached, and were not
//! prompt  = c(u − m, h + m)               tokens that no worker could have cached
//! engine  = remainder                     slower than the fitted cost, of a response that streams; from a slow worker,
//!                                         this is added to `slow`
//! whole   = remainder                     the rest of the response, where its first token comes with its last
//! ```
//!
//! `u` and `h` are the prompt's uncached and cached tokens as the worker counted them (as predicted where it does not
//! report them), `c` is `β + α·u + γ·u·(h + u/2)` at the worker's fitted cost, which is the baseline of a slow worker
//! ([`crate::estimate::Slowness`]), and `h⁺` is the longest part of the prompt that some worker was believed to hold or
//! that the conversation's last turn stored.
//!
//! The cause of a violation is `prompt` where that part alone exceeds the objective: no choice and no cache would have
//! met it. Otherwise it is the longest of the other parts.

use serde::{Deserialize, Serialize};

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// The cause of a missed objective. A bounded set: it is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The turn waited in the router, or for other prefills.
    Queue,
    /// Tokens that could have been cached had to be computed.
    Miss,
    /// A worker that has become slow, or the load that it leaves to the others, delayed the turn.
    SlowWorker,
    /// The engine took longer than its fitted cost.
    Engine,
    /// Time passed that the engine does not account for.
    Network,
    /// The turn's new tokens alone take longer than the objective.
    Prompt,
    /// The response was not streamed, so the first token came with the last.
    Whole,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::Queue,
        Self::Miss,
        Self::SlowWorker,
        Self::Engine,
        Self::Network,
        Self::Prompt,
        Self::Whole,
    ];

    /// Returns the name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Miss => "miss",
            Self::SlowWorker => "slow_worker",
            Self::Engine => "engine",
            Self::Network => "network",
            Self::Prompt => "prompt",
            Self::Whole => "whole",
        }
    }
}

/// Times reported by an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineTimes {
    /// Time until the prefill began.
    pub queue: Millis,
    /// Time from then to the first token.
    pub prefill: Millis,
}

/// A turn whose first token has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstToken {
    /// `T`: time from the turn's arrival to its first token.
    pub ttft: Millis,
    /// `a`: time from the turn's arrival until it was sent to the worker that answered.
    pub held: Millis,
    /// Predicted wait before the prefill, at the time of sending.
    pub wait: Millis,
    /// Times reported by the engine.
    pub engine: Option<EngineTimes>,
    /// Prompt tokens.
    pub prompt: Tokens,
    /// `h`: cached prompt tokens.
    pub cached: Tokens,
    /// `h⁺`: prompt tokens that could have been cached.
    pub cacheable: Tokens,
    /// The worker's fitted cost; of a slow worker, its baseline.
    pub cost: PrefillCost,
    /// Whether the worker is slow.
    pub is_slow: bool,
    /// σ: share of the queue that slow workers cause.
    pub slowed_share: f64,
    /// Whether the response streams.
    pub streamed: bool,
}

/// The parts of a time to first token. They add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// Wait in the router and for other prefills.
    pub queue_ms: f64,
    /// Prefill of tokens that could have been cached.
    pub miss_ms: f64,
    /// Time that slow workers cost: of the queue, and of this worker's prefill if it is slow.
    pub slow_worker_ms: f64,
    /// Time beyond the engine's fitted cost.
    pub engine_ms: f64,
    /// Time beyond what the engine reports.
    pub network_ms: f64,
    /// Prefill of tokens that no worker could have cached.
    pub prompt_ms: f64,
    /// The rest of a response that was not streamed.
    pub whole_ms: f64,
}

impl Parts {
    /// Decomposes a time to first token.
    #[must_use]
    pub fn of(turn: &FirstToken) -> Self {
        let held = turn.held.0.clamp(0.0, turn.ttft.0.max(0.0));
        let mut left = (turn.ttft.0 - held).max(0.0);
        let mut take = |ms: f64| {
            let taken = ms.clamp(0.0, left);
            left -= taken;
            taken
        };
        // Without streaming, the engine's first token is not the one observed here.
        let engine = turn.engine.filter(|_| turn.streamed);
        let said = engine.map(|engine| engine.queue.0 + engine.prefill.0);
        let network_ms = said.map_or(0.0, |said| take(turn.ttft.0 - held - said));
        let waited = take(turn.engine.map_or(turn.wait, |engine| engine.queue).0);
        let cached = turn.cached.min(turn.prompt);
        let missed = turn.missed();
        let at_best = cached + missed;
        let cost = |cached| turn.cost.prefill(turn.prompt.saturating_sub(cached), cached).0;
        let miss_ms = take(cost(cached) - cost(at_best));
        let prompt_ms = take(cost(at_best));
        let rest = take(f64::INFINITY);
        let slowed_ms = (held + waited) * turn.slowed_share.clamp(0.0, 1.0);
        let (slower_ms, engine_ms, whole_ms) = match (turn.streamed, turn.is_slow) {
            (false, _) => (0.0, 0.0, rest),
            (true, true) => (rest, 0.0, 0.0),
            (true, false) => (0.0, rest, 0.0),
        };
        Self {
            queue_ms: held + waited - slowed_ms,
            miss_ms,
            slow_worker_ms: slowed_ms + slower_ms,
            engine_ms,
            network_ms,
            prompt_ms,
            whole_ms,
        }
    }

    /// Returns the cause of lateness of a late turn.
    #[must_use]
    pub fn cause(&self, objective: Millis) -> Cause {
        if self.prompt_ms > objective.0 {
            return Cause::Prompt;
        }
        let others = [
            (Cause::Miss, self.miss_ms),
            (Cause::SlowWorker, self.slow_worker_ms),
            (Cause::Engine, self.engine_ms),
            (Cause::Network, self.network_ms),
            (Cause::Whole, self.whole_ms),
        ];
        let longest = others
            .into_iter()
            .fold((Cause::Queue, self.queue_ms), |longest, other| {
                if other.1 > longest.1 { other } else { longest }
            });
        longest.0
    }
}

impl FirstToken {
    /// Returns `m`: tokens that could have been cached and were not. A prompt's last token is always computed.
    #[must_use]
    pub fn missed(&self) -> Tokens {
        let most = self.prompt.saturating_sub(Tokens(1));
        self.cacheable.min(most).saturating_sub(self.cached)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OBJECTIVE: Millis = Millis(500.0);

    /// Returns a turn of 1,000 tokens of which 900 are cached and could be: 30 ms on an idle worker at its fitted cost.
    fn turn(ttft: f64) -> FirstToken {
        FirstToken {
            ttft: Millis(ttft),
            held: Millis::ZERO,
            wait: Millis::ZERO,
            engine: None,
            prompt: Tokens(1000),
            cached: Tokens(900),
            cacheable: Tokens(900),
            cost: PrefillCost::linear(0.1, 20.0),
            is_slow: false,
            slowed_share: 0.0,
            streamed: true,
        }
    }

    fn cause(turn: FirstToken) -> Cause {
        Parts::of(&turn).cause(OBJECTIVE)
    }

    #[test]
    fn what_neither_waits_nor_misses_is_the_engines() {
        assert_eq!(cause(turn(501.0)), Cause::Engine);
        assert_eq!(Parts::of(&turn(501.0)).engine_ms, 471.0);
    }

    #[test]
    fn waiting_in_the_router_or_at_the_engine_is_a_queue() {
        let held = FirstToken {
            held: Millis(480.0),
            ..turn(520.0)
        };
        let behind_others = FirstToken {
            wait: Millis(490.0),
            ..turn(520.0)
        };
        for late in [held, behind_others] {
            assert_eq!(cause(late), Cause::Queue);
        }
        assert_eq!(Parts::of(&behind_others).queue_ms, 490.0);
    }

    #[test]
    fn tokens_that_somebody_held_and_that_were_computed_are_a_miss() {
        let late = FirstToken {
            prompt: Tokens(6000),
            cached: Tokens(0),
            cacheable: Tokens(5900),
            ..turn(620.0)
        };
        let parts = Parts::of(&late);
        assert_eq!(
            (parts.miss_ms, parts.prompt_ms, parts.engine_ms),
            (590.0, 30.0, 0.0)
        );
        assert_eq!(cause(late), Cause::Miss);
        // The same prompt, where no worker could have held it.
        let new = FirstToken {
            cacheable: Tokens(0),
            ..late
        };
        assert_eq!(cause(new), Cause::Prompt);
    }

    #[test]
    fn an_engines_own_times_tell_its_queue_from_the_network() {
        let said = |queue, prefill| FirstToken {
            engine: Some(EngineTimes {
                queue: Millis(queue),
                prefill: Millis(prefill),
            }),
            ..turn(600.0)
        };
        assert_eq!(cause(said(560.0, 30.0)), Cause::Queue);
        assert_eq!(cause(said(10.0, 580.0)), Cause::Engine);
        let lost = said(5.0, 30.0);
        assert_eq!(cause(lost), Cause::Network);
        assert_eq!(Parts::of(&lost).network_ms, 565.0);
    }

    #[test]
    fn what_a_slow_worker_adds_to_a_queue_and_a_prefill_is_its_own() {
        // 8 times slower: 400 ms of queue are 350 ms more than at the baseline, a prefill of 240 ms is 210 ms more.
        let behind = FirstToken {
            wait: Millis(400.0),
            is_slow: true,
            slowed_share: 1.0 - 1.0 / 8.0,
            ..turn(640.0)
        };
        let parts = Parts::of(&behind);
        assert_eq!(
            (parts.queue_ms, parts.prompt_ms, parts.engine_ms),
            (50.0, 30.0, 0.0)
        );
        assert_eq!(parts.slow_worker_ms, 350.0 + 210.0);
        assert_eq!(cause(behind), Cause::SlowWorker);
        // A worker that is not slow has the queue that the slow one leaves to it, but no slow prefill.
        let beside = FirstToken {
            is_slow: false,
            slowed_share: 0.9,
            ..behind
        };
        let parts = Parts::of(&beside);
        assert_eq!((parts.slow_worker_ms, parts.engine_ms), (360.0, 210.0));
        assert_eq!(cause(beside), Cause::SlowWorker);
        let hardly = FirstToken {
            slowed_share: 0.2,
            ..beside
        };
        assert_eq!(cause(hardly), Cause::Queue);
    }

    #[test]
    fn an_answer_that_comes_whole_is_late_for_itself() {
        let late = FirstToken {
            streamed: false,
            ..turn(9000.0)
        };
        assert_eq!(cause(late), Cause::Whole);
    }

    proptest! {
        #[test]
        fn the_parts_add_up_and_none_is_negative(
            times in prop::array::uniform5(-10.0..5000.0_f64),
            tokens in prop::array::uniform3(0..20_000_u64),
            [says, streamed, is_slow] in prop::array::uniform3(any::<bool>()),
            slowed_share in -0.5..1.5_f64,
        ) {
            let [ttft, held, wait, queue, prefill] = times.map(Millis);
            let turn = FirstToken {
                ttft,
                held,
                wait,
                engine: says.then_some(EngineTimes { queue, prefill }),
                prompt: Tokens(tokens[0]),
                cached: Tokens(tokens[1]),
                cacheable: Tokens(tokens[2]),
                cost: PrefillCost::linear(0.1, 20.0),
                is_slow,
                slowed_share,
                streamed,
            };
            let parts = Parts::of(&turn);
            let all = [
                parts.queue_ms, parts.miss_ms, parts.slow_worker_ms, parts.engine_ms, parts.network_ms,
                parts.prompt_ms, parts.whole_ms,
            ];
            prop_assert!(all.iter().all(|ms| *ms >= 0.0), "{parts:?}");
            prop_assert!((all.iter().sum::<f64>() - ttft.0.max(0.0)).abs() < 1e-6, "{parts:?}");
        }
    }
}
