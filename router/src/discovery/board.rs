//! What every source says, and how it is with each of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use fleet::source::Source;

/// Most of those that were not taken that are told one by one.
const TOLD: usize = 32;
/// Most characters that are kept of why.
const LONGEST_WHY: usize = 500;

/// What a source names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Workers, by name.
    pub workers: BTreeMap<String, Named>,
    /// What it names that can be no worker, and why.
    pub refused: Refused,
}

/// A worker as its source names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// What it is.
    pub spec: config::Worker,
    /// Whether it may be given work.
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
    /// One more.
    pub fn push(&mut self, name: &str, why: impl Into<String>) {
        self.total += 1;
        if self.told.len() < TOLD {
            self.told.push(NotTaken {
                name: shortened(name),
                why: shortened(&why.into()),
            });
        }
    }
}

/// A text of a source, no longer than what is kept of it.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_WHY) {
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

/// What a source has said.
#[derive(Debug)]
struct Said {
    source: Source,
    of: String,
    found: Option<Arc<Found>>,
    heard: Option<u64>,
    failure: Option<Failure>,
    /// What the fleet would not take.
    not_taken: Refused,
}

/// What every source says.
#[derive(Debug)]
pub struct Board {
    said: Mutex<Vec<Said>>,
    changed: Notify,
    /// Whether the fleet agrees with what every source has said, or failed to say, once.
    settled: watch::Sender<bool>,
}

impl Board {
    /// Nothing was said yet.
    #[must_use]
    pub fn new(settings: &config::Discovery) -> Self {
        let said = |(source, of)| Said {
            source,
            of,
            found: None,
            heard: None,
            failure: None,
            not_taken: Refused::default(),
        };
        Self {
            said: Mutex::new(super::asked(settings).into_iter().map(said).collect()),
            changed: Notify::new(),
            settled: watch::Sender::new(!settings.is_on()),
        }
    }

    fn with<T>(&self, source: Source, with: impl FnOnce(&mut Said) -> T) -> Option<T> {
        let mut said = self.said.lock();
        said.iter_mut().find(|said| said.source == source).map(with)
    }

    /// A source has said what there is.
    pub fn found(&self, source: Source, found: Found) {
        let changed = self.with(source, |said| {
            recovered(said);
            if said.found.as_deref() == Some(&found) {
                return false;
            }
            if said
                .found
                .as_ref()
                .is_none_or(|before| before.refused != found.refused)
            {
                for refused in &found.refused.told {
                    warn!(
                        source = source.as_str(),
                        name = refused.name,
                        why = refused.why,
                        "not taken for a worker"
                    );
                }
            }
            said.found = Some(Arc::new(found));
            true
        });
        if changed == Some(true) {
            self.changed.notify_one();
        }
    }

    /// A source has said that nothing has changed.
    pub fn heard(&self, source: Source) {
        self.with(source, recovered);
    }

    /// A source is as it was: heard, unless it fails.
    pub fn unchanged(&self, source: Source) {
        self.with(source, |said| {
            if said.failure.is_none() {
                said.heard = Some(now());
            }
        });
    }

    /// A source cannot be heard. What it said last stays. Returns whether that is new.
    pub fn failed(&self, source: Source, what: &str) -> bool {
        let what = shortened(what);
        let is_new = self.with(source, |said| match &mut said.failure {
            Some(failure) => {
                failure.times += 1;
                let is_new = failure.what != what;
                failure.what.clone_from(&what);
                is_new
            }
            None => {
                said.failure = Some(Failure {
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
                source = source.as_str(),
                error = what,
                "workers cannot be discovered; those known last stay"
            );
        }
        is_new
    }

    /// What every source has said, those before that are believed more.
    #[must_use]
    pub fn all(&self) -> Vec<(Source, Arc<Found>)> {
        let said = self.said.lock();
        let found = said
            .iter()
            .filter_map(|said| Some((said.source, Arc::clone(said.found.as_ref()?))));
        found.collect()
    }

    /// What the fleet would not take of what each source has said.
    pub fn not_taken(&self, source: Source, not_taken: Refused) {
        self.with(source, |said| {
            if said.not_taken != not_taken {
                for refused in &not_taken.told {
                    warn!(
                        source = source.as_str(),
                        name = refused.name,
                        why = refused.why,
                        "not taken into the fleet"
                    );
                }
                said.not_taken = not_taken;
            }
        });
    }

    /// Ends when a source has said something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether every source has said what there is, or failed to.
    #[must_use]
    pub fn all_said(&self) -> bool {
        let said = self.said.lock();
        said.iter()
            .all(|said| said.heard.is_some() || said.failure.is_some())
    }

    /// The fleet agrees with what every source has said.
    pub fn agreed(&self) {
        self.settled
            .send_if_modified(|settled| !std::mem::replace(settled, true));
    }

    /// Ends when the fleet agrees with what every source has said, or failed to say, once.
    pub async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // The other end is here.
        let _ = settled.wait_for(|settled| *settled).await;
    }

    /// How it is with every source.
    #[must_use]
    pub fn standings(&self) -> Vec<SourceState> {
        self.said.lock().iter().map(standing).collect()
    }
}

fn recovered(said: &mut Said) {
    said.heard = Some(now());
    if let Some(failure) = said.failure.take() {
        info!(
            source = said.source.as_str(),
            tried = failure.times,
            "workers are discovered again"
        );
    }
}

fn standing(said: &Said) -> SourceState {
    let found = said.found.as_deref();
    let mut refused = found.map(|found| found.refused.clone()).unwrap_or_default();
    let room = TOLD.saturating_sub(refused.told.len());
    refused
        .told
        .extend(said.not_taken.told.iter().take(room).cloned());
    refused.total += said.not_taken.total;
    SourceState {
        source: said.source,
        of: said.of.clone(),
        heard_at_unix_s: said.heard,
        failure: said.failure.clone(),
        named: found.map_or(0, |found| found.workers.len()),
        ready: found.map_or(0, |found| {
            found.workers.values().filter(|named| named.ready).count()
        }),
        refused,
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
