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
