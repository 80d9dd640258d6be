//! Revisions shared by all replicas: created in a bucket, and adopted from there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use policy::route::Settings;
use policy::units::Millis;

use super::{Change, Revision, RevisionSource, Revisions, Timers, keys, timers};

/// A revision read from a bucket.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// Identifier of the bucket.
    pub lineage: u32,
    /// Earlier revisions in the bucket, oldest first; used for a new bucket, and where some were missed.
    pub earlier: Vec<Revision>,
    /// The revision in force.
    pub revision: Revision,
    /// Temporary values in force.
    pub timers: Timers,
}

impl Revisions {
    /// Returns whether the revisions belong to a bucket.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// Returns whether the revisions belong to this bucket.
    pub fn are_of(&self, lineage: u32) -> bool {
        self.is_shared() && self.lineage() == lineage
    }

    /// Applies a revision of a bucket. Returns the previous and the new revision; `None` if it is already in force.
    pub fn adopt(&self, adopted: Adopted) -> Option<(Arc<Revision>, Arc<Revision>)> {
        let mut state = self.state.lock();
        let before = Arc::clone(&state.newest);
        let number = adopted.revision.revision;
        if !self.are_of(adopted.lineage) {
            state.older = adopted.earlier.into_iter().map(Arc::new).collect();
            self.lineage.store(adopted.lineage, Ordering::Release);
            self.is_shared.store(true, Ordering::Release);
        } else if number == before.revision {
            return None;
        } else {
            let missed = adopted
                .earlier
                .into_iter()
                .filter(|known| known.revision > before.revision);
            state.older.push_back(Arc::clone(&before));
            state.older.extend(missed.map(Arc::new));
        }
        // The bucket may have been restored from a backup.
        state.older.retain(|known| known.revision < number);
        state.timers = adopted.timers;
        let after = Arc::new(adopted.revision);
        self.enact(&mut state, Arc::clone(&after));
        Some((before, after))
    }

    /// Returns the change that ends the temporary values that are due; `None` if none is.
    pub fn due(&self, now: Millis) -> Option<Change> {
        let state = self.state.lock();
        timers::revert(&state.timers, now, &state.newest)
    }

    /// Requests that the keys of `[routing]` that differ from what was last read be applied to all replicas.
    pub fn configure_all(&self, settings: Settings) {
        let mut state = self.state.lock();
        let changed = keys::differing(&state.configured, &settings);
        if !changed.is_empty() {
            state.configured = settings;
            state.to_configure.extend(changed);
            drop(state);
            self.reconfigured.notify_one();
        }
    }

    /// Waits until a configuration is to be applied to all replicas.
    pub async fn wait_until_reconfigured(&self) {
        self.reconfigured.notified().await;
    }

    /// Returns the configured keys that are yet to be applied to all replicas, as a change; `None` if there are none.
    pub fn to_configure(&self) -> Option<Change> {
        let state = self.state.lock();
        let is_any = !state.to_configure.is_empty();
        is_any.then(|| Change::configured(&state.newest.settings, &state.to_configure))
    }

    /// Returns whether the latest revision that came from a configuration has this change's keys at its values. Then
    /// another replica has already read the same file, and later changes must not be undone by a late reader.
    pub fn was_configured(&self, change: &Change) -> bool {
        let state = self.state.lock();
        let mut newest_first = state.history();
        let last = newest_first.find(|known| known.source == RevisionSource::Reload);
        let values = |settings| keys::values_of(settings, &change.sets);
        last.is_some_and(|last| values(&last.settings) == values(&change.settings))
    }

