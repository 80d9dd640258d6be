//! α, β, γ of a worker, learned from what its answers took.
//!
//! Recursive least squares with exponential forgetting (Ljung and Söderström, *Theory and Practice of Recursive
//! Identification*, 1983) on `ttft − wait = β + α·u + γ·u·(h + u/2)`. Features are scaled to the order of one, as
//! the raw ones span ten decades and the covariance would not survive it.
//!
//! - *Outliers*: a first token late for reasons that no prompt explains (a pause, a preemption, a client's network) must
//!   not bend the line. A residual beyond four times the running mean absolute residual is clipped to that, which is
//!   Huber's estimator; and where eight in a row lie on one side the worker has changed, so the covariance is opened
//!   again and they are believed.
//! - *Forgetting*: λ = 0.995, a memory of 200 answers. Forgetting winds the covariance up where inputs do not vary, so
//!   its trace is bounded.
//! - *Physics*: α, β and γ are not negative. Where one comes out so, the others are what they would be given that it is
//!   zero: `θ − P·eᵢ·θᵢ/Pᵢᵢ`, the conditional mean. (Merely reporting it as zero misses the answers by what it was.) Where
//!   α is not positive yet the prior's is used.
//! - *The floor* is where it was measured or written, and follows what answers on it take: a prompt whose line lies below it says
//!   nothing of the line. (On a GPU most turns of a warm conversation are such; learned from, they would lie the line flat.) One
//!   that takes far longer than the floor is taken for a change of the line.
//! - *Fading*: a worker believed slow is sent nothing, so nothing shows that it has recovered. What was learned and is
//!   not renewed goes back towards where it began ([`LearnedCost::fade`]), so that it is tried again.
//!
//! A worker that was never benched begins with its pool's median: [`pooled`].

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// λ: weight of the past, per answer.
const FORGETTING: f64 = 0.995;
/// Residuals beyond this many mean absolute residuals are clipped.
const CLIP: f64 = 4.0;
/// Clipped residuals of one sign in a row that mean a change, not an outlier.
const CHANGE: i32 = 8;
/// Bound to which forgetting may wind the covariance up, relative to that of an answer: what is believed is worth one
/// answer in each direction at least.
const WOUND: f64 = 1.0;
/// Covariance of a prior that somebody measured, and after a change.
const MEASURED: f64 = 10.0;
/// Times the floor that an answer on it takes at the most.
const ON_FLOOR: f64 = 1.5;
/// Answers that the floor remembers.
const FLOOR_MEMORY: f64 = 50.0;
/// Of a guess, which the first answers may well overturn.
const GUESSED: f64 = 100.0;
/// Scales: thousand tokens, and ten million token pairs.
const TOKENS: f64 = 1e3;
const PAIRS: f64 = 1e7;

/// What a prefill's cost depends on: of one prompt, or the means over several, which cost the mean of what each costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillSize {
    /// u: tokens to compute.
    pub uncached: f64,
    /// u·(h + u/2): pairs of a token and one before it.
    pub pairs: f64,
}

impl PrefillSize {
    /// Of one prompt.
    #[must_use]
    pub fn of(uncached: Tokens, cached: Tokens) -> Self {
        let u = uncached.as_f64();
        Self {
            uncached: u,
            pairs: u * (cached.as_f64() + u / 2.0),
        }
    }

    /// h: the cached tokens that such a prompt has.
    #[must_use]
    pub fn cached(self) -> f64 {
        if self.uncached > 0.0 {
            (self.pairs / self.uncached - self.uncached / 2.0).max(0.0)
        } else {
            0.0
        }
    }

    fn features(self) -> [f64; 3] {
        [1.0, self.uncached / TOKENS, self.pairs / PAIRS]
    }
}

/// The estimator of one worker.
#[derive(Clone, Debug)]
pub struct LearnedCost {
    /// β, α per thousand tokens, γ per ten million pairs.
    theta: [f64; 3],
    covariance: [[f64; 3]; 3],
    prior: [f64; 3],
    /// What short prompts all take, now and at the beginning; 0 where no floor is known.
    floor: [f64; 2],
    spread: f64,
    one_sided: i32,
    seen: u64,
    /// Answers since the last change: the error is that of what is believed now.
    since: u64,
}

impl LearnedCost {
    /// Begins with what a bench, a configuration or [`pooled`] says.
    #[must_use]
    pub fn new(prior: PrefillCost) -> Self {
        Self::with_covariance(prior, MEASURED)
    }

