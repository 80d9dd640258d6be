//! Cache events in the format of SGLang ≥ 0.5.20: one block per event, signed hashes, no session, no group.

use serde::Serialize;

use super::KvEvent;

/// One event with the fields of SGLang 0.5.23.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub(super) enum SglangEvent<'a> {
    BlockStored {
        block_hashes: [i64; 1],
        parent_block_hash: Option<i64>,
        token_ids: &'a [u32],
        block_size: u32,
        lora_id: Option<u64>,
        medium: &'static str,
        cache_salt: Option<&'a str>,
    },
    BlockRemoved {
        block_hashes: [i64; 1],
        medium: &'static str,
    },
    AllBlocksCleared,
}

pub(super) fn events(events: &[KvEvent]) -> Vec<SglangEvent<'_>> {
    events.iter().flat_map(event).collect()
}

fn event(event: &KvEvent) -> Vec<SglangEvent<'_>> {
    match event {
        KvEvent::BlockStored {
            block_hashes,
            parent_block_hash,
            token_ids,
            block_size,
            medium,
            ..
        } => {
            let parents = std::iter::once(*parent_block_hash).chain(block_hashes.iter().copied().map(Some));
            let tokens = token_ids.chunks((*block_size).max(1) as usize);
            let blocks = block_hashes.iter().zip(parents).zip(tokens);
            blocks
                .map(|((&hash, parent), token_ids)| SglangEvent::BlockStored {
                    block_hashes: [hash as i64],
                    parent_block_hash: parent.map(|parent| parent as i64),
                    token_ids,
                    block_size: *block_size,
                    lora_id: None,
                    medium,
                    cache_salt: None,
                })
                .collect()
        }
        KvEvent::BlockRemoved {
            block_hashes, medium, ..
        } => (block_hashes.iter())
            .map(|&hash| SglangEvent::BlockRemoved {
                block_hashes: [hash as i64],
                medium,
            })
            .collect(),
        KvEvent::AllBlocksCleared => vec![SglangEvent::AllBlocksCleared],
    }
}