    /// Records that all replicas have the keys of this change, as far as they have not changed since.
    pub fn configured_is_in_force(&self, change: &Change) {
        let mut state = self.state.lock();
        let values = keys::values_of(&change.settings, &change.sets);
        state
            .to_configure
            .retain(|key, value| values.get(key) != Some(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1000.0);

    fn revision(number: u64, locality: f64) -> Revision {
        let mut settings = Settings::default();
        settings.weights.locality = locality;
        Revision {
            revision: number,
            settings,
            since_unix_ms: 0,
            by: "a".to_owned(),
            reason: None,
            source: RevisionSource::Put,
            replica: None,
            temporary: false,
            temporary_keys: keys::KeyValues::new(),
        }
    }

    fn adopted(lineage: u32, number: u64, locality: f64) -> Adopted {
        Adopted {
            lineage,
            earlier: Vec::new(),
            revision: revision(number, locality),
            timers: Timers::new(),
        }
    }

    fn numbers(revisions: &Revisions) -> Vec<u64> {
        let history = revisions.history();
        history.iter().map(|revision| revision.revision).collect()
    }

    #[test]
    fn a_buckets_revisions_take_the_place_of_this_processs_with_their_history() {
        let revisions = Revisions::new(Settings::default());
        let own = revisions.tag(1);
        let first = Adopted {
            earlier: vec![revision(1, 1.0), revision(2, 2.0)],
            ..adopted(7, 3, 3.0)
        };
        let (_, after) = revisions.adopt(first).unwrap();
        assert_eq!((after.revision, numbers(&revisions)), (3, vec![3, 2, 1]));
        assert_eq!(revisions.load().settings.weights.locality, 3.0);
        assert!(revisions.adopt(adopted(7, 3, 9.0)).is_none(), "no news");
        assert_ne!(revisions.tag(1), own, "another lineage");
        let (before, after) = revisions.adopt(adopted(7, 4, 4.0)).unwrap();
        assert_eq!((before.revision, after.revision), (3, 4));
    }

    #[test]
    fn revisions_that_were_missed_are_history() {
        let revisions = Revisions::new(Settings::default());
        revisions.adopt(adopted(7, 5, 5.0)).unwrap();
        let newest = Adopted {
            earlier: vec![
                revision(4, 4.0),
                revision(5, 5.0),
                revision(6, 6.0),
                revision(7, 7.0),
            ],
            ..adopted(7, 7, 7.0)
        };
        revisions.adopt(newest).unwrap();
        assert_eq!(numbers(&revisions), [7, 6, 5]);
    }

    #[test]
    fn a_file_that_another_replica_has_read_is_not_put_in_force_over_what_came_since() {
        let revisions = Revisions::new(Settings::default());
        let file = |number, locality| Revision {
            source: RevisionSource::Reload,
            ..revision(number, locality)
        };
        let found = |revision| Adopted {
            revision,
            ..adopted(7, 0, 0.0)
        };
        revisions.adopt(found(file(7, 2.0))).unwrap();
        revisions.adopt(found(revision(8, 1.0))).unwrap();
        let file_with = |locality| {
            let settings = revision(0, locality).settings;
            let values = keys::values_of(&settings, &["/weights/locality".to_owned()]);
            Change::configured(&settings, &values)
        };
        assert!(revisions.was_configured(&file_with(2.0)));
        assert!(!revisions.was_configured(&file_with(1.0)), "no file has it");
        revisions.adopt(found(file(9, 3.0))).unwrap();
        assert!(!revisions.was_configured(&file_with(2.0)), "an older file");
    }

    #[test]
    fn a_tag_names_a_revision_that_was_not_heard_of_yet_but_none_of_another_bucket() {
        let revisions = Revisions::new(Settings::default());
        let own = revisions.tag(1);
        revisions.adopt(adopted(7, 3, 3.0)).unwrap();
        assert_eq!(revisions.number(&revisions.tag(4)), Some(4));
        assert_eq!(revisions.number(&own), None);
        for wrong in ["", "\"", "\"\"", "\"7-4\"", "00000007-4", "\"00000007-+4\""] {
            assert_eq!(revisions.number(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn another_bucket_and_one_of_an_earlier_day_begin_anew() {
        let revisions = Revisions::new(Settings::default());
        revisions.adopt(adopted(7, 50, 5.0)).unwrap();
        revisions.adopt(adopted(8, 2, 1.0)).unwrap();
        assert_eq!(numbers(&revisions), [2]);
        revisions.adopt(adopted(8, 3, 3.0)).unwrap();
        revisions.adopt(adopted(8, 2, 2.0)).unwrap();
        assert_eq!(numbers(&revisions), [2]);
        assert_eq!(revisions.load().settings.weights.locality, 2.0);
    }

    #[test]
    fn a_return_is_due_on_every_replica_that_knows_of_it() {
        let revisions = Revisions::new(Settings::default());
        let timer = timers::Timer {
            due: NOW + Millis(10.0),
            back_to: Some(1.0.into()),
            since: 2,
        };
        let for_a_time = Adopted {
            timers: [("/weights/locality".to_owned(), timer)].into(),
            ..adopted(7, 2, 2.0)
        };
        revisions.adopt(for_a_time).unwrap();
        assert!(revisions.due(NOW).is_none());
        let due = revisions.due(NOW + Millis(10.0)).unwrap();
        assert_eq!(
            (due.settings.weights.locality, due.source),
            (1.0, RevisionSource::Revert)
        );
        revisions.adopt(adopted(7, 3, 1.0)).unwrap();
        assert!(revisions.due(NOW + Millis(1e9)).is_none());
    }

    #[test]
    fn a_changed_configuration_waits_until_all_have_it() {
        let revisions = Revisions::new(Settings::default());
        revisions.configure_all(Settings::default());
        assert!(revisions.to_configure().is_none());
        let (other, another) = (revision(0, 4.0).settings, revision(0, 5.0).settings);
        revisions.configure_all(other.clone());
        let first = revisions.to_configure().unwrap();
        assert_eq!(first.settings, other);
        revisions.configure_all(another.clone());
        revisions.configured_is_in_force(&first);
        let second = revisions.to_configure().expect("it has changed again meanwhile");
        assert_eq!(second.settings, another);
        revisions.configured_is_in_force(&second);
        assert!(revisions.to_configure().is_none());
    }
}
