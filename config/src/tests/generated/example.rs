//! The commented example: every key with its default, and its description above it.

use std::collections::HashSet;

use policy::route::{Override, OwnWeights, PolicyName, Weights};
use policy::units::Millis;

use crate::configuration::File;
use crate::file_schema::schema;
use crate::schema::Schema;
use crate::sections::keys::KeySection;
use crate::sections::objective::Class;
use crate::sections::worker::WorkerSection;

const HEAD: &str = "\
# tailroute's configuration, complete: every key there is, and every value here is the default, except in [[workers]],
# [[keys]] and named tables, whose values are placeholders.
#
# Any key can be set in the environment: TAILROUTE_SERVER__LISTEN=0.0.0.0:8080 is server.listen.
# TAILROUTE_WORKERS=http://a:8000,http://b:8000 replaces the list of workers.
# `tailroute check FILE` names every mistake at once; docs/configuration.md says what each key takes.
#
# Generated from config/src/sections by `make generate`.
";

/// Widest line of a comment.
const WIDTH: usize = 120;

/// Returns the defaults, and one of everything that has none.
fn sample() -> File {
    let worker = |number: u32| WorkerSection {
        name: Some(format!("gpu-{number}")),
        url: format!("http://10.0.0.{}:8000", number + 1),
        models: Some(vec!["my-model".to_owned()]),
        ..WorkerSection::default()
    };
    let own = |locality| Override {
        policy: Some(PolicyName::Tail),
        kappa_max: Some(30.0),
        weights: OwnWeights::from(Weights {
            locality,
            ..Weights::default()
        }),
    };
    let mut file = File {
        workers: vec![worker(0), worker(1)],
        keys: vec![KeySection {
            name: "team-a".to_owned(),
            sha256: "0".repeat(64),
            tenant: Some("team-a".to_owned()),
            ..KeySection::default()
        }],
        ..File::default()
    };
    file.discovery.worker.models = Some(vec!["my-model".to_owned()]);
    file.objective.classes = vec![Class {
        name: "batch".to_owned(),
        ttft: Millis(20_000.0),
        models: vec!["batch-model".to_owned()],
    }];
    file.routing.classes.insert("batch".to_owned(), own(1.5));
    file.routing.named.insert("cache-first".to_owned(), own(4.0));
    file
}

/// Returns the example. No key is described twice in the same words, and a further element of a list has only its
/// required keys.
pub(super) fn example() -> String {
    let whole = schema();
    let root = Schema::of(&whole);
    let (mut page, mut described) = (HEAD.to_owned(), HashSet::new());
    let (mut section, mut heading, mut is_again) = (root, "", false);
    let text = toml::to_string(&sample()).unwrap();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('[') {
            is_again = line == heading;
            heading = line;
            let described_by;
            (section, described_by) = find(root, line.trim_matches(['[', ']']));
            page.push('\n');
            if !is_again {
                comment(&mut page, described_by);
            }
        } else {
            let (key, _) = line.split_once(" = ").unwrap();
            let Some(property) = section.property(key) else {
                // `[discovery.worker]` has no keys that differ from worker to worker.
                continue;
            };
            if is_again && !section.required().any(|required| required == key) {
                continue;
            }
            if described.insert((key, property.text("description"))) {
                comment(&mut page, property);
            }
        }
        page.push_str(line);
        page.push('\n');
    }
    page
}

/// Returns the section at a path (`objective.classes`, `routing.named.cache-first.weights`), and the key that describes
/// it.
fn find<'a>(root: Schema<'a>, path: &str) -> (Schema<'a>, Schema<'a>) {
    path.split('.').fold((root, root), |(section, described), key| {
        let property = section.property(key);
        let found = property.or(section.values()).unwrap();
        (found.items().unwrap_or(found), property.unwrap_or(described))
    })
}

/// Writes the documentation of a key or section as a comment.
fn comment(page: &mut String, of: Schema<'_>) {
    let text = of.text("description").unwrap_or_default();
    let choices: Vec<_> = of
        .choices()
        .into_iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let choices = match choices.len() {
        0 => String::new(),
        _ => format!("One of {}.", choices.join(", ")),
    };
    let mut line = "#".to_owned();
    for word in text.split_whitespace().chain(choices.split_whitespace()) {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    page.push_str(&line);
    page.push('\n');
}