    /// Begins with a default that nobody vouches for.
    #[must_use]
    pub fn guess(prior: PrefillCost) -> Self {
        Self::with_covariance(prior, GUESSED)
    }

    fn with_covariance(prior: PrefillCost, covariance: f64) -> Self {
        let theta = [
            prior.beta_ms,
            prior.alpha_ms_per_token * TOKENS,
            prior.gamma_ms_per_token2 * PAIRS,
        ];
        Self {
            theta,
            covariance: diagonal(covariance),
            prior: theta,
            floor: [prior.floor_ms; 2],
            spread: 0.0,
            one_sided: 0,
            seen: 0,
            since: 0,
        }
    }

    /// An answer: after `wait` in the queue its first token took `prefill` more. Nonsense is ignored.
    pub fn observe(&mut self, uncached: Tokens, cached: Tokens, prefill: Millis) {
        self.observe_size(PrefillSize::of(uncached, cached), prefill);
    }

    /// An answer, or, where there is no floor, the mean of several: then the cost is linear in what it depends on, so means lie
    /// on it as well. Nonsense is ignored.
    pub fn observe_size(&mut self, size: PrefillSize, prefill: Millis) {
        let x = size.features();
        let is_sound = |value: f64| value.is_finite() && value >= 0.0;
        if !(is_sound(prefill.0) && x.into_iter().all(is_sound)) {
            return;
        }
        let predicted: f64 = (0..3).map(|i| self.theta[i] * x[i]).sum();
        if predicted < self.floor[0] && prefill.0 <= ON_FLOOR * self.floor[0] {
            self.floor[0] += self.clip(prefill.0 - self.floor[0]) / FLOOR_MEMORY;
            self.seen += 1;
            self.since += 1;
            return;
        }
        let residual = self.clip(prefill.0 - predicted);
        let px: [f64; 3] = std::array::from_fn(|i| (0..3).map(|j| self.covariance[i][j] * x[j]).sum());
        let gain = FORGETTING + (0..3).map(|i| x[i] * px[i]).sum::<f64>();
        for (theta, step) in self.theta.iter_mut().zip(px) {
            *theta += step / gain * residual;
        }
        let mut wound = 1.0f64;
        for (i, row) in self.covariance.iter_mut().enumerate() {
            let bound = row[i].max(WOUND);
            for (entry, other) in row.iter_mut().zip(px) {
                *entry = (*entry - px[i] * other / gain) / FORGETTING;
            }
            wound = wound.max(row[i] / bound);
        }
        for row in &mut self.covariance {
            row.iter_mut().for_each(|entry| *entry /= wound);
        }
        self.seen += 1;
        self.since += 1;
    }

    /// Clips an outlier; believes a run of them.
    fn clip(&mut self, residual: f64) -> f64 {
        let bound = CLIP * self.spread;
        let outlier = self.since > 16 && residual.abs() > bound;
        if !outlier {
            self.spread += (residual.abs() - self.spread) / (self.since + 1).min(100) as f64;
            self.one_sided = 0;
            return residual;
        }
        let side = if residual > 0.0 { 1 } else { -1 };
        let same = self.one_sided * side > 0;
        self.one_sided = if same { self.one_sided + side } else { side };
        if self.one_sided.abs() >= CHANGE {
            self.one_sided = 0;
            self.covariance = diagonal(MEASURED);
            self.spread = residual.abs();
            self.since = 0;
            return residual;
        }
        bound * f64::from(side)
    }

