//! The policy in force, and earlier revisions.
//!
//! A change creates a revision: the policy with all weights, and who made it, when and why. The revision in force is
//! one pointer that is swapped, so that every later decision on any thread reads it as a whole. A rollback applies the
//! exact settings of an earlier revision as a new one: history only grows, until the oldest revisions are dropped.
//!
//! A change may be temporary. The previous policy then returns by itself, unless the policy is changed in between: the
//! last change counts. A change on top of a temporary one returns to where that one would have returned.
//!
//! Revisions are not kept over a restart, which begins with the configuration. A changed `[routing]` section in the
//! configuration is a revision like any other, the latest. A reload with an unchanged `[routing]` leaves the policy
//! alone, whatever was changed live.
//!
//! Where replicas share their policy, its revisions are those of a bucket ([`shared`]).

pub mod shared;

pub use self::shared::Adopted;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use policy::route::Settings;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Revisions that are remembered.
pub const HISTORY: usize = 200;

/// The part of a revision that a routing decision reads.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    /// Number of the revision.
    pub revision: u64,
    /// Policy and weights.
    pub settings: Settings,
}

/// A policy that is or was in force.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Revision {
    /// Number since the start of the router, or of the bucket that replicas share; the first is 1.
    pub revision: u64,
    /// Policy and all of its weights.
    #[schemars(with = "config::PolicyDocument")]
    pub settings: Settings,
    /// Time at which it came into force, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Caller that applied it: a token's name, or `router`.
    pub by: String,
    /// Reason given by the caller.
    pub reason: Option<String>,
    /// Kind of the change.
    pub source: Source,
    /// Replica that applied it, where several share their policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Whether it was made for a limited time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(default)]
    pub temporary: bool,
}

/// Kind of change that created a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration at the router's start.
    Start,
    /// The admin API.
    Put,
    /// A rollback to an earlier revision.
    Rollback,
    /// The end of a temporary change.
    Revert,
    /// A changed `[routing]` section in the configuration.
    Reload,
}

impl Source {
    /// Returns the name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Put => "put",
            Self::Rollback => "rollback",
            Self::Revert => "revert",
            Self::Reload => "reload",
        }
    }
}

/// A change to be applied.
#[derive(Clone, Debug)]
pub struct Change {
    /// New settings.
    pub settings: Settings,
    /// Caller.
    pub by: String,
    /// Reason given by the caller.
    pub reason: Option<String>,
    /// Kind of the change.
    pub source: Source,
    /// Time after which it reverts, for a temporary change.
    pub revert_after: Option<Millis>,
}

impl Change {
    /// Returns the change for a changed `[routing]` section.
    fn configured(settings: Settings) -> Self {
        Self {
            settings,
            by: "router".to_owned(),
            reason: Some("[routing] of the configuration has changed".to_owned()),
            source: Source::Reload,
            revert_after: None,
        }
    }

    /// Returns the change that ends a temporary one.
    fn back_to(earlier: &Revision) -> Self {
        Self {
            settings: earlier.settings.clone(),
            by: "router".to_owned(),
            reason: Some(format!(
                "the temporary change expired; back to revision {}",
                earlier.revision
            )),
            source: Source::Revert,
            revert_after: None,
        }
    }
}

/// A scheduled revert.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// Time at which it is due, by the router's clock.
    pub due: Millis,
    /// Revision to return to.
    pub to: Arc<Revision>,
}

/// A change that was applied, with the state at that time; others may have followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// Revision in force before.
    pub before: Arc<Revision>,
    /// Revision in force after.
    pub after: Arc<Revision>,
    /// Scheduled revert, if any.
    pub pending: Option<Pending>,
}

/// The revision to be changed is not the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {0} is now in force")]
pub struct Stale(pub u64);

/// The policy in force and its history.
#[derive(Debug)]
pub struct Revisions {
    in_force: ArcSwap<InForce>,
    state: Mutex<State>,
    changed: Notify,
    /// Identifies the process, or the bucket, that the revisions belong to.
    lineage: AtomicU32,
    /// Whether they belong to a bucket.
    is_shared: AtomicBool,
    reconfigured: Notify,
}

#[derive(Debug)]
struct State {
    newest: Arc<Revision>,
    /// Earlier revisions, the oldest first.
    older: VecDeque<Arc<Revision>>,
    pending: Option<Pending>,
    /// `[routing]` as last read.
    configured: Settings,
    /// Whether `configured` is yet to be applied to all replicas.
    is_to_configure: bool,
}

