//! Revisions and timers that outlive a process.

use std::sync::Arc;

use policy::units::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys::{KeyValues, settings_of};
use super::timers::{self, WrittenTimer};
use super::{HISTORY, Revision, RevisionSource, Revisions};

/// Most bytes of the revisions that are kept. The newest one is kept whatever its size, which the admin port bounds.
const MOST_BYTES: usize = 4 << 20;
/// Highest number of a revision that is restored: further ones must follow it.
const HIGHEST_NUMBER: u64 = 1 << 53;

/// The policy as it outlives a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptPolicy {
    /// `[routing]` as it was last read.
    configured: Value,
    /// Revisions, the oldest first; the last is in force.
    revisions: Vec<KeptRevision>,
    #[serde(default)]
    timers: Vec<WrittenTimer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptRevision {
    revision: u64,
    settings: Value,
    since_unix_ms: u64,
    by: String,
    reason: Option<String>,
    source: RevisionSource,
    replica: Option<String>,
    temporary: bool,
    #[serde(default)]
    temporary_keys: KeyValues,
}

impl KeptRevision {
    fn of(revision: &Revision) -> Self {
        Self {
            revision: revision.revision,
            settings: serde_json::to_value(&revision.settings).unwrap_or_default(),
            since_unix_ms: revision.since_unix_ms,
            by: revision.by.clone(),
            reason: revision.reason.clone(),
            source: revision.source,
            replica: revision.replica.clone(),
            temporary: revision.temporary,
            temporary_keys: revision.temporary_keys.clone(),
        }
    }

    fn checked(self) -> Result<Revision, String> {
        if self.revision == 0 || self.revision > HIGHEST_NUMBER {
            return Err(format!("its number is {}", self.revision));
        }
        Ok(Revision {
            settings: settings_of(&self.settings)?,
            revision: self.revision,
            since_unix_ms: self.since_unix_ms,
            by: self.by,
            reason: self.reason,
            source: self.source,
            replica: self.replica,
            temporary: self.temporary,
            temporary_keys: self.temporary_keys,
        })
    }
}

/// Result of restoring a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Number of the revision in force.
    pub revision: u64,
    /// Earlier revisions that are invalid and were left out.
    pub left_out: usize,
    /// Whether `[routing]` as it was last read is known, so that its changes since can be detected.
    pub knows_configured: bool,
}

impl Revisions {
    /// Returns the policy as another process can restore it. `unix_ms` is the time of `now`.
    #[must_use]
    pub fn kept(&self, now: Millis, unix_ms: u64) -> KeptPolicy {
        let (configured, history, timers) = {
            let state = self.state.lock();
            let history: Vec<Arc<Revision>> = state.history().cloned().collect();
            (state.configured.clone(), history, state.timers.clone())
        };
        let mut room = MOST_BYTES;
        let mut revisions = Vec::new();
        for revision in &history {
            let kept = KeptRevision::of(revision);
            let bytes = serde_json::to_vec(&kept).map_or(usize::MAX, |bytes| bytes.len());
            if bytes > room && !revisions.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            revisions.push(kept);
        }
        revisions.reverse();
        KeptPolicy {
            configured: serde_json::to_value(configured).unwrap_or_default(),
            revisions,
            timers: timers::written(&timers, now, unix_ms),
        }
    }

    /// Restores a policy with its history and timers, before it has changed here. `unix_ms` is the time of `now`.
    /// Fails and changes nothing if the revision in force is invalid.
    pub fn restore(&self, kept: KeptPolicy, now: Millis, unix_ms: u64) -> Result<Restored, String> {
        let configured = settings_of(&kept.configured);
        let mut revisions = kept.revisions;
        let newest = revisions.pop().ok_or("there is no revision")?.checked()?;
        let count = revisions.len();
        let first = count.saturating_sub(HISTORY - 1);
        let mut older: Vec<Arc<Revision>> = Vec::new();
        for revision in revisions.into_iter().skip(first) {
            let last = older.last().map_or(0, |last| last.revision);
            let follows = |known: &Revision| last < known.revision && known.revision < newest.revision;
            older.extend(revision.checked().ok().filter(follows).map(Arc::new));
        }
        let restored = Restored {
            revision: newest.revision,
            left_out: count - first - older.len(),
            knows_configured: configured.is_ok(),
        };
        let mut state = self.state.lock();
        state.older = older.into();
        state.timers = timers::read(&kept.timers, now, unix_ms);
        if let Ok(configured) = configured {
            state.configured = configured;
        }
        self.enact(&mut state, Arc::new(newest));
        Ok(restored)
    }
}

#[cfg(test)]
mod tests {
    use policy::route::{PolicyName, Settings};

    use super::super::Change;
    use super::*;

    const NOW: Millis = Millis(1_000.0);
    const UNIX_MS: u64 = 1_800_000_000_000;

    fn change(of: &Revisions, locality: f64, seconds: Option<f64>) {
        let mut settings = of.load().settings.clone();
        settings.weights.locality = locality;
        let change = Change {
            settings,
            by: "ann".to_owned(),
            reason: Some("noon".to_owned()),
            source: RevisionSource::Put,
            revert_after: seconds.map(|seconds| Millis(seconds * 1e3)),
            sets: std::collections::BTreeSet::new(),
        };
        of.apply(NOW, change, None).unwrap();
    }

    fn changed() -> Revisions {
        let revisions = Revisions::new(Settings::default());
        change(&revisions, 2.0, None);
        change(&revisions, 3.0, Some(600.0));
        revisions
    }

    fn read(kept: &KeptPolicy) -> KeptPolicy {
        serde_json::from_slice(&serde_json::to_vec(kept).unwrap()).unwrap()
    }