    /// The cost as learned so far.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        let theta = self.physical();
        let alpha = if theta[1] > 0.0 { theta[1] } else { self.prior[1] };
        PrefillCost {
            beta_ms: theta[0],
            alpha_ms_per_token: alpha / TOKENS,
            gamma_ms_per_token2: theta[2] / PAIRS,
            floor_ms: self.floor[0],
        }
    }

    /// The coefficients given that none is negative.
    fn physical(&self) -> [f64; 3] {
        let (mut theta, mut covariance) = (self.theta, self.covariance);
        let mut fixed = [false; 3];
        // Each round fixes one at zero, so three are enough; one that was fixed stays there.
        while let Some(i) = (0..3).find(|&i| theta[i] < 0.0 && !fixed[i]) {
            let by = covariance[i][i];
            let column: [f64; 3] =
                std::array::from_fn(|j| if by > 0.0 { covariance[j][i] / by } else { 0.0 });
            let (value, row) = (theta[i], covariance[i]);
            for j in 0..3 {
                if !fixed[j] {
                    theta[j] -= column[j] * value;
                }
                for (entry, other) in covariance[j].iter_mut().zip(row) {
                    *entry -= column[j] * other;
                }
            }
            theta[i] = 0.0;
            fixed[i] = true;
        }
        theta
    }

    /// What it predicts for a prompt, and the standard error of that: how far the truth may be for want of answers like it.
    #[must_use]
    pub fn predict(&self, uncached: Tokens, cached: Tokens) -> (Millis, Millis) {
        /// A normal variable's deviation in mean absolute deviations: `√(π/2)`.
        const DEVIATION: f64 = 1.2533;
        let x = PrefillSize::of(uncached, cached).features();
        let variance: f64 = (0..3)
            .map(|i| x[i] * (0..3).map(|j| self.covariance[i][j] * x[j]).sum::<f64>())
            .sum();
        let error = DEVIATION * self.spread * variance.max(0.0).sqrt();
        (self.cost().prefill(uncached, cached), Millis(error))
    }

    /// Nothing was heard of the worker for long: goes this share (0 to 1) of the way back to where it began, and is
    /// ready to believe something else.
    pub fn fade(&mut self, share: f64) {
        let share = share.clamp(0.0, 1.0);
        for (theta, prior) in self.theta.iter_mut().zip(self.prior) {
            *theta += (prior - *theta) * share;
        }
        self.floor[0] += (self.floor[1] - self.floor[0]) * share;
        self.covariance = diagonal(MEASURED);
    }

    /// Begins again from another prior: for a worker that nothing is known of yet. Ignored once it has answered.
    pub fn begin_with(&mut self, prior: PrefillCost) {
        if self.seen == 0 {
            *self = Self::new(prior);
        }
    }

    /// Mean absolute residual: what a prediction is off by.
    #[must_use]
    pub fn error(&self) -> Millis {
        Millis(self.spread)
    }

    /// Answers learned from.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

fn diagonal(value: f64) -> [[f64; 3]; 3] {
    std::array::from_fn(|i| std::array::from_fn(|j| if i == j { value } else { 0.0 }))
}

