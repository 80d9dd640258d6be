//! Overrides of the file by the environment and the command line.
//!
//! `TAILROUTE_SERVER__LISTEN` is `server.listen`: the prefix, then sections and key in capitals, joined by a double
//! underscore, because single ones are part of keys. Variables without one are ignored, except `TAILROUTE_WORKERS`.
//! The schema determines how the text is parsed, so that a misspelt variable is reported like a misspelt key.

use std::collections::BTreeMap;

use crate::problem::{Origin, Problem, Problems};
use crate::tree::{Node, Value};

/// Prefix of environment variables that change the configuration.
pub const ENVIRONMENT_PREFIX: &str = "TAILROUTE_";

/// Settings of the command line, which override the environment, which overrides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`: replaces `server.listen`.
    pub listen: Option<String>,
    /// `--admin`: replaces `admin.listen`.
    pub admin: Option<String>,
    /// `--worker`, once per worker: replaces the list of workers. A worker whose url is in the file keeps its settings.
    pub workers: Vec<String>,
    /// `--policy`: replaces `routing.policy`.
    pub policy: Option<String>,
}

pub(crate) fn environment(root: &mut Node, variables: &BTreeMap<String, String>, problems: &mut Problems) {
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else {
            continue;
        };
        let origin = Origin::Environment { name: name.clone() };
        if rest == "WORKERS" {
            let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
            replace_workers(root, urls, &origin);
        } else if rest.contains("__") {
            let keys: Vec<String> = rest.split("__").map(str::to_ascii_lowercase).collect();
            set(
                root,
                &keys,
                Node {
                    origin,
                    value: Value::Text(text.clone()),
                },
                problems,
            );
        }
    }
}

pub(crate) fn flags(root: &mut Node, overrides: &Overrides, problems: &mut Problems) {
    let single = [
        ("--listen", ["server", "listen"], &overrides.listen),
        ("--admin", ["admin", "listen"], &overrides.admin),
        ("--policy", ["routing", "policy"], &overrides.policy),
    ];
    for (flag, path, value) in single {
        if let Some(text) = value {
            let origin = Origin::Flag {
                name: flag.to_owned(),
            };
            set(
                root,
                &path.map(str::to_owned),
                Node {
                    origin,
                    value: Value::Text(text.clone()),
                },
                problems,
            );
        }
    }
    if !overrides.workers.is_empty() {
        let origin = Origin::Flag {
            name: "--worker".to_owned(),
        };
        replace_workers(root, overrides.workers.iter().map(String::as_str), &origin);
    }
}

fn set(node: &mut Node, keys: &[String], leaf: Node, problems: &mut Problems) {
    let Some((key, deeper)) = keys.split_first() else {
        *node = leaf;
        return;
    };
    match &mut node.value {
        Value::Table(entries) => {
            let fresh = Node {
                origin: leaf.origin.clone(),
                value: Value::Table(BTreeMap::new()),
            };
            set(
                entries.entry(key.clone()).or_insert(fresh),
                deeper,
                leaf,
                problems,
            );
        }
        Value::List(_) => problems.push(Problem {
            origin: leaf.origin,
            path: String::new(),
            what: format!("`{key}` is inside a list, which environment variables cannot address"),
            hint: Some(format!(
                "set the whole list with {ENVIRONMENT_PREFIX}WORKERS=url,url, or use a file"
            )),
        }),
        // Not a section, which the check of the file reports.
        _ => {}
    }
}

/// Replaces the list of workers by `urls`, each with the settings that the earlier list has for the same url.
fn replace_workers<'a>(root: &mut Node, urls: impl Iterator<Item = &'a str>, origin: &Origin) {
    let Value::Table(entries) = &mut root.value else {
        return;
    };
    let earlier = match entries.remove("workers").map(|node| node.value) {
        Some(Value::List(nodes)) => nodes,
        _ => Vec::new(),
    };
    let worker = |url: &str| {
        let known = earlier.iter().find(|node| url_of(node) == Some(url));
        known.cloned().unwrap_or_else(|| {
            let leaf = Node {
                origin: origin.clone(),
                value: Value::Text(url.to_owned()),
            };
            let entries = BTreeMap::from([("url".to_owned(), leaf)]);
            Node {
                origin: origin.clone(),
                value: Value::Table(entries),
            }
        })
    };
    let workers = Value::List(urls.map(worker).collect());
    entries.insert(
        "workers".to_owned(),
        Node {
            origin: origin.clone(),
            value: workers,
        },
    );
}

fn url_of(worker: &Node) -> Option<&str> {
    let Value::Table(entries) = &worker.value else {
        return None;
    };
    match &entries.get("url")?.value {
        Value::Text(url) => Some(url),
        _ => None,
    }
}
