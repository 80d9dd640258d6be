use std::collections::BTreeMap;
use std::sync::Arc;

use policy::ids::PrefixHash;
use policy::units::Millis;
use proptest::prelude::*;

use super::*;
use crate::config::{EngineConfig, KvEventsConfig};
use crate::scheduler::{Scheduler, Submission};
use crate::tokens::BlockHasher;

const BLOCK: u32 = 4;

/// A prompt of one conversation; the tokens up to `shared` are the same in all conversations.
fn submission(conversation: u32, shared: u32, length: u32, output_tokens: u32) -> Submission {
    let tokens: Vec<u32> = (0..length)
        .map(|at| {
            if at < shared {
                at
            } else {
                1000 * (conversation + 1) + at
            }
        })
        .collect();
    let mut hasher = BlockHasher::new("m", None, BLOCK);
    let chain = tokens.iter().filter_map(|&token| hasher.push(token)).collect();
    Submission {
        prompt_tokens: u64::from(length),
        chain,
        seed: hasher.digest(),
        hasher,
        tokens: Some(Arc::from(tokens)),
        script: None,
        output_tokens,
        runs_out: true,
        priority: 0,
        terms: CacheTerms {
            session: Some(format!("s{conversation}").into()),
            ..CacheTerms::default()
        },
    }
}

/// The blocks that a subscriber has learned, with their parents.
#[derive(Default)]
struct Subscriber(BTreeMap<u64, Option<u64>>);

impl Subscriber {
    fn take(&mut self, event: KvEvent) {
        match event {
            KvEvent::BlockStored {
                block_hashes,
                parent_block_hash,
                token_ids,
                block_size,
                extra_keys,
                ..
            } => {
                assert_eq!(token_ids.len(), block_hashes.len() * block_size as usize);
                assert_eq!(extra_keys.len(), block_hashes.len());
                let mut parent = parent_block_hash;
                let mut hasher = match parent {
                    None => BlockHasher::new("m", None, block_size),
                    Some(parent) => BlockHasher::below(PrefixHash(parent), block_size),
                };
                for (hash, tokens) in block_hashes
                    .into_iter()
                    .zip(token_ids.chunks(block_size as usize))
                {
                    let computed = tokens.iter().filter_map(|&token| hasher.push(token)).last();
                    assert_eq!(computed, Some(PrefixHash(hash)), "the tokens are the block's");
                    assert!(
                        parent.is_none_or(|parent| self.0.contains_key(&parent)),
                        "the parent is known"
                    );
                    assert!(self.0.insert(hash, parent).is_none(), "stored once");
                    parent = Some(hash);
                }
            }
            KvEvent::BlockRemoved { block_hashes, .. } => {
                let [hash] = block_hashes[..] else {
                    panic!("one block per event")
                };
                assert!(self.0.remove(&hash).is_some(), "it was there");
                assert!(
                    !self.0.values().any(|&parent| parent == Some(hash)),
                    "nothing hangs below it"
                );
            }
            KvEvent::AllBlocksCleared => self.0.clear(),
        }
    }
}

proptest! {
    #[test]
    fn events_describe_the_cache_exactly(
        turns in prop::collection::vec((0..4u32, 0..20u32, 1..60u32, 1..20u32, 0.0..80.0, any::<bool>()), 1..25),
    ) {
        let config = EngineConfig {
            block_size: BLOCK,
            capacity_blocks: 24,
            kv_events: Some(KvEventsConfig::default()),
            ..EngineConfig::default()
        };
        let mut scheduler = Scheduler::new(&config);
        let mut subscriber = Subscriber::default();
        let mut now = 0.0;
        for (conversation, shared, length, output, pause, leaves) in turns {
            now += pause;
            let id = scheduler.submit(Millis(now), submission(conversation, shared, length, output));
            if leaves {
                now += pause;
                scheduler.abort(Millis(now), id.unwrap());
            }
            scheduler.memory.take_events().into_iter().for_each(|event| subscriber.take(event));
            let cache = scheduler.memory.cache();
            prop_assert_eq!(subscriber.0.len(), cache.len());
            prop_assert!(subscriber.0.keys().all(|&hash| cache.contains(PrefixHash(hash))));
        }
    }
}
