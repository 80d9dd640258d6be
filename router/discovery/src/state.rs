//! What every source names, and the state of each source.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::LOG;
use crate::source::Source;

/// The maximum number of refused workers that are listed one by one.
const MAX_LISTED: usize = 32;
/// The maximum length of a reason, in characters.
const MAX_REASON: usize = 500;

/// The workers that a source names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Workers, by name.
    pub workers: BTreeMap<String, Named>,
    /// What the source names that cannot be a worker, with the reason.
    pub refused: Refused,
}

/// A worker as its source names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its settings.
    pub spec: config::Worker,
    /// Whether the source says that it may be given work.
    pub ready: bool,
}

/// What was not taken: some of it, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refused {
    /// The first 32.
    pub told: Vec<NotTaken>,
    /// All of them.
    pub total: usize,
}

/// One that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotTaken {
    /// What the source calls it.
    pub name: String,
    /// Why not.
    pub why: String,
}

impl Refused {
    /// Adds one.
    pub fn push(&mut self, name: &str, why: impl Into<String>) {
        self.total += 1;
        if self.told.len() < MAX_LISTED {
            self.told.push(NotTaken {
                name: shortened(name),
                why: shortened(&why.into()),
            });
        }
    }

    /// Logs each listed one.
    fn log(&self, source: Source, message: &str) {
        for NotTaken { name, why } in &self.told {
            warn!(target: LOG, source = source.as_str(), name, why, "{message}");
        }
    }
}

/// A text of a source, cut to the length that is kept.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A failure that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// What is wrong, and what to do about it.
    pub what: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: u64,
    /// How often it was tried since.
    pub times: u64,
}

/// How it is with a source.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SourceState {
    /// The source.
    pub source: Source,
    /// What it is asked for.
    pub of: String,
    /// When it said last what there is, or that nothing has changed, in seconds since 1970; `null` if it never did.
    pub heard_at_unix_s: Option<u64>,
    /// What keeps it from being heard now; what it said last stays in force.
    pub failure: Option<Failure>,
    /// Workers that it names.
    pub named: usize,
    /// Of these, that may be given work by its word.
    pub ready: usize,
    /// What it names that can be no worker, or is another one's.
    pub refused: Refused,
}

/// Is told of what happens to sources.
pub trait Observer: Send + Sync + 'static {
    /// A source could not be reached or understood.
    fn failed(&self, source: Source);
}

/// The record of one source.
#[derive(Debug)]
struct Entry {
    source: Source,
    of: String,
    found: Option<Arc<Found>>,
    heard: Option<u64>,
    failure: Option<Failure>,
    /// What the fleet refused.
    not_taken: Refused,
}

/// What every source names. Sources write it, and the router applies it to its fleet.
pub struct DiscoveryState {
    entries: Mutex<Vec<Entry>>,
    changed: Notify,
    /// Whether the fleet has applied one answer or failure of every source.
    settled: watch::Sender<bool>,
    observer: Box<dyn Observer>,
}

