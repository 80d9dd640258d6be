//! Settings as `key=value` pairs: changes to them, and differences between two of them.

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use super::super::format::plain;
use super::super::pair;

/// Largest number of edits between a mistyped key and the suggested one.
const MOST_EDITS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Difference {
    pub(in super::super) key: String,
    /// `None` if the key was absent.
    pub(in super::super) before: Option<Value>,
    pub(in super::super) after: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<Value>| value.as_ref().map_or("none".to_owned(), plain);
        write!(
            f,
            "{}: {} → {}",
            self.key,
            shown(&self.before),
            shown(&self.after)
        )
    }
}

/// Flattens a document to its keys, as `policy set` accepts them, and their values.
pub(in super::super) fn flat(document: &Value) -> Vec<(String, Value)> {
    fn add(out: &mut Vec<(String, Value)>, path: &str, value: &Value) {
        match value {
            Value::Object(entries) => {
                for (key, value) in entries {
                    let path = match path {
                        "" => key.clone(),
                        path => format!("{path}.{key}"),
                    };
                    add(out, &path, value);
                }
            }
            other => out.push((path.to_owned(), other.clone())),
        }
    }
    let mut out = Vec::new();
    add(&mut out, "", document);
    out
}

/// Returns the keys whose values differ, in the order of the documents.
pub(in super::super) fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let (before, after) = (flat(before), flat(after));
    let find = |all: &[(String, Value)], key: &str| {
        let found = all.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.clone())
    };
    let added = after.iter().filter(|(key, _)| find(&before, key).is_none());
    let keys = before.iter().chain(added).map(|(key, _)| key);
    let differences = keys.map(|key| Difference {
        key: key.clone(),
        before: find(&before, key),
        after: find(&after, key),
    });
    differences
        .filter(|difference| difference.before != difference.after)
        .collect()
}

/// Applies one change. The router validates the keys of overrides and all values.
pub(super) fn apply(settings: &mut Value, change: &str) -> anyhow::Result<()> {
    let (key, value) = pair(change, "weights.locality=1.2").map_err(anyhow::Error::msg)?;
    let known: Vec<String> = flat(settings).into_iter().map(|(key, _)| key).collect();
    let unknown = || unknown(&key, &known);
    let parts = parts(&key);
    let Some((last, sections)) = parts.split_last() else {
        bail!("{change}: expected KEY=VALUE, such as weights.locality=1.2")
    };
    let is_override = parts.len() > 1 && is_of_overrides(parts[0]);
    let mut place = settings;
    for (depth, section) in sections.iter().enumerate() {
        let entries = place.as_object_mut().with_context(unknown)?;
        if depth > 0 && is_override && !entries.contains_key(*section) {
            entries.insert((*section).to_owned(), json!({}));
        }
        place = entries.get_mut(*section).with_context(unknown)?;
    }
    let entries = place.as_object_mut().with_context(unknown)?;
    if !is_override && !entries.contains_key(*last) {
        return Err(anyhow!(unknown()));
    }
    entries.insert((*last).to_owned(), value);
    Ok(())
}

fn unknown(key: &str, known: &[String]) -> String {
    match nearest(key, known) {
        Some(known) => format!("unknown key \"{key}\"; did you mean \"{known}\"?"),
        None => format!("unknown key \"{key}\"; `tailroute ctl policy show` lists them"),
    }
}

/// Returns the key that was probably meant: one whose last part is this name, else one whose last part begins with it,
/// else the one with the fewest edits; `None` if none is near.
fn nearest<'a>(key: &str, known: &'a [String]) -> Option<&'a str> {
    let last = |path: &'a str| path.rsplit('.').next().unwrap_or(path);
    let edits = |known: &'a str| match last(known) {
        name if name == key => 0,
        name if name.starts_with(key) => 1,
        name => strsim::osa_distance(key, known).min(strsim::osa_distance(key, name)),
    };
    let settings = known.iter().map(String::as_str);
    let settings = settings.filter(|known| !known.split('.').next().is_some_and(is_of_overrides));
    let (edits, found) = settings
        .map(|known| (edits(known), known))
        .min_by_key(|(edits, _)| *edits)?;
    (edits <= MOST_EDITS && edits < key.len()).then_some(found)
}

