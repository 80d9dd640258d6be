//! Tracks which worker stores which response.
//!
//! Engines keep the responses of `/v1/responses` in memory, so only the worker that made one can return it or continue
//! it (`previous_response_id`). The least recently used are forgotten. A request for an unknown id is routed like any
//! other; with tenants it is answered 404, because the response may be another tenant's.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use protocol::api::responses::response_key;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::session::Session;

/// Largest number of responses tracked: about 8 MB with their conversations' names.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The worker and conversation of a response.
#[derive(Clone, Debug)]
pub struct Kept {
    pub worker: WorkerId,
    /// The conversation of the response, if it has one.
    pub conversation: Option<Session>,
}

/// The workers and conversations of recent responses.
#[derive(Debug)]
pub struct Stored(Mutex<LruCache<u64, Kept>>);

impl Default for Stored {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Stored {
    /// Records a response of a tenant, identified by [its seed](crate::admission::keys::Caller::seed).
    pub fn keep(&self, tenant: u64, key: u64, kept: Kept) {
        self.0
            .lock()
            .put(xxh3_64_with_seed(&key.to_le_bytes(), tenant), kept);
    }

    /// Removes the responses of a worker that is gone.
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

    /// Finds a tenant's response. Tenants cannot find each other's.
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
