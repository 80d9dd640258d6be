//! Which prompts are measured, and in which order.

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

/// One probe to be made: so much history, so much new, in the n-th pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Tokens of the prompt that should come from the cache.
    pub history: u64,
    /// Tokens that should have to be computed.
    pub uncached: u64,
    /// Which pass over the grid; each has prefixes of its own.
    pub pass: u32,
}

/// Every (history, uncached), `repeats` times: whole passes, each in an order of its own. Cells of more than
/// `longest` tokens are left out, for the worker would refuse them.
#[must_use]
pub fn cells(history: &[u64], uncached: &[u64], repeats: u32, longest: Option<u64>, seed: u64) -> Vec<Cell> {
    let fits = |cell: &Cell| longest.is_none_or(|longest| cell.history + cell.uncached <= longest);
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut all = Vec::new();
    for pass in 0..repeats {
        let cell = |history: u64| {
            uncached.iter().map(move |&uncached| Cell {
                history,
                uncached,
                pass,
            })
        };
        let mut cells: Vec<Cell> = history
            .iter()
            .flat_map(|&history| cell(history))
            .filter(fits)
            .collect();
        cells.shuffle(&mut rng);
        all.extend(cells);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_has_every_cell_in_an_order_of_its_own() {
        let cells = cells(&[0, 100], &[1, 2, 3], 3, None, 7);
        let passes: Vec<Vec<(u64, u64)>> = (0..3)
            .map(|pass| {
                cells
                    .iter()
                    .filter(|cell| cell.pass == pass)
                    .map(|cell| (cell.history, cell.uncached))
                    .collect()
            })
            .collect();
        assert!(cells.is_sorted_by_key(|cell| cell.pass), "passes are whole");
        assert!(passes[0] != passes[1] || passes[1] != passes[2]);
        for mut pass in passes {
            pass.sort_unstable();
            assert_eq!(pass, [(0, 1), (0, 2), (0, 3), (100, 1), (100, 2), (100, 3)]);
        }
    }

    #[test]
    fn cells_that_the_worker_would_refuse_are_left_out() {
        assert!(
            cells(&[0, 100], &[1, 50], 1, Some(100), 7)
                .iter()
                .all(|cell| cell.history + cell.uncached <= 100)
        );
    }

    #[test]
    fn the_order_is_the_seeds() {
        let order = |seed| cells(&[0, 1, 2], &[1, 2, 3], 2, None, seed);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