impl State {
    fn history(&self) -> impl Iterator<Item = &Arc<Revision>> {
        std::iter::once(&self.newest).chain(self.older.iter().rev())
    }
}

impl Revisions {
    /// Begins with the configured settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let since_unix_ms = super::unix_ms();
        let first = Revision {
            revision: 1,
            settings: settings.clone(),
            since_unix_ms,
            by: "router".to_owned(),
            reason: None,
            source: Source::Start,
            replica: None,
            temporary: false,
        };
        let seed = (since_unix_ms, std::process::id());
        let state = State {
            newest: Arc::new(first),
            older: VecDeque::new(),
            pending: None,
            configured: settings.clone(),
            is_to_configure: false,
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

    /// Returns the revision in force, and the scheduled revert.
    #[must_use]
    pub fn now(&self) -> (Arc<Revision>, Option<Pending>) {
        let state = self.state.lock();
        (Arc::clone(&state.newest), state.pending.clone())
    }

    /// Returns `[routing]` as last read.
    #[must_use]
    pub fn configured(&self) -> Settings {
        self.state.lock().configured.clone()
    }

    /// Returns a revision's entity tag, which is unique across processes. Revisions of a bucket have the same tag on
    /// each replica.
    #[must_use]
    pub fn tag(&self, revision: u64) -> String {
        format!("\"{:08x}-{revision}\"", self.lineage())
    }

    /// Returns the number of the revision that an entity tag of this lineage names, whether or not it is remembered.
    #[must_use]
    pub fn number(&self, tag: &str) -> Option<u64> {
        let (lineage, number) = tag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
        let number = number.parse().ok()?;
        (u32::from_str_radix(lineage, 16) == Ok(self.lineage()) && self.tag(number) == tag).then_some(number)
    }

    /// Returns the identifier of the process or bucket that the revisions belong to.
    #[must_use]
    pub fn lineage(&self) -> u32 {
        self.lineage.load(Ordering::Acquire)
    }

    /// Returns the remembered revisions, newest first.
    #[must_use]
    pub fn history(&self) -> Vec<Arc<Revision>> {
        self.state.lock().history().cloned().collect()
    }

    /// Returns the revision of this number, if it is remembered.
    #[must_use]
    pub fn find(&self, revision: u64) -> Option<Arc<Revision>> {
        let state = self.state.lock();
        state.history().find(|known| known.revision == revision).cloned()
    }

    /// Returns the last revision before this number that was not temporary; `None` if it is not remembered.
    #[must_use]
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
    /// settings.
    ///
    /// # Errors
    /// Fails if another revision is in force.
    pub fn apply(&self, now: Millis, change: Change, expected: Option<u64>) -> Result<Made, Stale> {
        let mut state = self.state.lock();
        let before = Arc::clone(&state.newest);
        if expected.is_some_and(|expected| expected != before.revision) {
            return Err(Stale(before.revision));
        }
        let (before, after) = self.push(&mut state, now, change);
        Ok(Made {
            before,
            after,
            pending: state.pending.clone(),
        })
    }

    /// Applies `[routing]` if it differs from what was last read. Returns the previous and the new revision.
    pub fn configure(&self, now: Millis, settings: Settings) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        if settings == state.configured {
            return None;
        }
        state.configured = settings.clone();
        Some(self.push(&mut state, now, Change::configured(settings)))
    }