/// What a worker of a pool begins with: the median of each coefficient over the others. `None` for an empty pool.
#[must_use]
pub fn pooled(pool: &[PrefillCost]) -> Option<PrefillCost> {
    let median = |of: fn(&PrefillCost) -> f64| {
        let mut values: Vec<f64> = pool.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Some(PrefillCost {
        alpha_ms_per_token: median(|cost| cost.alpha_ms_per_token)?,
        beta_ms: median(|cost| cost.beta_ms)?,
        gamma_ms_per_token2: median(|cost| cost.gamma_ms_per_token2)?,
        floor_ms: median(|cost| cost.floor_ms)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: PrefillCost = PrefillCost {
        alpha_ms_per_token: 0.08,
        beta_ms: 25.0,
        gamma_ms_per_token2: 2e-6,
        floor_ms: 0.0,
    };

    /// The `i`-th answer: sizes that vary, noise of ±2 ms, every 20th ten times too late if `outliers`.
    fn feed(learned: &mut LearnedCost, cost: PrefillCost, from: u64, count: u64, outliers: bool) {
        for i in from..from + count {
            let (u, h) = (Tokens(i * 7919 % 6000 + 10), Tokens(i * 104_729 % 20_000));
            let noise = (i * 31 % 41) as f64 / 10.0 - 2.0;
            let factor = if outliers && i % 20 == 19 { 10.0 } else { 1.0 };
            learned.observe(u, h, Millis((cost.prefill(u, h).0 + noise) * factor));
        }
    }

    fn off(learned: &LearnedCost, cost: PrefillCost) -> f64 {
        let (u, h) = (Tokens(3000), Tokens(8000));
        (learned.cost().prefill(u, h).0 / cost.prefill(u, h).0 - 1.0).abs()
    }

    #[test]
    fn it_learns_the_cost_from_a_wrong_prior() {
        let mut learned = LearnedCost::new(PrefillCost::linear(0.02, 0.0));
        feed(&mut learned, TRUE, 0, 400, false);
        assert!(off(&learned, TRUE) < 0.02, "{:?}", learned.cost());
        assert!(learned.error().0 < 10.0);
    }

    /// Turns of a warm conversation on a GPU: of twenty, nineteen are on the floor.
    fn feed_warm(learned: &mut LearnedCost, cost: PrefillCost) {
        for i in 0..400u64 {
            let long = if i % 20 == 0 { 4000 } else { 0 };
            let (u, h) = (Tokens(i * 7919 % 300 + 20 + long), Tokens(i * 104_729 % 20_000));
            let noise = (i * 31 % 41) as f64 / 20.0 - 1.0;
            learned.observe(u, h, Millis(cost.prefill(u, h).0 + noise));
        }
    }

    #[test]
    fn answers_on_the_floor_teach_the_floor_and_not_the_line() {
        let true_cost = PrefillCost {
            floor_ms: 20.0,
            ..PrefillCost::linear(0.02, 6.0)
        };
        let learn_from = |floor_ms| {
            let mut learned = LearnedCost::new(PrefillCost {
                floor_ms,
                ..PrefillCost::linear(0.02, 6.0)
            });
            feed_warm(&mut learned, true_cost);
            learned.cost()
        };
        for floor_ms in [20.0, 18.0, 24.0] {
            let cost = learn_from(floor_ms);
            assert!(
                (cost.floor_ms - 20.0).abs() < 1.0 && (cost.beta_ms - 6.0).abs() < 2.0,
                "{cost:?}"
            );
        }
        let blind = learn_from(0.0);
        assert!(blind.beta_ms > 12.0, "the line is bent without it: {blind:?}");
    }

    #[test]
    fn a_worker_that_is_slower_than_its_floor_has_become_slower_and_is_believed_when_it_recovers() {
        let floor_ms = 20.0;
        let mut learned = LearnedCost::new(PrefillCost {
            floor_ms,
            ..PrefillCost::linear(0.02, 6.0)
        });
        let slow = PrefillCost {
            floor_ms: 3.0 * floor_ms,
            ..PrefillCost::linear(0.06, 18.0)
        };
        feed_warm(&mut learned, slow);
        let (u, h) = (Tokens(150), Tokens(5000));
        let off = learned.cost().prefill(u, h).0 / slow.prefill(u, h).0 - 1.0;
        assert!(off.abs() < 0.1, "{off} {:?}", learned.cost());
        let well = PrefillCost {
            floor_ms,
            ..PrefillCost::linear(0.02, 6.0)
        };
        feed_warm(&mut learned, well);
        for (u, h) in [(150, 5000), (4000, 5000)] {
            let (u, h) = (Tokens(u), Tokens(h));
            let off = learned.cost().prefill(u, h).0 / well.prefill(u, h).0 - 1.0;
            assert!(off.abs() < 0.1, "{u} tokens: {off} {:?}", learned.cost());
        }
    }

    #[test]
    fn means_of_several_answers_lie_on_the_same_line() {
        let mut learned = LearnedCost::new(PrefillCost::linear(0.02, 0.0));
        for group in 0..400u64 {
            let (mut mean, mut took) = (PrefillSize::default(), 0.0);
            let count = 1 + group % 5;
            for i in 0..count {
                let (u, h) = (
                    Tokens((group * 7 + i) * 7919 % 6000 + 10),
                    Tokens((group * 7 + i) * 104_729 % 20_000),
                );
                let size = PrefillSize::of(u, h);
                mean.uncached += size.uncached / count as f64;
                mean.pairs += size.pairs / count as f64;
                took += TRUE.prefill(u, h).0 / count as f64;
            }
            learned.observe_size(mean, Millis(took));
        }
        assert!(off(&learned, TRUE) < 0.02, "{:?}", learned.cost());
    }

    #[test]
    fn a_guess_that_is_far_off_is_overturned_by_a_few_answers_and_a_measurement_is_not() {
        let far = PrefillCost::linear(9.0, 5.0);
        let mut guess = LearnedCost::guess(far);
        let mut measured = LearnedCost::new(far);
        for learned in [&mut guess, &mut measured] {
            feed(learned, TRUE, 0, 30, false);
        }
        assert!(off(&guess, TRUE) < 0.2, "{:?}", guess.cost());
        assert!(off(&measured, TRUE) > off(&guess, TRUE));
    }

    #[test]
    fn outliers_hardly_bend_it() {
        let mut learned = LearnedCost::new(TRUE);
        feed(&mut learned, TRUE, 0, 600, true);
        assert!(off(&learned, TRUE) < 0.06, "{:?}", learned.cost());
    }

    #[test]
    fn a_worker_that_halves_its_speed_is_followed_within_two_hundred_answers() {
        let mut learned = LearnedCost::new(TRUE);
        feed(&mut learned, TRUE, 0, 400, false);
        let slow = PrefillCost {
            alpha_ms_per_token: 0.16,
            ..TRUE
        };
        feed(&mut learned, slow, 400, 200, false);
        assert!(off(&learned, slow) < 0.05, "{:?}", learned.cost());
    }

    #[test]
    fn coefficients_stay_physical_and_nonsense_changes_nothing() {
        let mut learned = LearnedCost::new(TRUE);
        learned.observe(Tokens(5), Tokens(5), Millis(f64::NAN));
        let endless = PrefillSize {
            uncached: 5.0,
            pairs: f64::INFINITY,
        };
        learned.observe_size(endless, Millis(5.0));
        assert_eq!(learned.seen(), 0);
        for i in 0..300 {
            learned.observe(Tokens(6000 - i * 20), Tokens(0), Millis(i as f64));
        }
        let cost = learned.cost();
        assert!(cost.alpha_ms_per_token > 0.0 && cost.beta_ms >= 0.0 && cost.gamma_ms_per_token2 >= 0.0);
    }

    #[test]
    fn a_coefficient_that_cannot_be_negative_is_not_missed_by_the_others() {
        // Short prompts alone cannot tell β from α, and a prior that is far off in α leaves β below zero.
        let mut learned = LearnedCost::with_covariance(PrefillCost::linear(0.5, 5.0), WOUND);
        let truth = PrefillCost::linear(0.05, 5.0);
        for i in 0..100 {
            let u = Tokens(100 + i * 37 % 900);
            learned.observe(u, Tokens(0), truth.prefill(u, Tokens(0)));
        }
        assert!(
            learned.theta.iter().any(|&theta| theta < 0.0),
            "{:?}",
            learned.theta
        );
        let cost = learned.cost();
        assert!(cost.beta_ms >= 0.0 && cost.gamma_ms_per_token2 >= 0.0);
        for u in [300, 550, 900].map(Tokens) {
            let off = cost.prefill(u, Tokens(0)).0 / truth.prefill(u, Tokens(0)).0 - 1.0;
            assert!(off.abs() < 0.3, "{u}: {off} {cost:?}");
        }
    }

    #[test]
    fn a_prediction_knows_how_far_it_may_be_off() {
        let mut learned = LearnedCost::guess(PrefillCost::linear(0.5, 5.0));
        let (u, h) = (Tokens(3000), Tokens(8000));
        let mut last = f64::INFINITY;
        for round in 0..4 {
            feed(&mut learned, TRUE, round * 100, 100, false);
            let (predicted, error) = learned.predict(u, h);
            assert!(
                (predicted - TRUE.prefill(u, h)).0.abs() < 4.0 * error.0 + 0.5,
                "{predicted} {error}"
            );
            assert!(error.0 <= last, "{error}");
            last = error.0;
        }
        assert!(last < 1.0, "{last}");
    }

    #[test]
    fn what_is_not_renewed_fades_towards_where_it_began() {
        let mut learned = LearnedCost::new(TRUE);
        let slow = PrefillCost {
            alpha_ms_per_token: 0.4,
            ..TRUE
        };
        feed(&mut learned, slow, 0, 300, false);
        assert!(off(&learned, slow) < 0.05);
        let believed = learned.cost().alpha_ms_per_token;
        learned.fade(0.5);
        let halfway = f64::midpoint(believed, TRUE.alpha_ms_per_token);
        assert!((learned.cost().alpha_ms_per_token - halfway).abs() < 1e-9);
        (0..10).for_each(|_| learned.fade(0.5));
        assert!(off(&learned, TRUE) < 0.01);
    }

    #[test]
    fn only_a_worker_that_has_not_answered_begins_anew() {
        let mut learned = LearnedCost::new(PrefillCost::linear(0.5, 1.0));
        learned.begin_with(TRUE);
        assert_eq!(learned.cost(), LearnedCost::new(TRUE).cost());
        learned.observe(Tokens(100), Tokens(0), Millis(30.0));
        learned.begin_with(PrefillCost::linear(9.0, 9.0));
        assert!(learned.cost().alpha_ms_per_token < 1.0);
    }

    #[test]
    fn a_pool_lends_its_median() {
        let pool = [0.1, 0.5, 0.2].map(|alpha| PrefillCost::linear(alpha, alpha * 10.0));
        let begin = pooled(&pool).unwrap();
        assert_eq!((begin.alpha_ms_per_token, begin.beta_ms), (0.2, 2.0));
        assert_eq!(pooled(&[]), None);
    }
}