    #[test]
    fn history_and_timers_continue_in_another_process() {
        let before = changed();
        let kept = read(&before.kept(NOW, UNIX_MS));
        let after = Revisions::new(Settings::default());
        let restored = after.restore(kept, Millis(50.0), UNIX_MS + 100_000).unwrap();
        assert_eq!((restored.revision, restored.left_out), (3, 0));
        assert!(restored.knows_configured);
        let numbers =
            |of: &Revisions| -> Vec<u64> { of.history().iter().map(|revision| revision.revision).collect() };
        assert_eq!(numbers(&after), [3, 2, 1]);
        assert_eq!(*after.find(2).unwrap(), *before.find(2).unwrap());
        // A hundred seconds of ten minutes have passed.
        assert!(after.revert(Millis(50.0 + 499_999.0)).is_none());
        let (_, reverted) = after.revert(Millis(50.0 + 500_000.0)).unwrap();
        assert_eq!((reverted.revision, reverted.settings.weights.locality), (4, 2.0));
    }

    #[test]
    fn a_time_that_has_passed_in_between_ends_at_once() {
        let kept = read(&changed().kept(NOW, UNIX_MS));
        let after = Revisions::new(Settings::default());
        after.restore(kept, Millis(50.0), UNIX_MS + 86_400_000).unwrap();
        assert_eq!(after.load().settings.weights.locality, 3.0);
        after.revert(Millis(50.0)).unwrap();
        assert_eq!(after.load().settings.weights.locality, 2.0);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_timer_longer_than_the_longest() {
        let kept = read(&changed().kept(NOW, UNIX_MS));
        let after = Revisions::new(Settings::default());
        after.restore(kept, NOW, 0).unwrap();
        let (_, timers) = after.now();
        let due = timers.values().next().unwrap().due;
        assert_eq!(due, NOW + Millis(timers::LONGEST_S * 1e3));
    }

    #[test]
    fn keys_that_changed_in_the_file_meanwhile_are_the_files() {
        let kept = read(&changed().kept(NOW, UNIX_MS));
        let file = Settings {
            kappa_max: 12.0,
            ..Settings::default()
        };
        let after = Revisions::new(file.clone());
        after.restore(kept, NOW, UNIX_MS).unwrap();
        let (_, changed) = after.configure(NOW, file).unwrap();
        assert_eq!((changed.revision, changed.source), (4, RevisionSource::Reload));
        assert_eq!(
            (changed.settings.kappa_max, changed.settings.weights.locality),
            (12.0, 3.0)
        );
        let unchanged = Revisions::new(Settings::default());
        unchanged
            .restore(read(&self::changed().kept(NOW, UNIX_MS)), NOW, UNIX_MS)
            .unwrap();
        assert!(unchanged.configure(NOW, Settings::default()).is_none());
    }

    #[test]
    fn invalid_revisions_are_left_out_and_an_invalid_newest_one_refuses_all() {
        let wrong = |path: &[&str], value: Value| {
            let mut kept = serde_json::to_value(changed().kept(NOW, UNIX_MS)).unwrap();
            let mut at = &mut kept;
            for name in path {
                at = match name.parse::<usize>() {
                    Ok(number) => &mut at[number],
                    Err(_) => &mut at[*name],
                };
            }
            *at = value;
            let kept: KeptPolicy = serde_json::from_value(kept).unwrap();
            let after = Revisions::new(Settings {
                policy: PolicyName::Random,
                ..Settings::default()
            });
            (after.restore(kept, NOW, UNIX_MS), after.load().settings.policy)
        };
        let negative = serde_json::json!({ "weights": { "locality": -1 } });
        let (restored, _) = wrong(&["revisions", "0", "settings"], negative.clone());
        assert_eq!(restored.unwrap().left_out, 1);
        let (restored, _) = wrong(&["revisions", "1", "revision"], Value::from(1));
        assert_eq!(restored.unwrap().left_out, 1, "numbers increase");
        let (refused, policy) = wrong(&["revisions", "2", "settings"], negative);
        assert!(refused.is_err() && policy == PolicyName::Random);
        assert!(
            wrong(&["revisions", "2", "revision"], Value::from(u64::MAX))
                .0
                .is_err()
        );
        assert!(wrong(&["revisions"], serde_json::json!([])).0.is_err());
        assert!(!wrong(&["configured"], Value::Null).0.unwrap().knows_configured);
    }

    #[test]
    fn kept_history_is_bounded_and_the_newest_revisions_stay() {
        let revisions = Revisions::new(Settings::default());
        for at in 0..10 {
            let mut settings = Settings::default();
            for name in 0..20_000 {
                settings.named.insert(
                    format!("name-{name}"),
                    policy::route::Override {
                        kappa_max: Some(f64::from(at + 2)),
                        ..policy::route::Override::default()
                    },
                );
            }
            let change = Change {
                settings,
                ..changed_by_nothing()
            };
            revisions.apply(NOW, change, None).unwrap();
        }
        let kept = revisions.kept(NOW, UNIX_MS);
        let bytes = serde_json::to_vec(&kept.revisions).unwrap().len();
        assert!(
            bytes <= MOST_BYTES + 1_000 && kept.revisions.len() < 11,
            "{bytes}"
        );
        assert_eq!(kept.revisions.last().unwrap().revision, 11);
    }

    fn changed_by_nothing() -> Change {
        Change {
            settings: Settings::default(),
            by: "ann".to_owned(),
            reason: None,
            source: RevisionSource::Put,
            revert_after: None,
            sets: std::collections::BTreeSet::new(),
        }
    }
}
