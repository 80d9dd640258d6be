//! The stored responses of `/v1/responses`, which later requests continue or fetch. They are bounded by number and
//! bytes, the least recently used dropped first, shared by all ranks, and like vLLM's lost when the engine dies.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use serde_json::Value;

use crate::prompt::Message;

const MAX_RESPONSES: u32 = 4096;

const MAX_BYTES: u32 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) response: Value,
    /// The conversation with the reply, without instructions, which a continuation does not inherit.
    pub(crate) messages: Vec<Message>,
    /// Approximate size of the conversation in bytes.
    pub(crate) bytes: usize,
}

pub(crate) struct Responses {
    /// Part of every id, so that the ids of several engines differ: a router finds a response's engine by its id.
    engine: u64,
    created: AtomicU64,
    table: Cache<String, Arc<Stored>>,
}

impl Default for Responses {
    fn default() -> Self {
        let table = Cache::builder()
            .max_capacity(MAX_BYTES.into())
            .weigher(|_, stored: &Arc<Stored>| stored.weight())
            .eviction_policy(EvictionPolicy::lru());
        Self {
            engine: RandomState::new().build_hasher().finish(),
            created: AtomicU64::new(0),
            table: table.build(),
        }
    }
}

impl Stored {
    /// Returns the size in bytes, and at least so much that the bound on bytes bounds the number too.
    fn weight(&self) -> u32 {
        let bytes = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        bytes.max(MAX_BYTES / MAX_RESPONSES)
    }
}

impl Responses {
    pub(crate) fn new_id(&self) -> String {
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        format!("resp_{:016x}{number:08x}", self.engine)
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.table.get(id)
    }

    pub(crate) fn keep(&self, id: String, stored: Stored) {
        self.table.insert(id, Arc::new(stored));
        // Responses may be large: none beyond the bound waits to be dropped.
        self.table.run_pending_tasks();
    }

    pub(crate) fn clear(&self) {
        self.table.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored {
            response: Value::Null,
            messages: Vec::new(),
            bytes,
        }
    }

    #[test]
    fn the_least_recently_used_responses_make_room() {
        let responses = Responses::default();
        for number in 0..MAX_RESPONSES {
            responses.keep(number.to_string(), stored(1));
        }
        assert!(responses.find("0").is_some());
        responses.keep("new".to_owned(), stored(1));
        let found = ["0", "1", "2", "new"].map(|id| responses.find(id).is_some());
        assert_eq!(found, [true, false, true, true]);
        responses.keep("large".to_owned(), stored(MAX_BYTES as usize));
        assert!(responses.find("large").is_some());
        assert_eq!(responses.table.entry_count(), 1);
        responses.keep("larger".to_owned(), stored(MAX_BYTES as usize + 1));
        assert!(responses.find("larger").is_none());
        responses.clear();
        assert!(responses.find("large").is_none());
    }

    #[test]
    fn an_id_used_again_replaces_its_response() {
        let responses = Responses::default();
        responses.keep("a".to_owned(), stored(1));
        responses.keep("a".to_owned(), stored(MAX_BYTES as usize / 2));
        let bytes = responses.find("a").map(|stored| stored.bytes);
        assert_eq!(bytes, Some(MAX_BYTES as usize / 2));
        let table = &responses.table;
        assert_eq!(
            (table.entry_count(), table.weighted_size()),
            (1, u64::from(MAX_BYTES / 2))
        );
    }

    #[test]
    fn ids_of_two_engines_differ() {
        assert_ne!(Responses::default().new_id(), Responses::default().new_id());
    }
}
