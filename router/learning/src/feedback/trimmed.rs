//! The most recent trims of conversations, and their reasons.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::ids::PrefixHash;
use policy::tail::{Trim, Worth};
use policy::units::Tokens;
use serde::Serialize;

/// Number of trims that are kept.
const RECENT: usize = 32;

/// A silent conversation's copy on a worker.
#[derive(Debug, Default)]
pub struct CopyKeys {
    /// Name of the conversation as passed to the worker.
    pub name: Arc<str>,
    /// Some of the conversation's keys, the last one first.
    pub tips: Vec<PrefixHash>,
    /// Last key that the worker was to keep, if the copy was trimmed.
    pub end: Mutex<Option<PrefixHash>>,
}

impl CopyKeys {
    /// Returns the keys to look up in order. The copy ends at the first one that the worker still holds.
    pub fn keys(&self) -> Vec<PrefixHash> {
        let end = *self.end.lock();
        end.into_iter().chain(self.tips.iter().copied()).collect()
    }
}

/// A trim, and the terms of its value.
#[derive(Clone, Debug, Serialize)]
pub struct Trimmed {
    /// Name of the conversation as passed to workers.
    pub conversation: Arc<str>,
    pub worker: String,
    /// Tokens of the conversation.
    pub length_tokens: u64,
    /// Tokens that the worker keeps.
    pub keep_tokens: u64,
    /// Terms of the trim's value.
    #[serde(flatten)]
    pub worth: Worth,
}

/// Ring of the most recent trims.
#[derive(Debug, Default)]
pub struct RecentTrims(Mutex<VecDeque<Trimmed>>);

impl RecentTrims {
    /// Adds a trim. Drops the oldest one if the ring is full.
    pub fn push(&self, worker: &str, trim: &Trim<Arc<CopyKeys>>, keep: Tokens) {
        let mut recent = self.0.lock();
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(Trimmed {
            conversation: Arc::clone(&trim.what.name),
            worker: worker.to_owned(),
            length_tokens: trim.length.0,
            keep_tokens: keep.0,
            worth: trim.worth,
        });
    }

    /// Returns the trims, the newest first.
    pub fn all(&self) -> Vec<Trimmed> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
