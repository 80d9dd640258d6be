//! Cache events in the format of vLLM ≥ 0.24: a batch is a msgpack array `[ts, [event…], dp_rank]`, an event a map.

pub(crate) mod log;
pub(crate) mod publish;
mod sglang;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use policy::ids::PrefixHash;
use serde::Serialize;

use crate::hints::CacheTerms;

/// One event with the fields of vLLM 0.32.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub(crate) enum KvEvent {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: u32,
        lora_id: Option<u64>,
        medium: &'static str,
        lora_name: Option<String>,
        extra_keys: Vec<Option<Vec<Arc<str>>>>,
        group_idx: u32,
        kv_cache_spec_kind: &'static str,
        session_id: Option<Arc<str>>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
        group_idx: u32,
    },
    AllBlocksCleared,
}

const GPU: &str = "GPU";

/// Returns a removal of one block, as vLLM sends it.
pub(crate) fn removed(hash: PrefixHash) -> KvEvent {
    KvEvent::BlockRemoved {
        block_hashes: vec![hash.0],
        medium: GPU,
        group_idx: 0,
    }
}

/// Adds a stored block to the last event if it continues that event's chain, else as a new event.
pub(crate) fn push_stored(
    events: &mut Vec<KvEvent>,
    hash: PrefixHash,
    parent: Option<PrefixHash>,
    tokens: &[u32],
    block_size: u32,
    terms: &CacheTerms,
) {
    if let Some(KvEvent::BlockStored {
        block_hashes,
        token_ids,
        extra_keys,
        session_id,
        ..
    }) = events.last_mut()
        && block_hashes.last().copied() == parent.map(|parent| parent.0)
        && *session_id == terms.session
    {
        block_hashes.push(hash.0);
        token_ids.extend_from_slice(tokens);
        extra_keys.push(None);
        return;
    }
    // The salt enters only the first block's hash, so only its keys contain it.
    let salt = terms.salt.as_ref().filter(|_| parent.is_none());
    events.push(KvEvent::BlockStored {
        block_hashes: vec![hash.0],
        parent_block_hash: parent.map(|parent| parent.0),
        token_ids: tokens.to_vec(),
        block_size,
        lora_id: None,
        medium: GPU,
        lora_name: None,
        extra_keys: vec![salt.map(|salt| vec![Arc::clone(salt)])],
        group_idx: 0,
        kv_cache_spec_kind: "full_attention",
        session_id: terms.session.clone(),
    });
}