fn is_of_overrides(section: &str) -> bool {
    matches!(section, "classes" | "named")
}

/// Splits a key into its parts. A class name may contain dots: `classes.gpt-4.5.weights.slo` belongs to `gpt-4.5`.
fn parts(key: &str) -> Vec<&str> {
    let Some((section, rest)) = key
        .split_once('.')
        .filter(|(section, _)| is_of_overrides(section))
    else {
        return key.split('.').collect();
    };
    if let Some((name, weight)) = rest.rsplit_once(".weights.") {
        return vec![section, name, "weights", weight];
    }
    let of_override = |key: &str| matches!(key, "policy" | "kappa_max" | "weights");
    match rest.rsplit_once('.').filter(|(_, key)| of_override(key)) {
        Some((name, key)) => vec![section, name, key],
        None => vec![section, rest],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_applied_to_their_keys() {
        let mut settings = json!({ "policy": "tail", "weights": { "load": 1.0 } });
        apply(&mut settings, "policy=random").unwrap();
        apply(&mut settings, "weights.load=2").unwrap();
        assert_eq!(settings, json!({ "policy": "random", "weights": { "load": 2 } }));
        for wrong in ["load", "weight.load=1", "policy.x=1"] {
            assert!(apply(&mut settings, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_override_is_created_by_its_first_change() {
        let mut settings = json!({ "classes": {}, "named": {} });
        for change in [
            "classes.gpt-4.5.weights.slo=2",
            "classes.gpt-4.5.policy=least_ttft",
            "classes.v1.0=null",
            "named.fast.kappa_max=3",
        ] {
            apply(&mut settings, change).unwrap();
        }
        let classes = json!({ "gpt-4.5": { "weights": { "slo": 2 }, "policy": "least_ttft" }, "v1.0": null });
        assert_eq!(
            settings,
            json!({ "classes": classes, "named": { "fast": { "kappa_max": 3 } } })
        );
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_one_that_was_meant() {
        let mut settings = json!({
            "policy": "tail", "weights": { "locality": 1.0, "slo": 1.0 }, "kappa_max": 30.0,
            "classes": { "batch": { "weights": { "locality": 2.0 } } },
        });
        let mut error = |change: &str| apply(&mut settings, change).unwrap_err().to_string();
        for (change, meant) in [
            ("locality=1.2", "weights.locality"),
            ("weights.localty=1.2", "weights.locality"),
            ("polcy=random", "policy"),
            ("kappa=3", "kappa_max"),
        ] {
            let key = change.split('=').next().unwrap();
            assert_eq!(
                error(change),
                format!("unknown key \"{key}\"; did you mean \"{meant}\"?")
            );
        }
        assert_eq!(
            error("temperature=1"),
            "unknown key \"temperature\"; `tailroute ctl policy show` lists them"
        );
    }

    #[test]
    fn differences_name_each_key_once() {
        let before = json!({ "policy": "tail", "weights": { "load": 1.0, "slo": 0.5 }, "classes": {} });
        let after = json!({
            "policy": "tail", "weights": { "load": 1.2, "slo": 0.5 }, "classes": { "batch": { "policy": "random" } },
        });
        let shown = |before, after| -> Vec<String> {
            differences(before, after)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(
            shown(&before, &after),
            ["weights.load: 1.0 → 1.2", "classes.batch.policy: none → random"]
        );
        assert_eq!(
            shown(&after, &before),
            ["classes.batch.policy: random → none", "weights.load: 1.2 → 1.0"]
        );
    }
}
