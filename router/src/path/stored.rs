//! Which worker keeps which response.
//!
//! `/v1/responses` has a state: a request may go on from an earlier response by its id (`previous_response_id`), or ask for
//! it again. Engines keep responses in their own memory, so only the worker that made one has it, and its cache is where
//! the conversation lives. So the ids of passing answers are remembered, by their hashes, as many as the table holds; of
//! the oldest the worker is forgotten. A request that names such a one goes where any other would; where there are tenants
//! it is answered 404, because the response may be another's.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use protocol::routes::response_key;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::session::Session;

/// Responses that are remembered: about 8 MB with their conversations' names.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Where a response is, and what it is a turn of.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The worker that made it.
    pub worker: WorkerId,
    /// Its conversation, if it has one.
    pub conversation: Option<Session>,
}

/// The responses of late.
#[derive(Debug)]
pub struct Stored(Mutex<LruCache<u64, Kept>>);

impl Default for Stored {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Stored {
    /// A response with this key was made for a tenant, which is known by [its seed](crate::admission::keys::Caller::seed).
    pub fn keep(&self, tenant: u64, key: u64, kept: Kept) {
        self.0
            .lock()
            .put(xxh3_64_with_seed(&key.to_le_bytes(), tenant), kept);
    }

    /// A worker is gone, and with it what it made.
    pub fn left(&self, worker: WorkerId) {
        let mut kept = self.0.lock();
        let its: Vec<u64> = kept
            .iter()
            .filter(|(_, kept)| kept.worker == worker)
            .map(|(&key, _)| key)
            .collect();
        for key in its {
            kept.pop(&key);
        }
    }

    /// Where a tenant's response of this id is. No tenant finds another's.
    #[must_use]
    pub fn find(&self, tenant: u64, id: &str) -> Option<Kept> {
        let key = xxh3_64_with_seed(&response_key(id).to_le_bytes(), tenant);
        self.0.lock().get(&key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(stored: &Stored, tenant: u64, id: &str) -> Option<u32> {
        stored.find(tenant, id).map(|kept| kept.worker.0)
    }

    fn keep(stored: &Stored, tenant: u64, id: &str, slot: u32) {
        let kept = Kept {
            worker: WorkerId(slot),
            conversation: None,
        };
        stored.keep(tenant, response_key(id), kept);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let stored = Stored::default();
        for at in 0..=REMEMBERED.get() {
            keep(&stored, 0, &at.to_string(), at as u32 % 7);
        }
        assert_eq!((slot(&stored, 0, "0"), slot(&stored, 0, "1")), (None, Some(1)));
        assert_eq!(stored.0.lock().len(), REMEMBERED.get());
    }

    #[test]
    fn no_tenant_finds_anothers() {
        let stored = Stored::default();
        keep(&stored, 1, "resp_1", 1);
        keep(&stored, 2, "resp_1", 2);
        assert_eq!(slot(&stored, 1, "resp_1"), Some(1));
        assert_eq!(slot(&stored, 2, "resp_1"), Some(2));
        assert_eq!(
            (slot(&stored, 0, "resp_1"), slot(&stored, 3, "resp_1")),
            (None, None)
        );
    }
}
