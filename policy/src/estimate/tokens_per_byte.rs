//! Tokens per byte of prompt text, learned from the `usage` of answers.
//!
//! A ratio of sums, not a mean of ratios: long prompts are what costs, so they weigh by their length. Old sums are
//! halved once they are large, so that a model that changes its traffic is followed. Template tokens are part of the
//! ratio, which is exact enough: the estimate feeds costs, never a cut.
//!
//! A prompt counts within what text can be: a client may send a megabyte that a template leaves out, or a line that names
//! an hour of video, and neither says how long the next prompt is.

use crate::units::Tokens;

/// Sums are halved when they pass this many bytes: a memory of some hundred long prompts.
const MEMORY_BYTES: f64 = 8e6;

/// Fewest tokens per byte that are believed: the longest tokens, runs of spaces, stand for some hundred bytes.
const LEAST: f64 = 1.0 / 64.0;
/// Most: a short prompt with a picture in it.
const MOST: f64 = 16.0;

/// The ratio of one model.
#[derive(Clone, Copy, Debug)]
pub struct TokensPerByte {
    tokens: f64,
    bytes: f64,
}

impl TokensPerByte {
    /// Starts from a guess, worth some 10 kB of text.
    #[must_use]
    pub fn new(initial: f64) -> Self {
        const PRIOR_BYTES: f64 = 10_000.0;
        let initial = if initial.is_finite() {
            initial.clamp(LEAST, MOST)
        } else {
            0.25
        };
        Self {
            tokens: initial * PRIOR_BYTES,
            bytes: PRIOR_BYTES,
        }
    }

    /// A prompt of `bytes` canonical bytes was counted as `tokens` by an engine.
    pub fn observe(&mut self, bytes: u64, tokens: Tokens) {
        if bytes == 0 || tokens.0 == 0 {
            return;
        }
        let bytes = bytes as f64;
        self.tokens += tokens.as_f64().clamp(bytes * LEAST, bytes * MOST);
        self.bytes += bytes;
        if self.bytes > MEMORY_BYTES {
            self.tokens /= 2.0;
            self.bytes /= 2.0;
        }
    }

    /// Tokens per byte.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.tokens / self.bytes
    }

    /// The tokens that `bytes` of text are expected to make, rounded.
    #[must_use]
    pub fn tokens(&self, bytes: u64) -> Tokens {
        Tokens((bytes as f64 * self.ratio()).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_the_ratio_of_the_text_it_sees() {
        let mut ratio = TokensPerByte::new(0.25);
        assert_eq!(ratio.tokens(4000), Tokens(1000));
        for _ in 0..200 {
            ratio.observe(10_000, Tokens(4000));
        }
        assert!((ratio.ratio() - 0.4).abs() < 0.002);
    }

    #[test]
    fn it_follows_a_change_of_traffic() {
        let mut ratio = TokensPerByte::new(0.25);
        for _ in 0..10_000 {
            ratio.observe(100_000, Tokens(20_000));
        }
        for _ in 0..500 {
            ratio.observe(100_000, Tokens(40_000));
        }
        assert!((ratio.ratio() - 0.4).abs() < 0.01);
    }

    #[test]
    fn what_no_text_can_be_moves_it_no_farther_than_text_can() {
        for (bytes, tokens, bound) in [(1_000_000, 10, LEAST), (100, 1_000_000, MOST)] {
            let mut ratio = TokensPerByte::new(0.25);
            for _ in 0..100_000 {
                ratio.observe(bytes, Tokens(tokens));
            }
            assert!((ratio.ratio() / bound - 1.0).abs() < 0.02, "{}", ratio.ratio());
        }
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut ratio = TokensPerByte::new(f64::NAN);
        ratio.observe(0, Tokens(5));
        ratio.observe(5, Tokens(0));
        assert!((ratio.ratio() - 0.25).abs() < 1e-12);
    }
}
