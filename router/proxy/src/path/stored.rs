//! Tracks which worker stores which response.
//!
//! Engines keep the responses of `/v1/responses` in memory, so only the worker that made one can return it or continue
//! it (`previous_response_id`). The least recently used are forgotten, in about that order. A request for an unknown id
//! is routed like any other; with tenants it is answered 404, because the response may be another tenant's.

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use policy::ids::WorkerId;
use protocol::api::responses::response_key;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::session::Session;

/// Largest number of responses tracked: 30 MB with their conversations' names.
const REMEMBERED: u64 = 1 << 16;

/// The worker and conversation of a response.
#[derive(Clone, Debug)]
pub struct Kept {
    pub worker: WorkerId,
    /// The conversation of the response, if it has one.
    pub conversation: Option<Session>,
}

/// The workers and conversations of recent responses.
#[derive(Debug)]
pub struct Stored(Cache<u64, Kept>);

impl Default for Stored {
    fn default() -> Self {
        // By the default policy, which counts uses, a full table would refuse new responses.
        let table = Cache::builder()
            .max_capacity(REMEMBERED)
            .eviction_policy(EvictionPolicy::lru())
            .support_invalidation_closures();
        Self(table.build())
    }
}

impl Stored {
    /// Records a response of a tenant, identified by [its seed](crate::admission::keys::Caller::seed).
    pub fn keep(&self, tenant: u64, key: u64, kept: Kept) {
        self.0.insert(xxh3_64_with_seed(&key.to_le_bytes(), tenant), kept);
    }

    /// Removes the responses of a worker that is gone.
    pub fn left(&self, worker: WorkerId) {
        // Fails only where such closures are not enabled.
        let _ = self.0.invalidate_entries_if(move |_, kept| kept.worker == worker);
    }

    /// Finds a tenant's response. Tenants cannot find each other's.
    pub fn find(&self, tenant: u64, id: &str) -> Option<Kept> {
        let key = xxh3_64_with_seed(&response_key(id).to_le_bytes(), tenant);
        self.0.get(&key)
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
    fn the_least_recently_used_are_forgotten() {
        let stored = Stored::default();
        for at in 0..REMEMBERED {
            keep(&stored, 0, &at.to_string(), at as u32 % 7);
        }
        stored.0.run_pending_tasks();
        assert_eq!(slot(&stored, 0, "0"), Some(0));
        keep(&stored, 0, "new", 1);
        stored.0.run_pending_tasks();
        let found = ["0", "1", "2", "new"].map(|id| slot(&stored, 0, id));
        assert_eq!(found, [Some(0), None, Some(2), Some(1)]);
        assert_eq!(stored.0.entry_count(), REMEMBERED);
    }

    #[test]
    fn the_responses_of_a_worker_go_with_it() {
        let stored = Stored::default();
        keep(&stored, 0, "a", 1);
        keep(&stored, 0, "b", 2);
        stored.left(WorkerId(1));
        assert_eq!((slot(&stored, 0, "a"), slot(&stored, 0, "b")), (None, Some(2)));
        stored.0.run_pending_tasks();
        assert_eq!(stored.0.entry_count(), 1);
        keep(&stored, 0, "a", 1);
        assert_eq!(slot(&stored, 0, "a"), Some(1), "another response");
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
