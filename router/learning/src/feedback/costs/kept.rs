//! Costs that an earlier process learned.

use policy::estimate::{Doubt, LearnedCost, Overhead, Past, Slowness};
use policy::ids::WorkerId;
use policy::units::Millis;
use serde::{Deserialize, Serialize};

use super::{Costs, MEMORY, One};

/// Longest idle time that a kept cost may have: a year. Its doubt is whole long before that.
const MOST_IDLE_MS: f64 = 365.0 * 86_400_000.0;

/// A worker's learned cost in the form that outlives a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptCost {
    learned: LearnedCost,
    beside: Overhead,
    tells: bool,
    untold: u32,
    known: bool,
    /// Time that counted as idle when the process wrote it.
    idle_ms: f64,
    past: Option<Past>,
}

/// The typical prompt: its mean uncached and cached tokens, and the number of responses behind them.
pub type KeptPrompt = (f64, f64, f64);

impl KeptCost {
    /// Returns the number of responses that the cost was learned from.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.learned.seen()
    }
}

impl Costs {
    /// Returns a worker's cost in the form that another process can restore; `None` before the first response.
    #[must_use]
    pub fn kept(&self, now: Millis, worker: WorkerId) -> Option<KeptCost> {
        let one = self.workers.get(worker.index())?;
        (one.learned.seen() > 0).then(|| KeptCost {
            learned: one.learned.clone(),
            beside: one.beside,
            tells: one.tells,
            untold: one.untold,
            known: one.known,
            idle_ms: now.saturating_sub(one.renewed).0,
            past: one.slowness.own_past(),
        })
    }

    /// Restores a worker's cost that was written `age` ago, unless at least as many responses were observed since the
    /// start. The time since it was written counts as time without a response. Returns whether it was restored: not if
    /// no observations can have led to it.
    pub fn restore(&mut self, now: Millis, age: Millis, worker: WorkerId, kept: &KeptCost) -> bool {
        let fade = self.fade;
        let Some(one) = self.workers.get_mut(worker.index()) else {
            return false;
        };
        let idle_ms = kept.idle_ms + age.0.max(0.0);
        let is_sound = kept.beside.is_sound()
            && (0.0..=MOST_IDLE_MS).contains(&kept.idle_ms)
            && kept.past.is_none_or(|past| past.is_sound());
        let Some(learned) = kept.learned.clone().checked().filter(|_| is_sound) else {
            return false;
        };
        if one.learned.seen() >= learned.seen() {
            return false;
        }
        *one = One {
            slowness: Slowness::continued(kept.past, now, learned.seen()),
            learned,
            beside: kept.beside,
            tells: kept.tells,
            untold: kept.untold,
            known: kept.known,
            renewed: now - Millis(idle_ms.min(MOST_IDLE_MS)),
            doubt: Doubt::NONE,
        };
        one.elapse(now, fade);
        true
    }

    /// Returns the typical prompt in the form that another process can restore.
    #[must_use]
    pub fn kept_prompt(&self) -> KeptPrompt {
        self.typical
    }

    /// Restores the typical prompt, unless the current one is based on at least as many responses, or the restored one
    /// is invalid.
    pub fn restore_prompt(&mut self, kept: KeptPrompt) {
        let (u, h, count) = kept;
        let is_sound = [u, h].iter().all(|tokens| (0.0..=1e12).contains(tokens));
        if is_sound && count > self.typical.2 && count <= MEMORY {
            self.typical = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::estimate::PrefillSize;
    use policy::units::Tokens;

    use super::super::tests::costs;
    use super::super::{CostState, PrefillSample};
    use super::*;

    const SECOND: Millis = Millis(1_000.0);

    /// Returns costs of two workers, after this number of responses of the first at 0.276 ms per token, one per second.
    fn learned(responses: u32) -> (Costs, Millis) {
        let mut costs = costs(&[None, None]);
        let mut now = Millis::ZERO;
        for at in 0..responses {
            now += SECOND;
            let size = PrefillSize::of(
                Tokens(500 + u64::from(at) * 71 % 3_000),
                Tokens(u64::from(at) * 37 % 900),
            );
            let took = Millis(4.0 + 0.276 * size.uncached);
            costs.observe(now, WorkerId(0), size, PrefillSample::Engine(took));
        }
        (costs, now)
    }

    fn written_and_read(kept: &KeptCost) -> KeptCost {
        serde_json::from_str(&serde_json::to_string(kept).unwrap()).unwrap()
    }

    fn state(costs: &Costs) -> CostState {
        costs.state(WorkerId(0)).unwrap()
    }

    #[test]
    fn a_cost_predicts_after_a_restart_as_before() {
        let (before, now) = learned(150);
        let kept = written_and_read(&before.kept(now, WorkerId(0)).unwrap());
        assert!(before.kept(now, WorkerId(1)).is_none(), "it has not answered");
        let mut after = costs(&[None, None]);
        assert!(after.restore(Millis::ZERO, Millis::ZERO, WorkerId(0), &kept));
        after.restore_prompt(before.kept_prompt());
        let (before, after) = (state(&before), state(&after));
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-6 * one.abs().max(1e-6);
        assert!(near(
            before.cost.alpha_ms_per_token,
            after.cost.alpha_ms_per_token
        ));
        assert!(
            (after.cost.alpha_ms_per_token / 0.276 - 1.0).abs() < 0.05,
            "{after:?}"
        );
        assert!(near(before.cost.beta_ms, after.cost.beta_ms) && before.answers == after.answers);
    }

    #[test]
    fn the_time_between_two_processes_widens_the_error_as_time_without_a_response_does() {
        let (mut before, now) = learned(150);
        let kept = before.kept(now, WorkerId(0)).unwrap();
        let age = Millis(45_000.0);
        let mut after = costs(&[None, None]);
        assert!(after.restore(Millis::ZERO, age, WorkerId(0), &kept));
        after.restore_prompt(before.kept_prompt());
        before.elapse(now + age);
        after.elapse(Millis::ZERO);
        let (before, after) = (state(&before).error_ms, state(&after).error_ms);
        assert!((before - after).abs() <= 1e-6 * before, "{before} {after}");
        let fresh = state(&learned(150).0).error_ms;
        assert!(after > fresh, "{after} {fresh}");
    }

    #[test]
    fn more_responses_here_are_not_replaced_by_fewer() {
        let (before, now) = learned(20);
        let kept = before.kept(now, WorkerId(0)).unwrap();
        let (mut after, now) = learned(30);
        assert!(!after.restore(now, Millis::ZERO, WorkerId(0), &kept));
        assert!(
            !after.restore(now, Millis::ZERO, WorkerId(7), &kept),
            "no such worker"
        );
        assert_eq!(state(&after).answers, 30);
    }

    #[test]
    fn senseless_numbers_are_refused() {
        let (before, now) = learned(20);
        let kept = before.kept(now, WorkerId(0)).unwrap();
        for idle_ms in [f64::NAN, f64::INFINITY, -1.0] {
            let kept = KeptCost {
                idle_ms,
                ..kept.clone()
            };
            assert!(
                !costs(&[None]).restore(now, Millis::ZERO, WorkerId(0), &kept),
                "{idle_ms}"
            );
        }
        let mut after = costs(&[None]);
        for prompt in [(f64::NAN, 0.0, 9.0), (1.0, -1.0, 9.0), (1.0, 1.0, 1e9)] {
            after.restore_prompt(prompt);
            assert_eq!(after.kept_prompt(), (0.0, 0.0, 0.0));
        }
    }
}
