//! Token keys: one per full engine block.

use std::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64;

use super::chain::{Chain, fold, root};
use crate::ids::PrefixHash;

/// Tokens converted to bytes at a time.
const BATCH_TOKENS: usize = 256;

/// The link before the first block of a prompt of this model and cache salt.
#[must_use]
pub fn token_root(model: &str, cache_salt: Option<&str>) -> PrefixHash {
    PrefixHash(root(b"tailroute tokens 1", model, cache_salt))
}

/// Appends one key per *full* block of `block_size` tokens, continuing from `previous` ([`token_root`], or the last key
/// of the blocks before). A last partial block makes no key: engines do not share one either.
pub fn push_token_blocks(previous: PrefixHash, tokens: &[u32], block_size: NonZeroU32, chain: &mut Chain) {
    let size = block_size.get() as usize;
    let mut link = previous.0;
    let before = chain.span(chain.len());
    chain.reserve(tokens.len() / size);
    let mut bytes = [0u8; BATCH_TOKENS * 4];
    for (index, block) in tokens.chunks_exact(size).enumerate() {
        link = fold(link, digest(block, &mut bytes));
        chain.push(link, before + ((index + 1) * size) as u64);
    }
}

/// XXH3 of the tokens as little-endian bytes, in batches of a fixed size so that it needs no heap, only `bytes`: a block longer than
/// one batch is the fold of its batches.
fn digest(tokens: &[u32], bytes: &mut [u8; BATCH_TOKENS * 4]) -> u64 {
    let mut digests = tokens.chunks(BATCH_TOKENS).map(|batch| {
        let (words, _) = bytes.as_chunks_mut::<4>();
        for (word, token) in words.iter_mut().zip(batch) {
            *word = token.to_le_bytes();
        }
        xxh3_64(&bytes[..batch.len() * 4])
    });
    let first = digests.next().unwrap_or_default();
    digests.fold(first, fold)
}
