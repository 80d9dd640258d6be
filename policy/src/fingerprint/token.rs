//! Token keys: one per full engine block.

use std::num::NonZeroU32;

use super::chain::{Chain, digest, root};
use crate::ids::PrefixHash;

/// The block size of most engines, which has a specialised hash.
const COMMON_TOKENS: usize = 16;

/// Random, with the highest bit of each half set: no two token ids, which are below 2³¹, make a factor of zero.
const KEYS: [u64; 8] = [
    0xAD35_8DCC_AA6C_78A5,
    0x8BB8_4B93_962E_ACC9,
    0xCB33_A62E_D433_D4A3,
    0xCD5A_2DA5_9DE1_AA47,
    0xA076_1D64_F8BD_642F,
    0xE703_7ED1_A0B4_28DB,
    0x90ED_1765_A81C_388C,
    0xD1B5_4A32_9929_7CE3,
];

/// Returns the link before the first block of a prompt of this model and cache salt.
pub fn token_root(model: &str, cache_salt: Option<&str>) -> PrefixHash {
    PrefixHash(root(b"tailroute tokens 3", model, cache_salt))
}

/// Appends one key per *full* block of `block_size` tokens, continuing from `previous` ([`token_root`], or the last key
/// of the blocks before). A last partial block makes no key: engines do not share one either.
pub fn push_token_blocks(previous: PrefixHash, tokens: &[u32], block_size: NonZeroU32, chain: &mut Chain) {
    let size = block_size.get() as usize;
    if size == COMMON_TOKENS {
        let (blocks, _) = tokens.as_chunks();
        chain.extend_blocks(previous, block_size, blocks.iter().map(digest_common));
    } else {
        let blocks = tokens.chunks_exact(size);
        let digests = blocks.map(|block| digest(bytemuck::cast_slice(block)));
        chain.extend_blocks(previous, block_size, digests);
    }
}

/// Returns the hash of a block of the common size: four independent multiplications to 128 bits, each folded into its
/// halves, and their sum (wyhash without its chain; Wang Yi, 2019). Half the instructions of rapidhash.
#[inline]
fn digest_common(block: &[u32; COMMON_TOKENS]) -> u64 {
    let words: [u64; 8] = bytemuck::cast(*block);
    let factor = |at: usize| u128::from(words[at] ^ KEYS[at]);
    let pair = |at: usize| {
        let product = factor(at) * factor(at + 1);
        product as u64 ^ (product >> 64) as u64
    };
    pair(0)
        .wrapping_add(pair(2))
        .wrapping_add(pair(4))
        .wrapping_add(pair(6))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::chain::fold;
    use proptest::prelude::*;

    use super::*;

    /// [`KEYS`], as 32-bit halves, the lower one first.
    fn key(at: usize) -> [u64; 2] {
        [KEYS[at] & 0xFFFF_FFFF, KEYS[at] >> 32]
    }

    /// Multiplies in digits of 32 bits, and folds the product's upper half into the lower one.
    fn product(left: [u64; 2], right: [u64; 2]) -> u64 {
        let mut digits = [0; 4];
        for (at, left) in left.into_iter().enumerate() {
            let mut carry = 0;
            for (to, right) in (at..).zip(right) {
                let sum = digits[to] + left * right + carry;
                (digits[to], carry) = (sum & 0xFFFF_FFFF, sum >> 32);
            }
            digits[at + 2] = carry;
        }
        (digits[0] ^ digits[2]) | (digits[1] ^ digits[3]) << 32
    }

    /// Computes the digest token by token, four tokens to a product.
    fn naive(block: &[u32; COMMON_TOKENS]) -> u64 {
        let mut sum = 0_u64;
        for quad in 0..4 {
            let token = |at: usize| u64::from(block[4 * quad + at]);
            let factor = |pair: usize| {
                let [low, high] = key(2 * quad + pair);
                [token(2 * pair) ^ low, token(2 * pair + 1) ^ high]
            };
            sum = sum.wrapping_add(product(factor(0), factor(1)));
        }
        sum
    }

    proptest! {
        #[test]
        fn a_digest_is_its_twin_s(
            few in prop::array::uniform16(0..4_u32),
            any in prop::array::uniform16(any::<u32>()),
            after in any::<u64>(),
            count in 0..40_usize,
        ) {
            for block in [few, any, [0; COMMON_TOKENS], [u32::MAX; COMMON_TOKENS]] {
                prop_assert_eq!(digest_common(&block), naive(&block));
            }
            let tokens: Vec<u32> = any.iter().chain(&few).copied().cycle().take(count).collect();
            let (mut chain, mut link) = (Chain::new(), after);
            let size = NonZeroU32::new(COMMON_TOKENS as u32).unwrap();
            push_token_blocks(PrefixHash(after), &tokens, size, &mut chain);
            let links: Vec<PrefixHash> = tokens
                .chunks_exact(COMMON_TOKENS)
                .map(|block| {
                    link = fold(link, naive(block.try_into().unwrap()));
                    PrefixHash(link)
                })
                .collect();
            prop_assert_eq!(chain.hashes(), links);
        }
    }

    #[test]
    fn a_block_s_digest_depends_on_every_bit_of_its_tokens() {
        let block: [u32; COMMON_TOKENS] = std::array::from_fn(|at| 17 * at as u32);
        let known = digest_common(&block);
        for bit in 0..COMMON_TOKENS * 31 {
            let mut other = block;
            other[bit / 31] ^= 1 << (bit % 31);
            let changed = (digest_common(&other) ^ known).count_ones();
            assert!((8..=56).contains(&changed), "bit {bit} changes {changed}");
        }
    }

    #[test]
    fn blocks_of_few_distinct_tokens_do_not_collide() {
        let mut seen = HashSet::new();
        for number in 0..1_u32 << COMMON_TOKENS {
            let block: [u32; COMMON_TOKENS] = std::array::from_fn(|at| number >> at & 1);
            assert!(seen.insert(digest_common(&block)), "{block:?}");
        }
        for from in 0..COMMON_TOKENS {
            for token in 2..4000 {
                let mut block = [0; COMMON_TOKENS];
                block[from] = token;
                assert!(seen.insert(digest_common(&block)), "{block:?}");
            }
        }
    }
}
