//! The policy in force, and those before it.
//!
//! A change makes a revision: all of the policy and its weights, with who made it, when and why. What is in force is one
//! pointer that is swapped, so that every choice that begins afterwards, on whatever thread, reads the new one whole, and
//! none reads half of it. A rollback puts the very settings of an earlier revision in force again, bit for bit, as a new
//! revision: history only grows, until its oldest go.
//!
//! A change may be for a time only. Then what was in force before comes back by itself, unless somebody changes the
//! policy in between: the last change counts. A change on top of one that was for a time goes back to where that one
//! would have gone.
//!
//! Revisions are not kept over a restart, which begins with the configuration. So does a change of `[routing]` in the
//! configuration: it is a revision like another, the latest. A reload that leaves `[routing]` as it was read last leaves
//! the policy alone, whatever was changed live.
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

/// What a choice reads.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    /// The revision's number.
    pub revision: u64,
    /// The policy and its weights.
    pub settings: Settings,
}

/// One policy that was or is in force.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Revision {
    /// Its number since the start of the router, or of the bucket that replicas have it in; the first is 1.
    pub revision: u64,
    /// The policy and all of its weights.
    #[schemars(with = "config::PolicyDocument")]
    pub settings: Settings,
    /// When it came into force, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Who put it there: a token's name, or `router`.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// How.
    pub source: Source,
    /// By which replica, where several have their policy in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
}

/// How a revision came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration that the router was started with.
    Start,
    /// The admin port.
    Put,
    /// A return to an earlier revision.
    Rollback,
    /// The end of a change that was for a time.
    Revert,
    /// `[routing]` of the configuration has changed.
    Reload,
}

impl Source {
    /// The name in metrics.
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

/// What is to change.
#[derive(Clone, Debug)]
pub struct Change {
    /// To this.
    pub settings: Settings,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// How.
    pub source: Source,
    /// For so long only.
    pub revert_after: Option<Millis>,
}

impl Change {
    /// `[routing]` is another one.
    fn configured(settings: Settings) -> Self {
        Self {
            settings,
            by: "router".to_owned(),
            reason: Some("[routing] of the configuration has changed".to_owned()),
            source: Source::Reload,
            revert_after: None,
        }
    }

    /// The end of a change that was for a time.
    fn back_to(earlier: &Revision) -> Self {
        Self {
            settings: earlier.settings.clone(),
            by: "router".to_owned(),
            reason: Some(format!(
                "the change was for a time; back to revision {}",
                earlier.revision
            )),
            source: Source::Revert,
            revert_after: None,
        }
    }
}

/// A return that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// When, by the router's clock.
    pub due: Millis,
    /// To what.
    pub to: Arc<Revision>,
}

/// A change that was made, as it was when it was made: others may have followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// What was in force.
    pub before: Arc<Revision>,
    /// What came into force.
    pub after: Arc<Revision>,
    /// What it will be followed by.
    pub pending: Option<Pending>,
}

/// The revision that was to be changed is not the one in force any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {0} is in force by now")]
pub struct Stale(pub u64);

/// All revisions.
#[derive(Debug)]
pub struct Revisions {
    in_force: ArcSwap<InForce>,
    state: Mutex<State>,
    changed: Notify,
    /// Tells the revisions of one process, or of one bucket, from those of another.
    lineage: AtomicU32,
    /// Whether they are those of a bucket.
    is_shared: AtomicBool,
    reconfigured: Notify,
}

#[derive(Debug)]
struct State {
    newest: Arc<Revision>,
    /// Those before it, the oldest first.
    older: VecDeque<Arc<Revision>>,
    pending: Option<Pending>,
    /// `[routing]` as it was read last.
    configured: Settings,
    /// Whether that is to be put in force where all replicas have it.
    is_to_configure: bool,
}

impl State {
    /// Those that are remembered, the newest first.
    fn history(&self) -> impl Iterator<Item = &Arc<Revision>> {
        std::iter::once(&self.newest).chain(self.older.iter().rev())
    }
}

impl Revisions {
    /// Begins with what is configured.
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

    /// What is in force, for one choice.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// The revision in force, and what it will be followed by.
    #[must_use]
    pub fn now(&self) -> (Arc<Revision>, Option<Pending>) {
        let state = self.state.lock();
        (Arc::clone(&state.newest), state.pending.clone())
    }

    /// `[routing]` as it was read last.
    #[must_use]
    pub fn configured(&self) -> Settings {
        self.state.lock().configured.clone()
    }

    /// A revision's entity tag: no two revisions have the same, not even of two processes. Those of a bucket have the same on
    /// each replica.
    #[must_use]
    pub fn tag(&self, revision: u64) -> String {
        format!("\"{:08x}-{revision}\"", self.lineage())
    }

    /// The number of the revision that an entity tag names, whether it is remembered or not yet heard of.
    #[must_use]
    pub fn number(&self, tag: &str) -> Option<u64> {
        let (lineage, number) = tag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
        let number = number.parse().ok()?;
        (u32::from_str_radix(lineage, 16) == Ok(self.lineage()) && self.tag(number) == tag).then_some(number)
    }

    /// What tells these revisions from those of another process, or of another bucket.
    #[must_use]
    pub fn lineage(&self) -> u32 {
        self.lineage.load(Ordering::Acquire)
    }

    /// Those that are remembered, newest first.
    #[must_use]
    pub fn history(&self) -> Vec<Arc<Revision>> {
        self.state.lock().history().cloned().collect()
    }

    /// The revision of this number, if it is remembered.
    #[must_use]
    pub fn find(&self, revision: u64) -> Option<Arc<Revision>> {
        let state = self.state.lock();
        state.history().find(|known| known.revision == revision).cloned()
    }

    /// Puts a change in force, if `expected` is what it is made to, or nothing is expected. From here on every choice
    /// reads the new one.
    ///
    /// # Errors
    /// If another revision is in force.
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

    /// `[routing]` was read again. Puts it in force if it is not what was read last; returns what was and is in force.
    pub fn configure(&self, now: Millis, settings: Settings) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        if settings == state.configured {
            return None;
        }
        state.configured = settings.clone();
        Some(self.push(&mut state, now, Change::configured(settings)))
    }

    /// Goes back if that is due. Returns what was and is in force.
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
        // Under the lock, so that the pointer and the history agree on what came last.
        self.in_force.store(Arc::new(InForce {
            revision: after.revision,
            settings: after.settings.clone(),
        }));
        self.changed.notify_one();
    }

    /// Waits until a return is due. Whatever changes meanwhile is taken into account.
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
