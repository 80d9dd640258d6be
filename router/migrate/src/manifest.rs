//! Reads YAML: Kubernetes manifests, compose files, and production-stack's Helm values and dynamic configuration.

mod chart;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::nginx;
use crate::options::{self, Command};
use crate::shell;
use crate::source::Source;

use chart::{chart, dynamic};

/// Keys that begin a line of a manifest.
const MARKS: &[&str] = &[
    "apiVersion:",
    "kind:",
    "spec:",
    "containers:",
    "services:",
    "routerSpec:",
    "servingEngineSpec:",
    "routing_logic:",
    "service_discovery:",
];

pub(crate) fn looks_like(text: &str) -> bool {
    let begins = |line: &str| MARKS.iter().any(|mark| line.starts_with(mark));
    text.trim_start().starts_with('{') || text.lines().any(begins)
}

/// Returns the only command of a manifest that starts a router; `None` if the text is no manifest.
pub(crate) fn read(name: &str, text: &str, from: Option<Source>) -> Result<Option<Command>, Error> {
    if !looks_like(text) {
        return Ok(None);
    }
    let documents = documents(name, text)?;
    let mut finder = CommandFinder {
        from,
        found: Vec::new(),
    };
    for document in &documents {
        finder.search(document, name)?;
    }
    // With `--from`, a container counts whose flags fit, unless another one names the program.
    let mut found = finder.found;
    if found.iter().any(|command| command.program.is_some()) {
        found.retain(|command| command.program.is_some());
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (None, _) => Err(Error::Unknown),
        (Some(command), None) => Ok(Some(command)),
        (Some(first), Some(second)) => Err(Error::Several {
            first: first.place,
            second: second.place,
        }),
    }
}

fn documents(name: &str, text: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple::<Value>(text).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        let what = error.to_string();
        let what = what.lines().next().unwrap_or("not YAML").to_owned();
        let hint = match text.contains("{{") {
            true => "; it is a template: migrate the output of `helm template`",
            false => "",
        };
        Error::wrong(format!("{name}:{line}"), format!("not YAML: {what}{hint}"))
    })
}

/// Returns the name and text of the nginx configuration in a ConfigMap; `None` if there is none.
pub(crate) fn nginx(name: &str, text: &str) -> Result<Option<(String, String)>, Error> {
    if !looks_like(text) || !nginx::looks_like(text) {
        return Ok(None);
    }
    let documents = documents(name, text)?;
    let maps = documents
        .iter()
        .filter(|document| document["kind"] == "ConfigMap");
    let entries = maps.flat_map(|map| map["data"].as_object().into_iter().flatten());
    let files = entries.filter_map(|(file, text)| Some((file, text.as_str()?)));
    let mut files = files.filter(|(_, text)| nginx::looks_like(text));
    match (files.next(), files.next()) {
        (Some((file, text)), None) => Ok(Some((file.clone(), text.to_owned()))),
        (Some((first, _)), Some((second, _))) => Err(Error::Several {
            first: first.clone(),
            second: second.clone(),
        }),
        (None, _) => Ok(None),
    }
}

struct CommandFinder {
    from: Option<Source>,
    found: Vec<Command>,
}

impl CommandFinder {
    fn search(&mut self, value: &Value, place: &str) -> Result<(), Error> {
        match value {
            Value::Array(list) => list.iter().try_for_each(|value| self.search(value, place)),
            Value::Object(map) => {
                if let Some(Value::Object(spec)) = map.get("routerSpec") {
                    self.found.push(chart(spec, map));
                    return Ok(());
                }
                if map.contains_key("routing_logic") {
                    self.found.push(dynamic(map, place));
                    return Ok(());
                }
                let place = named(map, place);
                self.container(map, &place)?;
                map.values().try_for_each(|value| self.search(value, &place))
            }
            _ => Ok(()),
        }
    }

    /// Adds the command of a container, if it starts a router.
    fn container(&mut self, map: &Map<String, Value>, place: &str) -> Result<(), Error> {
        let lists = ["entrypoint", "command", "args"].map(|key| map.get(key));
        if lists.iter().all(Option::is_none) {
            return Ok(());
        }
        let image = map
            .get("image")
            .and_then(Value::as_str)
            .and_then(options::program);
        let mut all = Vec::new();
        for list in lists.into_iter().flatten() {
            all.extend(words(list));
        }
        let all: Vec<String> = all.iter().map(|word| expanded(word, map)).collect();
        let mut command = match shell::script(&all) {
            Some(text) => match shell::command(place, text, self.from) {
                Err(Error::Unknown) => return Ok(()),
                read => read?,
            },
            None => Command::of_words(all),
        };
        command.program = command.program.or(image);
        let is_router = command.program.is_some() || self.from.is_some_and(|from| command.fits(from));
        if is_router {
            place.clone_into(&mut command.place);
            command.key_variable = variable(map, "VLLM_API_KEY").then_some("variable VLLM_API_KEY");
            self.found.push(command);
        }
        Ok(())
    }
}

fn named(map: &Map<String, Value>, place: &str) -> String {
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    let metadata = map.get("metadata").and_then(|metadata| metadata.get("name"));
    match (text("kind"), metadata.and_then(Value::as_str), text("name")) {
        (Some(kind), Some(name), _) => format!("{kind} {name}"),
        (_, _, Some(name)) => format!("{place}, {name}"),
        _ => place.to_owned(),
    }
}

/// Returns the words of a list, or of a string as compose files have it.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().filter_map(scalar).collect(),
        Value::String(text) => shlex::split(text).unwrap_or_else(|| vec![text.clone()]),
        _ => Vec::new(),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Replaces `$(NAME)` by the variable's value where the manifest has it. A value is not expanded again.
fn expanded(word: &str, container: &Map<String, Value>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once("$(") {
        text.push_str(before);
        let variable = after.split_once(')');
        let value = variable.and_then(|(name, after)| Some((value_of(name, container)?, after)));
        match value {
            Some((value, after)) => {
                text.push_str(&value);
                rest = after;
            }
            None => {
                text.push_str("$(");
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

fn value_of(name: &str, container: &Map<String, Value>) -> Option<String> {
    let mut entries = environment(container).iter();
    let entry = entries.find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
    scalar(entry.get("value")?)
}

fn environment(container: &Map<String, Value>) -> &[Value] {
    container
        .get("env")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn variable(container: &Map<String, Value>, name: &str) -> bool {
    environment(container)
        .iter()
        .any(|entry| entry.get("name").and_then(Value::as_str) == Some(name))
}
