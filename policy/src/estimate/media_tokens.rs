//! Tokens of an image and of other media, learned from the `usage` of responses.
//!
//! A prompt names media by a URL or a digest, and the model's processor makes tokens of their pixels or samples:
//! between four and sixteen thousand per image. Each kind of media therefore has its own mean, over about the last
//! [`MEMORY`] prompts. The first sample replaces the prior, which is a guess. Later samples are clipped to at most
//! [`STRAY`] times the mean and at least the mean divided by it, so that one odd prompt moves the mean little.

use crate::fingerprint::Medium;
use crate::units::Tokens;

/// Number of prompts that the mean follows.
const MEMORY: u32 = 32;
/// Largest factor between a sample and the mean.
const STRAY: f64 = 4.0;
/// Upper bound on the tokens of one medium.
const MOST: f64 = 32_768.0;
/// Share of the text's tokens by which their estimate may be wrong.
const TEXT_ERROR: f64 = 0.25;

/// Mean tokens of each kind of media, for one model.
#[derive(Clone, Copy, Debug)]
pub struct MediaTokens([Estimate; Medium::ALL.len()]);

#[derive(Clone, Copy, Debug)]
struct Estimate {
    tokens: f64,
    prompts: u32,
}

impl Estimate {
    const fn prior(tokens: f64) -> Self {
        Self { tokens, prompts: 0 }
    }
}

impl MediaTokens {
    /// The estimates before the first observation: an image of 900 × 900 pixels at 28 × 28 pixels per token, 20 s of
    /// sound at 25 tokens per second, a few seconds of video, four pages of a document.
    pub const PRIOR: Self = Self([
        Estimate::prior(1000.0),
        Estimate::prior(500.0),
        Estimate::prior(4000.0),
        Estimate::prior(4000.0),
    ]);

    /// Returns the expected tokens of a medium of this kind.
    pub fn of(&self, medium: Medium) -> Tokens {
        Tokens(self.0[medium as usize].tokens.round() as u64)
    }

    /// Records a prompt of `counted` tokens with `count` media of one kind. The tokens beyond `text`, the estimate for
    /// the prompt's text, are attributed to the media. Ignored if the error of that estimate could exceed them.
    pub fn observe(&mut self, medium: Medium, count: u64, counted: Tokens, text: Tokens) {
        let known = &mut self.0[medium as usize];
        let (count, counted, text) = (count as f64, counted.as_f64(), text.as_f64());
        if count < 1.0 || text * TEXT_ERROR > count * known.tokens {
            return;
        }
        let each = ((counted - text) / count).clamp(1.0, MOST);
        known.prompts = (known.prompts + 1).min(MEMORY);
        if known.prompts == 1 {
            known.tokens = each;
        } else {
            let each = each.clamp(known.tokens / STRAY, known.tokens * STRAY);
            known.tokens += (each - known.tokens) / f64::from(known.prompts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(samples: &[u64]) -> u64 {
        let mut media = MediaTokens::PRIOR;
        for &tokens in samples {
            media.observe(Medium::Image, 1, Tokens(tokens + 20), Tokens(20));
        }
        media.of(Medium::Image).0
    }

    #[test]
    fn the_first_prompt_replaces_the_prior() {
        assert_eq!(observed(&[]), 1000);
        assert_eq!(observed(&[1200]), 1200);
        assert_eq!(observed(&[256, 256, 256]), 256);
    }

    #[test]
    fn one_stray_prompt_moves_the_mean_little() {
        let mut samples = vec![1200; 40];
        samples.push(1_000_000);
        assert!(
            (1200..1320).contains(&observed(&samples)),
            "{}",
            observed(&samples)
        );
        samples.push(0);
        assert!(
            (1150..1320).contains(&observed(&samples)),
            "{}",
            observed(&samples)
        );
    }

    #[test]
    fn it_follows_a_change_of_traffic() {
        let samples: Vec<u64> = [300; 100].into_iter().chain([1000; 150]).collect();
        assert!(
            (980..=1000).contains(&observed(&samples)),
            "{}",
            observed(&samples)
        );
    }

    #[test]
    fn kinds_are_apart_and_all_are_bounded() {
        let mut media = MediaTokens::PRIOR;
        media.observe(Medium::Audio, 2, Tokens(u64::MAX), Tokens(0));
        media.observe(Medium::Video, 3, Tokens(10), Tokens(30));
        assert_eq!(
            Medium::ALL.map(|medium| media.of(medium).0),
            [1000, 32_768, 1, 4000]
        );
        media.observe(Medium::Image, 0, Tokens(500), Tokens(0));
        assert_eq!(media.of(Medium::Image), Tokens(1000));
    }

    #[test]
    fn media_beside_much_text_teach_nothing() {
        let mut media = MediaTokens::PRIOR;
        media.observe(Medium::Image, 1, Tokens(50_000), Tokens(30_000));
        assert_eq!(media.of(Medium::Image), Tokens(1000));
        media.observe(Medium::Image, 50, Tokens(42_500), Tokens(30_000));
        assert_eq!(media.of(Medium::Image), Tokens(250));
    }
}