    /// Applies a scheduled revert if it is due. Returns the previous and the new revision.
    pub fn revert(&self, now: Millis) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        let to = match &state.pending {
            Some(pending) if pending.due <= now => Arc::clone(&pending.to),
            _ => return None,
        };
        Some(self.push(&mut state, now, Change::back_to(&to)))
    }

    fn push(&self, state: &mut State, now: Millis, change: Change) -> (Arc<Revision>, Arc<Revision>) {
        let before = Arc::clone(&state.newest);
        let lasting = state
            .pending
            .take()
            .map_or(Arc::clone(&before), |pending| pending.to);
        let temporary = change.revert_after.is_some();
        state.pending = change.revert_after.map(|after| Pending {
            due: now + after,
            to: lasting,
        });
        let after = Arc::new(Revision {
            revision: before.revision + 1,
            settings: change.settings,
            since_unix_ms: super::unix_ms(),
            by: change.by,
            reason: change.reason,
            source: change.source,
            replica: None,
            temporary,
        });
        state.older.push_back(Arc::clone(&before));
        self.enact(state, Arc::clone(&after));
        (before, after)
    }

    fn enact(&self, state: &mut State, after: Arc<Revision>) {
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
            let due = self.state.lock().pending.as_ref().map(|pending| pending.due);
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

#[cfg(test)]
mod tests {
    use policy::route::PolicyName;

    use super::*;

    const NOW: Millis = Millis(1000.0);

    fn put(locality: f64) -> Change {
        let mut settings = Settings::default();
        settings.weights.locality = locality;
        Change {
            settings,
            by: "a".to_owned(),
            reason: None,
            source: Source::Put,
            revert_after: None,
        }
    }

    fn put_for(locality: f64, seconds: f64) -> Change {
        Change {
            revert_after: Some(Millis(seconds * 1e3)),
            ..put(locality)
        }
    }

    fn locality(revisions: &Revisions) -> f64 {
        revisions.load().settings.weights.locality
    }

    #[test]
    fn of_two_changes_to_one_revision_the_first_is_made() {
        let revisions = Revisions::new(Settings::default());
        let made = revisions.apply(NOW, put(2.0), Some(1)).unwrap();
        assert_eq!((made.before.revision, made.after.revision), (1, 2));
        assert_eq!(revisions.apply(NOW, put(3.0), Some(1)), Err(Stale(2)));
        assert_eq!((locality(&revisions), revisions.load().revision), (2.0, 2));
    }

    #[test]
    fn a_change_for_a_time_goes_back_when_it_is_due_and_not_before() {
        let revisions = Revisions::new(Settings::default());
        revisions.apply(NOW, put_for(2.0, 60.0), None).unwrap();
        assert!(revisions.revert(NOW + Millis(59_999.0)).is_none());
        let (_, after) = revisions.revert(NOW + Millis(60_000.0)).unwrap();
        assert_eq!((after.revision, after.source), (3, Source::Revert));
        assert_eq!(revisions.load().settings, Settings::default());
        assert!(revisions.revert(NOW + Millis(1e9)).is_none(), "once");
    }

    #[test]
    fn the_lasting_revision_before_another_is_not_a_temporary_one() {
        let revisions = Revisions::new(Settings::default());
        let before = |revision| revisions.lasting_before(revision).map(|found| found.revision);
        revisions.apply(NOW, put_for(2.0, 60.0), None).unwrap();
        revisions.apply(NOW, put_for(3.0, 60.0), None).unwrap();
        revisions.apply(NOW, put(4.0), None).unwrap();
        assert_eq!([1, 2, 3, 4].map(before), [None, Some(1), Some(1), Some(1)]);
        revisions.apply(NOW, put(5.0), None).unwrap();
        assert_eq!(before(5), Some(4));
    }

    #[test]
    fn the_last_change_counts_and_one_on_top_of_a_passing_one_goes_back_to_what_lasts() {
        let revisions = Revisions::new(Settings::default());
        revisions.apply(NOW, put(2.0), None).unwrap();
        revisions.apply(NOW, put_for(3.0, 60.0), None).unwrap();
        revisions.apply(NOW, put_for(4.0, 60.0), None).unwrap();
        revisions.revert(NOW + Millis(60_000.0)).unwrap();
        assert_eq!(locality(&revisions), 2.0);
        revisions.apply(NOW, put_for(5.0, 60.0), None).unwrap();
        revisions.apply(NOW, put(6.0), None).unwrap();
        assert!(revisions.revert(NOW + Millis(1e9)).is_none());
        assert_eq!(locality(&revisions), 6.0);
    }

    #[test]
    fn a_configuration_is_put_in_force_only_where_its_routing_has_changed() {
        let revisions = Revisions::new(Settings::default());
        revisions.apply(NOW, put(2.0), None).unwrap();
        assert!(revisions.configure(NOW, Settings::default()).is_none());
        assert_eq!(locality(&revisions), 2.0, "the live change stays");
        let random = Settings {
            policy: PolicyName::Random,
            ..Settings::default()
        };
        let (_, after) = revisions.configure(NOW, random.clone()).unwrap();
        assert_eq!(
            (after.source, revisions.load().settings.clone()),
            (Source::Reload, random)
        );
    }

    #[test]
    fn history_is_bounded_and_a_return_finds_what_left_it() {
        let revisions = Revisions::new(Settings::default());
        revisions.apply(NOW, put_for(0.5, 60.0), None).unwrap();
        for _ in 0..HISTORY {
            revisions.apply(NOW, put_for(2.0, 60.0), None).unwrap();
        }
        assert_eq!(revisions.history().len(), HISTORY);
        assert!(revisions.find(1).is_none());
        revisions.revert(NOW + Millis(60_000.0)).unwrap();
        assert_eq!(revisions.load().settings, Settings::default());
    }
}
