//! The workers named by each source, and the state of each source.

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
use crate::source::DiscoverySource;

const MAX_LISTED: usize = 32;
const MAX_REASON: usize = 500;

/// The workers named by one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    pub workers: BTreeMap<String, DiscoveredWorker>,
    /// Refused entries.
    pub refused: RefusedEntries,
}

/// Maximum length of a worker's name. A host or pod with a longer name is named by address.
pub(crate) const MAX_NAME: usize = 64;

/// A worker as named by its source.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveredWorker {
    /// Settings of the worker.
    pub spec: config::Worker,
    /// Whether the source reports the worker as ready.
    pub ready: bool,
}

/// Refused entries of a source: the first ones, and the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedEntries {
    /// The first 32 refused entries.
    pub told: Vec<NotTaken>,
    /// Number of refused entries.
    pub total: usize,
}

/// A refused entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotTaken {
    /// Name of the entry in the source.
    pub name: String,
    /// Reason of the refusal.
    pub why: String,
}

impl RefusedEntries {
    pub fn push(&mut self, name: &str, why: impl Into<String>) {
        self.total += 1;
        if self.told.len() < MAX_LISTED {
            self.told.push(NotTaken {
                name: shortened(name),
                why: shortened(&why.into()),
            });
        }
    }

    fn log(&self, source: DiscoverySource, message: &str) {
        for NotTaken { name, why } in &self.told {
            warn!(target: LOG, source = source.as_str(), name, why, "{message}");
        }
    }
}

pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A failure that continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiscoveryFailure {
    /// Description of the failure, and of its remedy.
    pub what: String,
    /// Start of the failure, in seconds since 1970.
    pub since_unix_s: u64,
    /// Number of failed attempts since then.
    pub times: u64,
}

/// State of a source.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SourceState {
    /// The source.
    pub source: DiscoverySource,
    /// Description of the watched objects.
    pub of: String,
    /// Last time that the source answered, in seconds since 1970; `null` if it never did.
    pub heard_at_unix_s: Option<u64>,
    /// Current failure; `null` if there is none. During a failure the last answer stays in force.
    pub failure: Option<DiscoveryFailure>,
    /// Number of workers named.
    pub named: usize,
    /// Number of named workers that are ready.
    pub ready: usize,
    /// Entries that are invalid, or that the fleet has refused.
    pub refused: RefusedEntries,
}

/// An observer of sources' failures.
pub trait DiscoveryObserver: Send + Sync + 'static {
    /// Records that a source could not be reached or understood.
    fn failed(&self, source: DiscoverySource);
}

#[derive(Debug)]
struct SourceEntry {
    source: DiscoverySource,
    of: String,
    found: Option<Arc<Found>>,
    heard: Option<u64>,
    failure: Option<DiscoveryFailure>,
    not_taken: RefusedEntries,
}

/// State of all sources. Sources write it, and the router applies it to its fleet.
pub struct DiscoveryState {
    entries: Mutex<Vec<SourceEntry>>,
    changed: Notify,
    /// Whether the fleet has applied the first answer or failure of every source.
    settled: watch::Sender<bool>,
    observer: Box<dyn DiscoveryObserver>,
}

impl fmt::Debug for DiscoveryState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("DiscoveryState");
        shown.field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl DiscoveryState {
    /// Creates a state without any answers.
    pub fn new(settings: &config::Discovery, observer: impl DiscoveryObserver) -> Self {
        let entry = |(source, of)| SourceEntry {
            source,
            of,
            found: None,
            heard: None,
            failure: None,
            not_taken: RefusedEntries::default(),
        };
        Self {
            entries: Mutex::new(crate::configured(settings).into_iter().map(entry).collect()),
            changed: Notify::new(),
            settled: watch::Sender::new(!settings.is_on()),
            observer: Box::new(observer),
        }
    }

    fn with<T>(&self, source: DiscoverySource, with: impl FnOnce(&mut SourceEntry) -> T) -> Option<T> {
        let mut entries = self.entries.lock();
        entries.iter_mut().find(|entry| entry.source == source).map(with)
    }

    /// Replaces the workers of a source, and ends its failure.
    pub fn found(&self, source: DiscoverySource, found: Found) {
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

    /// Records an answer of a source without changes, and ends its failure.
    pub fn heard(&self, source: DiscoverySource) {
        self.with(source, SourceEntry::recovered);
    }

    /// Records that a source looks unchanged. Does not end a failure.
    pub fn unchanged(&self, source: DiscoverySource) {
        self.with(source, |entry| {
            if entry.failure.is_none() {
                entry.heard = Some(now());
            }
        });
    }

    /// Records a failure of a source, whose last workers stay. Returns whether the failure is new.
    pub fn failed(&self, source: DiscoverySource, what: &str) -> bool {
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
                entry.failure = Some(DiscoveryFailure {
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

    /// Returns the workers of each source that has answered, in order of precedence.
    pub fn all(&self) -> Vec<(DiscoverySource, Arc<Found>)> {
        let entries = self.entries.lock();
        let found = entries
            .iter()
            .filter_map(|entry| Some((entry.source, Arc::clone(entry.found.as_ref()?))));
        found.collect()
    }

    /// Records the workers of a source that the fleet refused.
    pub fn not_taken(&self, source: DiscoverySource, not_taken: RefusedEntries) {
        self.with(source, |entry| {
            if entry.not_taken != not_taken {
                not_taken.log(source, "not added to the fleet");
                entry.not_taken = not_taken;
            }
        });
    }

    /// Waits until the workers of a source change, or a source begins to fail in another way.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns whether every source has answered or failed.
    pub fn all_answered(&self) -> bool {
        let entries = self.entries.lock();
        entries
            .iter()
            .all(|entry| entry.heard.is_some() || entry.failure.is_some())
    }

    /// Records that the fleet has applied the state of every source.
    pub fn agreed(&self) {
        self.settled
            .send_if_modified(|settled| !std::mem::replace(settled, true));
    }

    /// Waits until the fleet has applied the first answer or failure of every source.
    pub async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // Cannot fail: `self` owns the sender.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// Returns the state of each source.
    pub fn states(&self) -> Vec<SourceState> {
        self.entries.lock().iter().map(SourceEntry::shown).collect()
    }
}

impl SourceEntry {
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
