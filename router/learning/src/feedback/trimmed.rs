//! The ends of conversations that were given up last, and why.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use policy::ids::PrefixHash;
use policy::tail::{Trim, Worth};
use policy::units::Tokens;
use serde::Serialize;

/// Ends that are remembered.
const RECENT: usize = 32;

/// A silent conversation's copy on a worker.
#[derive(Debug, Default)]
pub struct CopyKeys {
    /// Its name, as the worker knows it.
    pub name: Arc<str>,
    /// Some of its keys, the last one first.
    pub tips: Vec<PrefixHash>,
    /// The last key that it was to keep, once its end was given up.
    pub end: Mutex<Option<PrefixHash>>,
}

impl CopyKeys {
    /// The first of these that a worker still holds is where the copy ends.
    #[must_use]
    pub fn keys(&self) -> Vec<PrefixHash> {
        let end = *self.end.lock();
        end.into_iter().chain(self.tips.iter().copied()).collect()
    }
}

/// An end that was given up, and the terms of its value.
#[derive(Clone, Debug, Serialize)]
pub struct Trimmed {
    /// The conversation, as workers know it.
    pub conversation: Arc<str>,
    /// The worker.
    pub worker: String,
    /// Tokens of the conversation.
    pub length_tokens: u64,
    /// Tokens that the worker keeps.
    pub keep_tokens: u64,
    /// Why.
    #[serde(flatten)]
    pub worth: Worth,
}

/// The last ends that were given up.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Trimmed>>);

impl Recent {
    /// One more.
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

    /// The newest first.
    #[must_use]
    pub fn all(&self) -> Vec<Trimmed> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
