//! The prompts to measure, their order, and the end of the measurement. Each pass covers the whole grid in its own
//! order, so that a drift of the machine spreads over all cells instead of bending one of them.

use std::time::Duration;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

use crate::fit::{Fit, Interval};
use crate::sample::Cell;

/// The parameters that must match for a measurement to be continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Numbers of cached tokens.
    pub cached_tokens: Vec<u64>,
    /// Numbers of uncached tokens.
    pub uncached_tokens: Vec<u64>,
    /// Seed of the order and the text.
    pub seed: u64,
}

impl Grid {
    /// Returns all cells in the pass's own order. Cells of more than `longest` tokens are left out.
    pub fn pass(&self, pass: u32, longest: Option<u64>) -> Vec<Cell> {
        let cell = |cached_tokens: u64| {
            self.uncached_tokens.iter().map(move |&uncached_tokens| Cell {
                cached_tokens,
                uncached_tokens,
                pass,
            })
        };
        let fits =
            |cell: &Cell| longest.is_none_or(|longest| cell.cached_tokens + cell.uncached_tokens <= longest);
        let mut cells: Vec<Cell> = self
            .cached_tokens
            .iter()
            .flat_map(|&cached| cell(cached))
            .filter(fits)
            .collect();
        // Each pass has its own stream, so that a continued measurement has the order of an uninterrupted one.
        let mut rng = Pcg64::seed_from_u64(self.seed ^ u64::from(pass).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        cells.shuffle(&mut rng);
        cells
    }
}

/// Options of all commands that measure prefills.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Numbers of cached tokens to measure.
    #[arg(long, value_delimiter = ',', default_value = "0,1024,4096,16384", value_parser = clap::value_parser!(u64).range(..=4_194_304))]
    pub history: Vec<u64>,
    /// New prompt lengths to measure, in tokens. Short ones show a floor, long ones the slope.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512,1024,2048,4096", value_parser = clap::value_parser!(u64).range(1..=4_194_304))]
    pub uncached: Vec<u64>,
    /// Minimum number of passes over the grid.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Maximum number of passes over the grid.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_repeats: u32,
    /// Stop when α's 95 % interval is within ± this share of α, and β's and γ's within three times that.
    #[arg(long, value_name = "SHARE", default_value_t = 0.03, value_parser = share)]
    pub precision: f64,
    /// Time budget in seconds, after which no further prompt is sent and the samples are fitted.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub budget_s: u64,
    /// Seed of the order, the text and the resamples.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl PlanArgs {
    /// Returns the grid.
    pub fn grid(&self) -> Grid {
        let sorted = |values: &[u64]| {
            let mut values = values.to_vec();
            values.sort_unstable();
            values.dedup();
            values
        };
        Grid {
            cached_tokens: sorted(&self.history),
            uncached_tokens: sorted(&self.uncached),
            seed: self.seed,
        }
    }

    /// Returns the time budget.
    pub fn budget(&self) -> Duration {
        Duration::from_secs(self.budget_s)
    }

    /// Returns whether a fit has the requested precision. A coefficient close to zero need not be known to a share of
    /// itself: it is enough that its uncertainty moves no prediction by half of the requested precision.
    pub fn is_enough(&self, fit: &Fit) -> bool {
        let [alpha, beta, gamma] = fit.reach;
        let known = |interval: &Interval, value: f64, reach: f64, share: f64| {
            let unknown = interval.half_width();
            unknown <= share * value || unknown * reach <= self.precision / 2.0
        };
        let cost = &fit.cost;
        known(&fit.alpha, cost.alpha_ms_per_token, alpha, self.precision)
            && known(&fit.beta, cost.beta_ms, beta, 3.0 * self.precision)
            && known(&fit.gamma, cost.gamma_ms_per_token2, gamma, 3.0 * self.precision)
    }
}

/// Parses a share from 0 to 1. Fails if it is not such a number.
pub fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err("expected a share from 0 to 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(cached: &[u64], uncached: &[u64], seed: u64) -> Grid {
        Grid {
            cached_tokens: cached.to_vec(),
            uncached_tokens: uncached.to_vec(),
            seed,
        }
    }

    #[test]
    fn every_pass_has_every_cell_in_an_order_of_its_own() {
        let grid = grid(&[0, 100], &[1, 2, 3], 7);
        let pass = |pass| {
            let cells = grid.pass(pass, None);
            assert!(cells.iter().all(|cell| cell.pass == pass));
            cells
                .iter()
                .map(|cell| (cell.cached_tokens, cell.uncached_tokens))
                .collect::<Vec<_>>()
        };
        let passes: Vec<Vec<(u64, u64)>> = (0..3).map(pass).collect();
        assert!(passes[0] != passes[1] || passes[1] != passes[2]);
        for mut pass in passes {
            pass.sort_unstable();
            assert_eq!(pass, [(0, 1), (0, 2), (0, 3), (100, 1), (100, 2), (100, 3)]);
        }
    }

    #[test]
    fn cells_longer_than_the_workers_limit_are_left_out() {
        let cells = grid(&[0, 100], &[1, 50], 7).pass(0, Some(101));
        assert_eq!(cells.len(), 3);
        assert!(
            cells
                .iter()
                .all(|cell| cell.cached_tokens + cell.uncached_tokens <= 101)
        );
    }

    #[test]
    fn the_order_depends_on_the_seed() {
        let order = |seed| grid(&[0, 1, 2], &[1, 2, 3], seed).pass(2, None);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
