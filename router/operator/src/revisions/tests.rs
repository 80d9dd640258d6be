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
        source: RevisionSource::Put,
        revert_after: None,
        sets: std::collections::BTreeSet::new(),
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
    assert_eq!((after.revision, after.source), (3, RevisionSource::Revert));
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
    let (_, after) = revisions.configure(NOW, random).unwrap();
    let expected = Settings {
        policy: PolicyName::Random,
        ..put(2.0).settings
    };
    assert_eq!(
        (after.source, revisions.load().settings.clone()),
        (RevisionSource::Reload, expected),
        "the live change of another key stays"
    );
}

fn put_load(of: &Revisions, load: f64, seconds: Option<f64>) {
    let mut settings = of.load().settings.clone();
    settings.weights.load = load;
    let change = Change {
        settings,
        revert_after: seconds.map(|seconds| Millis(seconds * 1e3)),
        ..put(0.0)
    };
    of.apply(NOW, change, None).unwrap();
}

fn weights(of: &Revisions) -> (f64, f64) {
    let in_force = of.load();
    (in_force.settings.weights.locality, in_force.settings.weights.load)
}

fn at(seconds: f64) -> Millis {
    NOW + Millis(seconds * 1e3)
}

#[test]
fn a_temporary_value_returns_although_another_key_was_changed_meanwhile() {
    let revisions = Revisions::new(Settings::default());
    let (locality, load) = weights(&revisions);
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    put_load(&revisions, 7.0, None);
    let (newest, timers) = revisions.now();
    assert_eq!(timers.keys().collect::<Vec<_>>(), ["/weights/locality"]);
    assert!(!newest.temporary && newest.temporary_keys.contains_key("/weights/locality"));
    assert_eq!(newest.lasting().weights.locality, locality);
    assert_eq!(weights(&revisions), (9.0, 7.0));
    assert!(revisions.revert(at(59.9)).is_none());
    let (_, after) = revisions.revert(at(60.0)).unwrap();
    assert_eq!(
        (weights(&revisions), after.source),
        ((locality, 7.0), RevisionSource::Revert)
    );
    assert_eq!(
        after.reason.as_deref(),
        Some("the time of revision 2 is over for weights.locality")
    );
    assert!(after.temporary_keys.is_empty() && revisions.now().1.is_empty());
    assert_ne!(load, 7.0);
}

#[test]
fn each_of_two_temporary_values_returns_at_its_own_time() {
    let revisions = Revisions::new(Settings::default());
    let (locality, load) = weights(&revisions);
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    put_load(&revisions, 7.0, Some(30.0));
    assert_eq!(weights(&revisions), (9.0, 7.0));
    revisions.revert(at(30.0)).unwrap();
    assert_eq!(weights(&revisions), (9.0, load));
    assert!(revisions.revert(at(59.0)).is_none());
    revisions.revert(at(60.0)).unwrap();
    assert_eq!(weights(&revisions), (locality, load));
}

#[test]
fn a_key_changed_for_good_or_back_has_no_timer_and_the_others_keep_theirs() {
    let revisions = Revisions::new(Settings::default());
    let (_, load) = weights(&revisions);
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    put_load(&revisions, 7.0, Some(60.0));
    put_load(&revisions, 8.0, None);
    assert_eq!(revisions.now().1.len(), 1);
    put_load(&revisions, 7.0, Some(60.0));
    put_load(&revisions, 8.0, Some(60.0));
    assert_eq!(revisions.now().1.len(), 1, "it has its lasting value");
    revisions.revert(at(60.0)).unwrap();
    assert_eq!(weights(&revisions).1, 8.0);
    assert_ne!(load, 8.0);
}

#[test]
fn a_change_that_changes_nothing_is_about_the_temporary_values() {
    let revisions = Revisions::new(Settings::default());
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    revisions.apply(NOW, put_for(9.0, 600.0), None).unwrap();
    assert!(revisions.revert(at(60.0)).is_none(), "it has been extended");
    revisions.apply(NOW, put(9.0), None).unwrap();
    assert!(revisions.revert(at(1e6)).is_none(), "it lasts");
    assert_eq!(locality(&revisions), 9.0);
}

#[test]
fn a_rollback_ends_all_timers() {
    let revisions = Revisions::new(Settings::default());
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    let rollback = Change {
        source: RevisionSource::Rollback,
        ..put(9.0)
    };
    revisions.apply(NOW, rollback, None).unwrap();
    assert!(revisions.now().1.is_empty());
}

#[test]
fn a_changed_configuration_changes_its_keys_and_leaves_the_others_with_their_timers() {
    let revisions = Revisions::new(Settings::default());
    let (locality, _) = weights(&revisions);
    revisions.apply(NOW, put_for(9.0, 60.0), None).unwrap();
    put_load(&revisions, 7.0, Some(60.0));
    let mut file = Settings::default();
    file.weights.load = 7.0;
    let (_, after) = revisions.configure(NOW, file).unwrap();
    assert_eq!(
        (after.source, weights(&revisions)),
        (RevisionSource::Reload, (9.0, 7.0))
    );
    revisions.revert(at(60.0)).unwrap();
    assert_eq!(
        weights(&revisions),
        (locality, 7.0),
        "the file has the last word on its key"
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
