//! The latest chain of each session, for hints: a bounded map with LRU eviction.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::ids::PrefixHash;
use policy::units::Millis;
use rustc_hash::FxHashMap;

use crate::hints::HintKind;

#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Blocks of the last finished turn.
    pub(crate) chain: Vec<PrefixHash>,
    /// Epoch of the newest hint seen.
    pub(crate) epoch: u64,
    pub(crate) in_engine: u32,
    /// A hint that waits for the running turn.
    pub(crate) pending: Option<PendingHint>,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingHint {
    pub(crate) kind: HintKind,
    pub(crate) keep_tokens: Option<u64>,
    pub(crate) expires: Option<Millis>,
}

#[derive(Debug)]
pub(crate) struct Sessions {
    limit: usize,
    by_name: FxHashMap<Arc<str>, Session>,
    by_use: BTreeMap<u64, Arc<str>>,
    tick: u64,
}

impl Sessions {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            by_name: FxHashMap::default(),
            by_use: BTreeMap::new(),
            tick: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn clear(&mut self) {
        self.by_name.clear();
        self.by_use.clear();
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Session> {
        self.by_name.get_mut(name)
    }

    pub(crate) fn arrived(&mut self, name: &Arc<str>) {
        self.touch(name).in_engine += 1;
    }

    /// Stores the finished turn's chain. Returns the pending hint, if no other turn is running.
    pub(crate) fn finished(&mut self, name: &Arc<str>, chain: Vec<PrefixHash>) -> Option<PendingHint> {
        let session = self.touch(name);
        session.in_engine = session.in_engine.saturating_sub(1);
        if !chain.is_empty() {
            session.chain = chain;
        }
        if session.in_engine == 0 {
            session.pending.take()
        } else {
            None
        }
    }

    fn touch(&mut self, name: &Arc<str>) -> &mut Session {
        self.tick += 1;
        if !self.by_name.contains_key(name)
            && self.by_name.len() >= self.limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.by_name.remove(&oldest);
        }
        let session = self.by_name.entry(Arc::clone(name)).or_default();
        self.by_use.remove(&session.used);
        session.used = self.tick;
        self.by_use.insert(self.tick, Arc::clone(name));
        session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_bounded_and_evicts_the_least_recently_used() {
        let mut sessions = Sessions::new(2);
        let names: Vec<Arc<str>> = ["a", "b", "a", "c"].into_iter().map(Arc::from).collect();
        for name in &names {
            sessions.arrived(name);
        }
        assert_eq!((sessions.len(), sessions.by_use.len()), (2, 2));
        assert_eq!(sessions.get_mut("a").map(|session| session.in_engine), Some(2));
        assert!(sessions.get_mut("b").is_none());
    }
}
