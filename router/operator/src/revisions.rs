//! The policy in force, and earlier revisions (docs/admin.md, "The policy").
//!
//! The revision in force is one pointer that is swapped, so that every later decision reads it as a whole. A rollback
//! applies an earlier revision's settings as a new one: history only grows, until the oldest revisions are dropped. Each
//! temporary value ends by itself ([`timers`]).
//!
//! Revisions and timers outlive the process ([`kept`]). Where replicas share their policy, they are those of a bucket
//! ([`shared`]).

pub mod kept;
pub mod keys;
mod revision;
pub mod shared;
#[cfg(test)]
mod tests;
pub mod timers;

pub use self::kept::KeptPolicy;
pub use self::revision::{AppliedChange, Change, InForce, Revision, RevisionSource, Stale};
pub use self::shared::Adopted;
pub use self::timers::{Timer, Timers};

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use policy::route::Settings;
use policy::units::Millis;
use tokio::sync::Notify;

/// Largest number of revisions kept, with the one in force.
pub const HISTORY: usize = 200;

/// The policy in force and its history.
#[derive(Debug)]
pub struct Revisions {
    in_force: ArcSwap<InForce>,
    state: Mutex<RevisionsState>,
    changed: Notify,
    /// Identifies the process, or the bucket, that the revisions belong to.
    lineage: AtomicU32,
    is_shared: AtomicBool,
    reconfigured: Notify,
}

#[derive(Debug)]
struct RevisionsState {
    newest: Arc<Revision>,
    /// Earlier revisions, the oldest first.
    older: VecDeque<Arc<Revision>>,
    timers: Timers,
    /// `[routing]` as last read.
    configured: Settings,
    /// Keys of `configured` that are yet to be applied to all replicas.
    to_configure: keys::KeyValues,
}

impl RevisionsState {
    fn history(&self) -> impl Iterator<Item = &Arc<Revision>> {
        std::iter::once(&self.newest).chain(self.older.iter().rev())
    }
}

impl Revisions {
    /// Creates a history whose only revision has the configured settings.
    pub fn new(settings: Settings) -> Self {
        let since_unix_ms = super::unix_ms();
        let first = Revision {
            revision: 1,
            settings: settings.clone(),
            since_unix_ms,
            by: "router".to_owned(),
            reason: None,
            source: RevisionSource::Start,
            replica: None,
            temporary: false,
            temporary_keys: keys::KeyValues::new(),
        };
        let seed = (since_unix_ms, std::process::id());
        let state = RevisionsState {
            newest: Arc::new(first),
            older: VecDeque::new(),
            timers: Timers::new(),
            configured: settings.clone(),
            to_configure: keys::KeyValues::new(),
        };
        Self {
            in_force: ArcSwap::from_pointee(InForce {
                revision: 1,
                settings,
            }),
            state: Mutex::new(state),
            changed: Notify::new(),
            lineage: AtomicU32::new(xxhash_rust::xxh3::xxh3_64(format!("{seed:?}").as_bytes()) as u32),
            is_shared: AtomicBool::new(false),
            reconfigured: Notify::new(),
        }
    }

    /// Returns the settings in force for one routing decision.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// Returns the revision in force, and its temporary values.
    pub fn now(&self) -> (Arc<Revision>, Timers) {
        let state = self.state.lock();
        (Arc::clone(&state.newest), state.timers.clone())
    }

    /// Returns `[routing]` as last read.
    pub fn configured(&self) -> Settings {
        self.state.lock().configured.clone()
    }

    /// Returns a revision's entity tag, unique across processes, and the same on each replica that shares a bucket.
    pub fn tag(&self, revision: u64) -> String {
        format!("\"{:08x}-{revision}\"", self.lineage())
    }

    /// Returns the number of the revision that an entity tag of this lineage names, whether or not it is remembered.
    pub fn number(&self, tag: &str) -> Option<u64> {
        let (lineage, number) = tag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
        let number = number.parse().ok()?;
        (u32::from_str_radix(lineage, 16) == Ok(self.lineage()) && self.tag(number) == tag).then_some(number)
    }

