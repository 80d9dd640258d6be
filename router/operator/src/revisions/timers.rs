//! Temporary values. Each key that was changed for a limited time has a timer of its own, so that a change of another
//! key neither ends it nor makes it permanent.

use std::collections::{BTreeMap, BTreeSet};

use policy::units::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys::{KeyValues, differing, in_words, values_of, with};
use super::{Change, Revision, RevisionSource};

/// Longest duration of a temporary change, in seconds: a week.
pub const LONGEST_S: f64 = 604_800.0;

/// The end of a temporary value.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// Time at which the value ends, by the router's clock.
    pub due: Millis,
    /// Value that returns; `None` if the key is absent then.
    pub back_to: Option<Value>,
    /// Revision that set the temporary value.
    pub since: u64,
}

/// The temporary values in force, by key (a JSON pointer into the settings).
pub type Timers = BTreeMap<String, Timer>;

/// A timer as a file or a bucket has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenTimer {
    key: String,
    back_to: Option<Value>,
    since: u64,
    due_unix_ms: u64,
}

/// Returns timers as a file or a bucket has them. `unix_ms` is the time of `now`.
#[must_use]
pub fn written(timers: &Timers, now: Millis, unix_ms: u64) -> Vec<WrittenTimer> {
    let timer = |(key, timer): (&String, &Timer)| WrittenTimer {
        key: key.clone(),
        back_to: timer.back_to.clone(),
        since: timer.since,
        due_unix_ms: (unix_ms as f64 + (timer.due - now).0).max(0.0) as u64,
    };
    timers.iter().map(timer).collect()
}

/// Returns written timers by the router's clock. One that is due already ends at once, and none is later than the
/// longest time from now.
#[must_use]
pub fn read(written: &[WrittenTimer], now: Millis, unix_ms: u64) -> Timers {
    let timer = |timer: &WrittenTimer| {
        let left_ms = (timer.due_unix_ms as f64 - unix_ms as f64).clamp(0.0, LONGEST_S * 1e3);
        let read = Timer {
            due: now + Millis(left_ms),
            back_to: timer.back_to.clone(),
            since: timer.since,
        };
        (timer.key.clone(), read)
    };
    written.iter().map(timer).collect()
}

/// Returns the timers after a change.
///
/// A lasting change ends the timers of the keys that it changes, and a temporary one gives these keys timers of its
/// own; neither affects other timers. A temporary value that is changed for a limited time again returns to the lasting
/// value. A change that leaves all values as they are applies to the temporary ones: it makes them lasting, or restarts
/// their time. A rollback makes all values lasting.
#[must_use]
pub fn after(timers: &Timers, now: Millis, before: &Revision, change: &Change) -> Timers {
    let mut after = timers.clone();
    match change.source {
        RevisionSource::Rollback | RevisionSource::Start => return Timers::new(),
        RevisionSource::Revert => {
            after.retain(|_, timer| timer.due > now);
            return after;
        }
        RevisionSource::Put | RevisionSource::Reload => {}
    }
    let mut changed: BTreeSet<String> = differing(&before.settings, &change.settings)
        .into_keys()
        .collect();
    changed.extend(change.sets.iter().cloned());
    if changed.is_empty() {
        changed = timers.keys().cloned().collect();
    }
    let Some(time) = change.revert_after else {
        after.retain(|key, _| !changed.contains(key));
        return after;
    };
    let values = values_of(&change.settings, &changed);
    for (key, lasting) in values_of(&before.settings, &changed) {
        let back_to = timers.get(&key).map_or(lasting, |timer| timer.back_to.clone());
        if values.get(&key) == Some(&back_to) {
            after.remove(&key);
            continue;
        }
        let timer = Timer {
            due: now + time,
            back_to,
            since: before.revision + 1,
        };
        after.insert(key, timer);
    }
    after
}

/// Returns the values that return when these timers end.
#[must_use]
pub fn values(timers: &Timers) -> KeyValues {
    let value = |(key, timer): (&String, &Timer)| (key.clone(), timer.back_to.clone());
    timers.iter().map(value).collect()
}

/// Returns the change that ends the timers that are due; `None` if none is.
pub(super) fn revert(timers: &Timers, now: Millis, newest: &Revision) -> Option<Change> {
    let due: Timers = timers
        .iter()
        .filter(|(_, timer)| timer.due <= now)
        .map(|(key, timer)| (key.clone(), timer.clone()))
        .collect();
    if due.is_empty() {
        return None;
    }
    let since: BTreeSet<String> = due.values().map(|timer| timer.since.to_string()).collect();
    let since: Vec<String> = since.into_iter().collect();
    let keys = in_words(due.keys());
    let (settings, reason) = match with(&newest.settings, &values(&due)) {
        Ok(settings) => (
            settings,
            format!("the time of revision {} is over for {keys}", since.join(", ")),
        ),
        // Values that make no settings come from another process only.
        Err(error) => (newest.settings.clone(), format!("{keys} cannot return: {error}")),
    };
    Some(Change {
        settings,
        by: "router".to_owned(),
        reason: Some(reason),
        source: RevisionSource::Revert,
        revert_after: None,
        sets: BTreeSet::new(),
    })
}
