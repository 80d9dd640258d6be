//! Settings as single keys, so that a change, a timer or a file can act on some of them.

use std::collections::{BTreeMap, BTreeSet};

use config::PolicyDocument;
use policy::route::Settings;
use serde_json::{Map, Value};

/// Values by key; `None` for a key that is absent. A key is a JSON pointer into the settings, since names of overrides
/// may have dots.
pub type KeyValues = BTreeMap<String, Option<Value>>;

/// Returns the values of all keys.
fn leaves(settings: &Settings) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    collect(
        serde_json::to_value(settings).unwrap_or_default(),
        String::new(),
        &mut leaves,
    );
    leaves
}

fn collect(value: Value, at: String, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{at}/{name}"), leaves);
            }
        }
        value => {
            leaves.insert(at, value);
        }
    }
}

/// Returns the keys that differ, with their values in `after`.
#[must_use]
pub fn differing(before: &Settings, after: &Settings) -> KeyValues {
    if before == after {
        return KeyValues::new();
    }
    let (before, mut after) = (leaves(before), leaves(after));
    let keys: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    let differs = |key: &String| before.get(key) != after.get(key);
    let keys: Vec<String> = keys.into_iter().filter(differs).collect();
    keys.into_iter()
        .map(|key| (key.clone(), after.remove(&key)))
        .collect()
}

/// Returns the values of these keys.
pub(super) fn values_of<'a>(settings: &Settings, keys: impl IntoIterator<Item = &'a String>) -> KeyValues {
    let leaves = leaves(settings);
    keys.into_iter()
        .map(|key| (key.clone(), leaves.get(key).cloned()))
        .collect()
}

/// Returns the settings with these values replaced. Fails if the result is not valid settings.
pub fn with(settings: &Settings, values: &KeyValues) -> Result<Settings, String> {
    if values.is_empty() {
        return Ok(settings.clone());
    }
    let mut leaves = leaves(settings);
    for (key, value) in values {
        match value {
            Some(value) => leaves.insert(key.clone(), value.clone()),
            None => leaves.remove(key),
        };
    }
    let mut document = Value::Object(Map::new());
    for (key, value) in leaves {
        put(&mut document, &key, value);
    }
    settings_of(&document)
}

fn put(document: &mut Value, key: &str, value: Value) {
    let mut at = document;
    for name in key.split('/').skip(1) {
        let name = name.replace("~1", "/").replace("~0", "~");
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Some(fields) = at.as_object_mut() else { return };
        at = fields.entry(name).or_insert(Value::Null);
    }
    // The parents of a key that is longer have fields already.
    if !at.is_object() || value.is_object() {
        *at = value;
    }
}

/// Reads settings that another process has written, and checks them as the admin API does. Overrides of unknown classes
/// are kept without effect. Files and buckets outlive releases, so missing fields get their defaults and unknown ones
/// are ignored. Fails if a value is invalid.
pub fn settings_of(document: &Value) -> Result<Settings, String> {
    let fields = serde_json::to_value(Settings::default()).unwrap_or_default();
    let document: PolicyDocument =
        config::read_document(&completed(document, &fields)).map_err(|error| error.to_string())?;
    Ok(document.settings_for_any_classes())
}

/// Fills missing fields from `fields` and drops unknown ones. A table that is empty there has user-defined keys.
fn completed(document: &Value, fields: &Value) -> Value {
    match (document, fields) {
        (Value::Object(document), Value::Object(fields)) if !fields.is_empty() => {
            let field = |(key, other): (&String, &Value)| {
                let own = document.get(key).map(|own| completed(own, other));
                (key.clone(), own.unwrap_or_else(|| other.clone()))
            };
            Value::Object(fields.iter().map(field).collect())
        }
        _ => document.clone(),
    }
}

/// Returns keys as the command line writes them, for reasons and the log.
pub(super) fn in_words<'a>(keys: impl IntoIterator<Item = &'a String>) -> String {
    let dotted = |key: &String| {
        let key = key.trim_start_matches('/').replace('/', ".");
        key.replace("~1", "/").replace("~0", "~")
    };
    let keys: Vec<String> = keys.into_iter().map(dotted).collect();
    keys.join(", ")
}

#[cfg(test)]
mod tests {
    use policy::route::{Override, OwnWeights, PolicyName};

    use super::*;

    fn settings() -> Settings {
        let own = Override {
            policy: Some(PolicyName::Random),
            weights: OwnWeights {
                load: Some(3.0),
                ..OwnWeights::default()
            },
            ..Override::default()
        };
        Settings {
            classes: [
                ("batch".to_owned(), own),
                ("empty".to_owned(), Override::default()),
            ]
            .into(),
            named: [("a.b~c".to_owned(), own)].into(),
            ..Settings::default()
        }
    }

    #[test]
    fn keys_of_settings_make_the_same_settings() {
        let (plain, own) = (Settings::default(), settings());
        let to_own = differing(&plain, &own);
        assert!(to_own.contains_key("/named/a.b~0c/weights/load"), "{to_own:?}");
        assert_eq!(with(&plain, &to_own).unwrap(), own);
        let back = differing(&own, &plain);
        assert_eq!(with(&own, &back).unwrap(), plain);
        assert!(differing(&own, &own).is_empty());
        assert_eq!(with(&own, &KeyValues::new()).unwrap(), own);
    }

    #[test]
    fn one_key_of_an_override_is_changed_alone() {
        let mut other = settings();
        other.classes.get_mut("batch").unwrap().weights.load = Some(4.0);
        let changed = differing(&settings(), &other);
        assert_eq!(in_words(changed.keys()), "classes.batch.weights.load");
        assert_eq!(with(&settings(), &changed).unwrap(), other);
    }

    #[test]
    fn values_that_make_no_settings_are_refused() {
        for (key, value) in [
            ("/weights/load", Value::from(-1.0)),
            ("/weights/load", Value::from("x")),
            ("/policy", Value::from("none")),
            ("/weights", Value::from(3)),
            ("", Value::from(3)),
            ("/weights/load/x", Value::from(3)),
        ] {
            let values = KeyValues::from([(key.to_owned(), Some(value.clone()))]);
            let made = with(&settings(), &values);
            assert!(made.is_err() || made == Ok(settings()), "{key} {value}: {made:?}");
        }
    }

    #[test]
    fn documents_of_older_and_newer_processes_can_be_read() {
        let mut written = Settings::default();
        written.weights.locality = 0.25;
        let mut document = serde_json::to_value(&written).unwrap();
        assert_eq!(settings_of(&document).unwrap(), written);
        let fields = document.as_object_mut().unwrap();
        fields.insert("of_tomorrow".to_owned(), Value::from(1));
        fields.remove("named").unwrap();
        let weights = fields.get_mut("weights").and_then(Value::as_object_mut).unwrap();
        weights.remove("load").unwrap();
        weights.insert("of_tomorrow".to_owned(), Value::from(1));
        assert_eq!(settings_of(&document).unwrap(), written);
        assert!(settings_of(&Value::Null).is_err());
        for weight in [Value::from(-1.0), Value::from(1e300), Value::from("x")] {
            assert!(settings_of(&serde_json::json!({ "weights": { "load": weight } })).is_err());
        }
    }
}