    /// Returns the identifier of the process or bucket that the revisions belong to.
    pub fn lineage(&self) -> u32 {
        self.lineage.load(Ordering::Acquire)
    }

    /// Returns the remembered revisions, newest first.
    pub fn history(&self) -> Vec<Arc<Revision>> {
        self.state.lock().history().cloned().collect()
    }

    /// Returns the revision of this number, if it is remembered.
    pub fn find(&self, revision: u64) -> Option<Arc<Revision>> {
        let state = self.state.lock();
        state.history().find(|known| known.revision == revision).cloned()
    }

    /// Returns the last revision before this number that was not temporary; `None` if it is not remembered.
    pub fn lasting_before(&self, revision: u64) -> Option<Arc<Revision>> {
        let state = self.state.lock();
        let mut wanted = revision.checked_sub(1)?;
        for known in state.history() {
            if known.revision == wanted && !known.temporary {
                return Some(Arc::clone(known));
            }
            if known.revision == wanted {
                wanted = wanted.checked_sub(1)?;
            }
        }
        None
    }

    /// Applies a change if `expected` is `None` or the revision in force. Every later routing decision reads the new
    /// settings. Fails if another revision is in force.
    pub fn apply(&self, now: Millis, change: Change, expected: Option<u64>) -> Result<AppliedChange, Stale> {
        let mut state = self.state.lock();
        let before = Arc::clone(&state.newest);
        if expected.is_some_and(|expected| expected != before.revision) {
            return Err(Stale(before.revision));
        }
        let (before, after) = self.push(&mut state, now, change);
        Ok(AppliedChange {
            before,
            after,
            timers: state.timers.clone(),
        })
    }

    /// Applies the keys of `[routing]` that differ from what was last read. Returns the previous and the new revision,
    /// if any key differs.
    pub fn configure(&self, now: Millis, settings: Settings) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        let changed = keys::differing(&state.configured, &settings);
        if changed.is_empty() {
            return None;
        }
        state.configured = settings;
        let change = Change::configured(&state.newest.settings, &changed);
        Some(self.push(&mut state, now, change))
    }

    /// Ends the temporary values that are due. Returns the previous and the new revision, if any value is due.
    pub fn revert(&self, now: Millis) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        let change = timers::revert(&state.timers, now, &state.newest)?;
        Some(self.push(&mut state, now, change))
    }

    fn push(
        &self,
        state: &mut RevisionsState,
        now: Millis,
        change: Change,
    ) -> (Arc<Revision>, Arc<Revision>) {
        let before = Arc::clone(&state.newest);
        let temporary = change.revert_after.is_some();
        state.timers = timers::after(&state.timers, now, &before, &change);
        let after = Arc::new(Revision {
            revision: before.revision + 1,
            settings: change.settings,
            since_unix_ms: super::unix_ms(),
            by: change.by,
            reason: change.reason,
            source: change.source,
            replica: None,
            temporary,
            temporary_keys: timers::values(&state.timers),
        });
        state.older.push_back(Arc::clone(&before));
        self.enact(state, Arc::clone(&after));
        (before, after)
    }

    fn enact(&self, state: &mut RevisionsState, after: Arc<Revision>) {
        state.newest = Arc::clone(&after);
        while state.older.len() >= HISTORY {
            state.older.pop_front();
        }
        // Under the lock, so that pointer and history agree on the latest revision.
        self.in_force.store(Arc::new(InForce {
            revision: after.revision,
            settings: after.settings.clone(),
        }));
        self.changed.notify_one();
    }

    /// Waits until a revert is due, taking changes in the meantime into account.
    pub async fn revert_due(&self, clock: fleet::clock::Clock) {
        loop {
            let due = {
                let state = self.state.lock();
                state.timers.values().map(|timer| timer.due).reduce(Millis::min)
            };
            match due {
                None => self.changed.notified().await,
                Some(due) if due <= clock.now() => return,
                Some(due) => {
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep(fleet::clock::duration(due - clock.now())) => {}
                    }
                }
            }
        }
    }
}
