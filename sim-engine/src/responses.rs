//! The stored responses of `/v1/responses`, which later requests continue or fetch. They are bounded by number and
//! bytes, the oldest dropped first, shared by all ranks, and like vLLM's lost when the engine dies.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::prompt::Message;

const MAX_RESPONSES: usize = 4096;

const MAX_BYTES: usize = 256 << 20;

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
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_id: FxHashMap<String, Arc<Stored>>,
    /// The ids, oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            engine: RandomState::new().build_hasher().finish(),
            created: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }
}

impl Responses {
    pub(crate) fn new_id(&self) -> String {
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        format!("resp_{:016x}{number:08x}", self.engine)
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.table.lock().by_id.get(id).cloned()
    }

    pub(crate) fn keep(&self, id: String, stored: Stored) {
        self.table.lock().keep(id, stored);
    }

    pub(crate) fn clear(&self) {
        *self.table.lock() = Table::default();
    }
}

impl Table {
    fn keep(&mut self, id: String, stored: Stored) {
        self.bytes += stored.bytes;
        self.order.push_back(id.clone());
        if let Some(replaced) = self.by_id.insert(id.clone(), Arc::new(stored)) {
            self.bytes -= replaced.bytes;
            if let Some(at) = self.order.iter().position(|known| *known == id) {
                self.order.remove(at);
            }
        }
        while self.order.len() > MAX_RESPONSES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some(dropped) = self.by_id.remove(&oldest) {
                self.bytes -= dropped.bytes;
            }
        }
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
    fn the_oldest_responses_make_room() {
        let responses = Responses::default();
        for number in 0..=MAX_RESPONSES {
            responses.keep(number.to_string(), stored(1));
        }
        assert!(responses.find("0").is_none());
        assert!(responses.find("1").is_some());
        responses.keep("large".to_owned(), stored(MAX_BYTES - 1));
        assert_eq!(responses.table.lock().by_id.len(), 2);
        responses.keep("larger".to_owned(), stored(MAX_BYTES + 1));
        assert_eq!(responses.table.lock().by_id.len(), 0);
        assert_eq!(responses.table.lock().bytes, 0);
    }

    #[test]
    fn an_id_used_again_replaces_its_response() {
        let responses = Responses::default();
        responses.keep("a".to_owned(), stored(1));
        responses.keep("a".to_owned(), stored(3));
        assert_eq!(responses.find("a").map(|stored| stored.bytes), Some(3));
        let table = responses.table.lock();
        assert_eq!((table.order.len(), table.bytes), (1, 3));
    }

    #[test]
    fn ids_of_two_engines_differ() {
        assert_ne!(Responses::default().new_id(), Responses::default().new_id());
    }
}
