//! The latest chain of each session, for hints: a bounded map with LRU eviction.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::cache::Keep;
use policy::cost::tel_safe_budget;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};
use rustc_hash::FxHashMap;

use crate::hints::{HintKind, Objective};

#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Blocks of the last finished turn.
    pub(crate) chain: Vec<PrefixHash>,
    /// The part of that turn to keep.
    pub(crate) kept: Kept,
    /// Epoch of the newest hint seen.
    pub(crate) epoch: u64,
    pub(crate) in_engine: u32,
    /// A hint that waits for the running turn.
    pub(crate) pending: Option<PendingHint>,
    used: u64,
}

/// The leading tokens of a finished turn that are to stay, by whoever said so.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// L: tokens of prompt and reply.
    pub(crate) history: Tokens,
    /// As its request said.
    pub(crate) by_request: Option<Tokens>,
    /// As a hint said since.
    pub(crate) by_hint: Option<Tokens>,
    /// Leading tokens that other conversations share.
    pub(crate) protected: Tokens,
}

impl Kept {
    /// Returns what stays under an objective.
    pub(crate) fn under(&self, objective: Option<Objective>) -> Keep {
        let budget = objective.map(|objective| {
            let next = Tokens(objective.next_prompt_tokens.max(0.0) as u64);
            Tokens(tel_safe_budget(self.history, next, objective.xi_tokens).ceil() as u64)
        });
        let ruled = self.by_request.or(budget);
        let kept = ruled.into_iter().chain(self.by_hint).min();
        kept.map_or(Keep::All, |kept| Keep::First(kept.max(self.protected)))
    }
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

    /// Returns the sessions without a running turn, the least recently used first.
    pub(crate) fn idle(&self) -> impl Iterator<Item = &Session> {
        let by_use = self.by_use.values().filter_map(|name| self.by_name.get(name));
        by_use.filter(|session| session.in_engine == 0)
    }

    /// Stores the finished turn. Returns the pending hint, if no other turn is running.
    pub(crate) fn finished(
        &mut self,
        name: &Arc<str>,
        chain: Vec<PrefixHash>,
        kept: Kept,
    ) -> Option<PendingHint> {
        let session = self.touch(name);
        session.in_engine = session.in_engine.saturating_sub(1);
        if !chain.is_empty() {
            session.chain = chain;
            session.kept = Kept {
                protected: session.kept.protected,
                ..kept
            };
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
