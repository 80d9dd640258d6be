//! A tokenizer without a vocabulary: deterministic, and stable under appending.
//!
//! Text is cut into word pieces of at most [`MAX_PIECE_BYTES`] bytes; white space begins a piece and belongs to the
//! word after it. A token is the hash of its piece. Appending to a text changes at most its last token, and the words
//! that the engine generates are exactly one piece each, so a reply that comes back as history becomes the very tokens
//! that were generated and the next turn hits the cache through it.

use policy::ids::PrefixHash;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The longest piece of a word.
pub const MAX_PIECE_BYTES: usize = 6;

/// Where the template's own tokens begin: no text piece hashes there.
const SPECIAL: u32 = 1 << 31;

/// The pieces of a text, in order; joined they are the text.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = 0;
        for (at, char) in rest.char_indices() {
            let past = at + char.len_utf8();
            if at > 0 && (char.is_ascii_whitespace() || past > MAX_PIECE_BYTES) {
                break;
            }
            end = past;
        }
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The token of one piece.
#[must_use]
pub fn piece_token(piece: &str) -> u32 {
    xxh3_64(piece.as_bytes()) as u32 & !SPECIAL
}

/// The token of a template marker such as `<|user|>`, which no text can spell.
#[must_use]
pub fn special_token(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32 | SPECIAL
}

/// Appends the tokens of a text.
pub fn push_text(text: &str, tokens: &mut Vec<u32>) {
    tokens.extend(pieces(text).map(piece_token));
}

/// Chains tokens into block hashes: each names the whole prefix up to its end.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    block_size: usize,
    parent: PrefixHash,
    partial: Vec<u32>,
}

impl BlockHasher {
    /// A chain for one model and cache salt. `block_size` of 0 is taken as 1.
    #[must_use]
    pub fn new(model: &str, cache_salt: Option<&str>, block_size: u32) -> Self {
        let root = xxh3_64(model.as_bytes());
        let root = cache_salt.map_or(root, |salt| xxh3_64_with_seed(salt.as_bytes(), root));
        Self::below(PrefixHash(root), block_size)
    }

    /// What continues a chain after its block `parent`.
    #[must_use]
    pub fn below(parent: PrefixHash, block_size: u32) -> Self {
        let block_size = block_size.max(1) as usize;
        Self {
            block_size,
            parent,
            partial: Vec::with_capacity(block_size),
        }
    }

    /// Adds a token; returns the hash of the block that it filled.
    pub fn push(&mut self, token: u32) -> Option<PrefixHash> {
        self.partial.push(token);
        (self.partial.len() == self.block_size).then(|| {
            let mut bytes = Vec::with_capacity(4 * self.block_size);
            for token in self.partial.drain(..) {
                bytes.extend_from_slice(&token.to_le_bytes());
            }
            self.parent = PrefixHash(xxh3_64_with_seed(&bytes, self.parent.0));
            self.parent
        })
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The tokens of the block that is not full yet.
    #[must_use]
    pub fn partial(&self) -> &[u32] {
        &self.partial
    }

    /// A number that depends on every token so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.partial.iter().fold(self.parent.0, |digest, token| {
            xxh3_64_with_seed(&token.to_le_bytes(), digest)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text;

    fn tokens(text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        push_text(text, &mut tokens);
        tokens
    }

    #[test]
    fn white_space_belongs_to_the_word_after_it_and_long_words_are_cut() {
        let cut: Vec<&str> = pieces("Hello, wonderful  world\n日本語").collect();
        assert_eq!(cut, ["Hello,", " wonde", "rful", " ", " world", "\n日", "本語"]);
    }

    #[test]
    fn a_reply_sent_back_as_history_becomes_the_tokens_that_were_generated() {
        for multibyte in [false, true] {
            let words: Vec<String> = (0..500)
                .map(|at| text::word(7, at, multibyte).to_owned())
                .collect();
            let generated: Vec<u32> = words.iter().map(|word| piece_token(word)).collect();
            assert_eq!(tokens(&words.concat()), generated);
        }
    }

    #[test]
    fn the_salt_and_the_model_separate_chains() {
        let hash = |model: &str, salt: Option<&str>| BlockHasher::new(model, salt, 1).push(9);
        assert_ne!(hash("a", None), hash("b", None));
        assert_ne!(hash("a", None), hash("a", Some("tenant")));
    }

    proptest! {
        #[test]
        fn pieces_lose_nothing_and_stay_short(text in "\\PC{0,80}") {
            prop_assert_eq!(pieces(&text).collect::<String>(), text.clone());
            prop_assert!(pieces(&text).all(|piece| piece.len() <= MAX_PIECE_BYTES));
        }

        #[test]
        fn appending_changes_at_most_the_last_token(text in "[a-z é\n]{0,60}", more in "[a-z é\n]{0,20}") {
            let short = tokens(&text);
            let long = tokens(&format!("{text}{more}"));
            let stable = short.len().saturating_sub(1);
            prop_assert_eq!(&short[..stable], &long[..stable]);
        }
    }
}