impl fmt::Debug for DiscoveryState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("DiscoveryState");
        shown.field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl DiscoveryState {
    /// A state in which no source was heard yet.
    #[must_use]
    pub fn new(settings: &config::Discovery, observer: impl Observer) -> Self {
        let entry = |(source, of)| Entry {
            source,
            of,
            found: None,
            heard: None,
            failure: None,
            not_taken: Refused::default(),
        };
        Self {
            entries: Mutex::new(crate::configured(settings).into_iter().map(entry).collect()),
            changed: Notify::new(),
            settled: watch::Sender::new(!settings.is_on()),
            observer: Box::new(observer),
        }
    }

    fn with<T>(&self, source: Source, with: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut entries = self.entries.lock();
        entries.iter_mut().find(|entry| entry.source == source).map(with)
    }

    /// Replaces what a source names.
    pub fn found(&self, source: Source, found: Found) {
        let changed = self.with(source, |entry| {
            entry.recovered();
            let before = entry.found.as_deref();
            if before == Some(&found) {
                return false;
            }
            if before.is_none_or(|before| before.refused != found.refused) {
                found.refused.log(source, "cannot be used as a worker");
            }
            entry.found = Some(Arc::new(found));
            true
        });
        if changed == Some(true) {
            self.changed.notify_one();
        }
    }

    /// A source has answered that nothing has changed.
    pub fn heard(&self, source: Source) {
        self.with(source, Entry::recovered);
    }

    /// A source looks as it did: it counts as heard, unless it fails.
    pub fn unchanged(&self, source: Source) {
        self.with(source, |entry| {
            if entry.failure.is_none() {
                entry.heard = Some(now());
            }
        });
    }

    /// A source failed. What it named last stays. Returns whether the failure is new.
    pub fn failed(&self, source: Source, what: &str) -> bool {
        self.observer.failed(source);
        let what = shortened(what);
        let is_new = self.with(source, |entry| match &mut entry.failure {
            Some(failure) => {
                failure.times += 1;
                let is_new = failure.what != what;
                failure.what.clone_from(&what);
                is_new
            }
            None => {
                entry.failure = Some(Failure {
                    what: what.clone(),
                    since_unix_s: now(),
                    times: 1,
                });
                true
            }
        });
        let is_new = is_new == Some(true);
        if is_new {
            self.changed.notify_one();
            warn!(
                target: LOG,
                source = source.as_str(),
                error = what,
                "discovery failed; the last known workers stay"
            );
        }
        is_new
    }

    /// What each source names, in order of precedence; without sources that were never heard.
    #[must_use]
    pub fn all(&self) -> Vec<(Source, Arc<Found>)> {
        let entries = self.entries.lock();
        let found = entries
            .iter()
            .filter_map(|entry| Some((entry.source, Arc::clone(entry.found.as_ref()?))));
        found.collect()
    }

    /// Records what the fleet refused of a source.
    pub fn not_taken(&self, source: Source, not_taken: Refused) {
        self.with(source, |entry| {
            if entry.not_taken != not_taken {
                not_taken.log(source, "not added to the fleet");
                entry.not_taken = not_taken;
            }
        });
    }

    /// Waits until a source has named something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether every source has answered or failed.
    #[must_use]
    pub fn all_said(&self) -> bool {
        let entries = self.entries.lock();
        entries
            .iter()
            .all(|entry| entry.heard.is_some() || entry.failure.is_some())
    }

    /// The fleet has applied what every source names.
    pub fn agreed(&self) {
        self.settled
            .send_if_modified(|settled| !std::mem::replace(settled, true));
    }

    /// Waits until the fleet has applied one answer or failure of every source.
    pub async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // It cannot fail: the sender is part of `self`.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// The state of each source.
    #[must_use]
    pub fn standings(&self) -> Vec<SourceState> {
        self.entries.lock().iter().map(Entry::shown).collect()
    }
}

impl Entry {
    fn recovered(&mut self) {
        self.heard = Some(now());
        if let Some(failure) = self.failure.take() {
            info!(
                target: LOG,
                source = self.source.as_str(),
                tried = failure.times,
                "discovery recovered"
            );
        }
    }

    fn shown(&self) -> SourceState {
        let found = self.found.as_deref();
        let mut refused = found.map(|found| found.refused.clone()).unwrap_or_default();
        let room = MAX_LISTED.saturating_sub(refused.told.len());
        refused
            .told
            .extend(self.not_taken.told.iter().take(room).cloned());
        refused.total += self.not_taken.total;
        SourceState {
            source: self.source,
            of: self.of.clone(),
            heard_at_unix_s: self.heard,
            failure: self.failure.clone(),
            named: found.map_or(0, |found| found.workers.len()),
            ready: found.map_or(0, |found| {
                found.workers.values().filter(|named| named.ready).count()
            }),
            refused,
        }
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
