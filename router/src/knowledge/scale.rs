//! Where in tokens a place in the text is.
//!
//! A model's ratio of tokens to bytes is an average; it is off by a block within a few hundred tokens. But workers count
//! the prompts that they serve, and a prompt's end is a key of every later turn: so a conversation's text is pinned at
//! each of its turns, exactly, and only what lies between two pins, or after the last, is estimated.

use policy::fingerprint::{CHUNK_BYTES, Chain};
use policy::ids::PrefixHash;

/// From bytes of one prompt to tokens.
#[derive(Debug)]
pub(super) struct Scale {
    /// Bytes and tokens of known places, both rising; the first is the beginning.
    pins: Vec<(u64, u64)>,
    ratio: f64,
}

impl Scale {
    /// Nothing is known but the ratio.
    pub(super) fn straight(ratio: f64) -> Self {
        Self {
            pins: vec![(0, 0)],
            ratio,
        }
    }

    /// Of a chain, some of whose keys have known places.
    pub(super) fn of(chain: &Chain, ratio: f64, place: impl Fn(PrefixHash) -> Option<u64>) -> Self {
        let mut scale = Self::straight(ratio);
        let mut start = 0;
        for (&key, &end) in chain.hashes().iter().zip(chain.ends()) {
            // Turns end where messages do, and there a chunk is cut short: others need not be looked up.
            let is_short = end - std::mem::replace(&mut start, end) != CHUNK_BYTES as u64;
            let last = scale.pins.last().copied().unwrap_or_default();
            if is_short
                && let Some(tokens) = place(key)
                && end > last.0
                && tokens > last.1
            {
                scale.pins.push((end, tokens));
            }
        }
        scale
    }

    /// Tokens of the first `bytes` bytes.
    pub(super) fn tokens(&self, bytes: u64) -> u64 {
        let after = self.pins.partition_point(|pin| pin.0 <= bytes);
        let (from, at) = self
            .pins
            .get(after.saturating_sub(1))
            .copied()
            .unwrap_or_default();
        let ratio = match self.pins.get(after) {
            Some(next) => (next.1 - at) as f64 / (next.0 - from) as f64,
            None => self.ratio,
        };
        at + ((bytes - from) as f64 * ratio).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use policy::fingerprint::ChainBuilder;

    use super::*;

    #[test]
    fn pinned_places_are_exact_and_the_rest_lies_between_them() {
        let mut builder = ChainBuilder::new("m", None);
        for _ in 0..3 {
            builder.begin_message("user");
            builder.push(&[b'x'; 900]);
        }
        builder.end_message();
        let chain = builder.into_chain();
        let (hashes, ends) = (chain.hashes(), chain.ends());
        let scale = Scale::of(&chain, 0.5, |key| match key {
            key if key == hashes[3] => Some(300),
            key if key == hashes[7] => Some(200),
            _ => None,
        });
        assert_eq!(scale.tokens(ends[3]), 300);
        assert_eq!(scale.tokens(ends[3] / 2), 150);
        assert_eq!(
            scale.tokens(ends[3] + 100),
            350,
            "the second pin contradicts the first"
        );
        assert_eq!(scale.tokens(0), 0);
    }
}
