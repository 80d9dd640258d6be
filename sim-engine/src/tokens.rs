//! A tokenizer without a vocabulary: deterministic, and stable under appending. Text is cut into pieces of words, of at
//! most [`MAX_PIECE_BYTES`] bytes, each with the white space before it. A token is the hash of its piece, so appending
//! to a text changes at most its last token. Generated words are exactly one piece each: a reply in the history becomes
//! the generated tokens, and the next turn hits the cache.

use policy::ids::PrefixHash;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Length of the longest piece, in bytes.
pub const MAX_PIECE_BYTES: usize = 6;

/// The range of template tokens, which no text piece hashes into.
const SPECIAL: u32 = 1 << 31;

/// Returns the pieces of a text in order. Joined, they are the text.
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

/// Returns the token of one piece.
pub fn piece_token(piece: &str) -> u32 {
    xxh3_64(piece.as_bytes()) as u32 & !SPECIAL
}

/// Returns the token of a template marker such as `<|user|>`, which no text produces.
pub fn special_token(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32 | SPECIAL
}

/// Appends the tokens of a text.
pub fn push_text(text: &str, tokens: &mut Vec<u32>) {
    tokens.extend(pieces(text).map(piece_token));
}

/// Chains tokens into block hashes. Each hash identifies the whole prefix up to its block's end.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    block_size: usize,
    parent: PrefixHash,
    partial: Vec<u32>,
}

impl BlockHasher {
    /// Returns a hasher for one model and cache salt. A `block_size` of 0 counts as 1.
    pub fn new(model: &str, cache_salt: Option<&str>, block_size: u32) -> Self {
        let root = xxh3_64(model.as_bytes());
        let root = cache_salt.map_or(root, |salt| xxh3_64_with_seed(salt.as_bytes(), root));
        Self::below(PrefixHash(root), block_size)
    }

    /// Returns a hasher that continues after the block `parent`.
    pub fn below(parent: PrefixHash, block_size: u32) -> Self {
        let block_size = block_size.max(1) as usize;
        Self {
            block_size,
            parent,
            partial: Vec::with_capacity(block_size),
        }
    }

    /// Adds a token. Returns the hash of the block that it completes.
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

    /// Returns the number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the tokens of the incomplete block.
    pub fn partial(&self) -> &[u32] {
        &self.partial
    }

    /// Returns a number that depends on all tokens so far.
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
