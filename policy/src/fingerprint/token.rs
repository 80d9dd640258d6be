//! Token keys: one per full engine block.

use std::num::NonZeroU32;

use super::chain::{Chain, digest, fold, root};
use crate::ids::PrefixHash;

/// The block size of most engines: its blocks are hashed without a branch on their length.
const COMMON_TOKENS: usize = 16;

/// The link before the first block of a prompt of this model and cache salt.
#[must_use]
pub fn token_root(model: &str, cache_salt: Option<&str>) -> PrefixHash {
    PrefixHash(root(b"tailroute tokens 2", model, cache_salt))
}

/// Appends one key per *full* block of `block_size` tokens, continuing from `previous` ([`token_root`], or the last key
/// of the blocks before). A last partial block makes no key: engines do not share one either.
///
/// A block is hashed as the bytes that it is in memory, and blocks are hashed side by side: only [`fold`] is a chain.
pub fn push_token_blocks(previous: PrefixHash, tokens: &[u32], block_size: NonZeroU32, chain: &mut Chain) {
    let size = block_size.get() as usize;
    let mut link = previous.0;
    let mut end = chain.span(chain.len());
    chain.reserve(tokens.len() / size);
    let mut push = |digest| {
        link = fold(link, digest);
        end += u64::from(block_size.get());
        chain.push(link, end);
    };
    if size == COMMON_TOKENS {
        let (blocks, _) = tokens.as_chunks::<COMMON_TOKENS>();
        blocks
            .iter()
            .for_each(|block| push(digest(bytemuck::bytes_of(block))));
    } else {
        let blocks = tokens.chunks_exact(size);
        blocks.for_each(|block| push(digest(bytemuck::cast_slice(block))));
    }
}
