//! Tokens per byte of prompt text, learned from the `usage` of responses.
//!
//! A ratio of sums, not a mean of ratios: long prompts dominate the cost, so they weigh by their length. Sums are
//! halved when they are large, so that changing traffic is followed. Samples are clamped to what text can be: a client
//! may send a megabyte that a template omits, or a line that names an hour of video.

use crate::units::Tokens;

/// Bytes at which the sums are halved: a memory of some hundred long prompts.
const MEMORY_BYTES: f64 = 8e6;

/// Lower bound on tokens per byte: the longest tokens, runs of spaces, cover some hundred bytes.
const LEAST: f64 = 1.0 / 64.0;
/// Upper bound on tokens per byte: a short prompt with an image in it.
const MOST: f64 = 16.0;

/// The ratio of one model.
#[derive(Clone, Copy, Debug)]
pub struct TokensPerByte {
    tokens: f64,
    bytes: f64,
}

impl TokensPerByte {
    /// Starts from a guess, worth some 10 kB of text.
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

    /// Records that an engine counted `tokens` tokens in a prompt of `bytes` canonical bytes.
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

    /// Returns the tokens per byte.
    pub fn ratio(&self) -> f64 {
        self.tokens / self.bytes
    }

    /// Returns the expected tokens of `bytes` of text, rounded.
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
